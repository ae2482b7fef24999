"""The key of one use of one sample: what `build` and `finish` receive."""

from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch

from reuseloader.mix import mix
from reuseloader.seeding import global_states
from reuseloader.validate import exact_int


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

    def seeded(self, seed: int | None = None) -> AbstractContextManager[None]:
        """A block in which the global random states are seeded, for libraries that know no others.

        These are the states of `random`, of NumPy (``np.random.rand()`` and the like) and of torch
        on the CPU, each seeded with a hash of its own of ``seed``, by default the key's, which is
        that of `generator` and `rng`. After the block they are as they were before, also if it
        raises; blocks may be nested. Generators of other devices are left alone.

        In `finish` say ``key.seeded(key.use_seed)``: the key's ``seed`` would give the same at
        every use, and just what `build` drew. (That ``use_seed`` is no default for both has the
        same reason: at a sample's first use, finish would draw what build drew.)

        Raises:
            RuntimeError: on entry, where this is not the main thread of its process. Workers of a
                DataLoader and of ``ReuseMapper(method="process")`` build in theirs.
        """
        return global_states(self.seed if seed is None else exact_int("seed", seed))
