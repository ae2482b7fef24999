"""The key of one use of one sample: what `build` and `finish` receive."""

from typing import NamedTuple

import numpy as np
import torch

from reuseloader.mix import mix


class ReuseKey(NamedTuple):
    """One use of one sample, as given by `ReusePolicy.key`. Immutable and picklable.

    With L the lifetime and phase = index % L:

    - ``index``: which sample, >= 0
    - ``epoch``: which pass, >= 0
    - ``generation``: (epoch + phase) // L, counts the builds of this index
    - ``use``: (epoch + phase) % L, counts the uses of this generation; the last one is L - 1
    - ``seed``: mix(policy seed, index, generation), in [0, 2**63): equal for all uses
    - ``first_epoch``: max(0, generation * L - phase), the epoch this generation was built for
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    epoch: int
    generation: int
    use: int
    seed: int
    first_epoch: int

    @property
    def use_seed(self) -> int:
        """mix(seed, use), in [0, 2**63): differs at every use, for random parts of `finish`."""
        return mix(self.seed, self.use)

    @property
    def first(self) -> "ReuseKey":
        """The key of the generation's first use, which is the one `build` receives."""
        lived = self.epoch - self.first_epoch
        return self._replace(epoch=self.first_epoch, use=self.use - lived) if lived else self

    def generator(self) -> torch.Generator:
        """A fresh CPU `torch.Generator` seeded with ``seed``."""
        return torch.Generator().manual_seed(self.seed)

    def rng(self) -> np.random.Generator:
        """A fresh `numpy.random.default_rng` seeded with ``seed``."""
        return np.random.default_rng(self.seed)
