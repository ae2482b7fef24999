"""(index, epoch) -> key, in closed form: pure integers, no clock, no disk, no worker count."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from reuseloader.key import ReuseKey
from reuseloader.mix import absorb
from reuseloader.order import LOCAL, SHARED, SampleOrder
from reuseloader.permutation import ordered
from reuseloader.ranks import checked_rank
from reuseloader.validate import exact_int, instance, int_at_least


@dataclass(frozen=True)
class ReusePolicy:
    """The rule of reuse: a sample is built anew once in ``lifetime`` epochs.

    Args:
        lifetime: in how many consecutive epochs a prepared sample is used, from 1 (no reuse) to
            2**63 - 1 (a static cache).
        seed: any int; decides every sample's seed and every epoch's order.
        balanced: spread the builds evenly over each epoch's order (see `order`).

    Raises:
        TypeError, ValueError: an argument is not of these types or ranges.
    """

    lifetime: int
    seed: int = 0
    balanced: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lifetime", int_at_least(1, "lifetime", self.lifetime))
        object.__setattr__(self, "seed", exact_int("seed", self.seed))
        instance(bool, "balanced", self.balanced)

    @cached_property
    def _seed_state(self) -> int:
        return absorb(0, self.seed)  # shared by the seeds of all keys

    def key(self, index: int, epoch: int) -> ReuseKey:
        """The key of sample ``index`` >= 0 in pass ``epoch`` >= 0; `ReuseKey` has the formulas."""
        index = int_at_least(0, "index", index)
        epoch = int_at_least(0, "epoch", epoch)
        phase = index % self.lifetime
        generation, use = divmod(epoch + phase, self.lifetime)
        seed = absorb(self._seed_state, index, generation) >> 1  # mix(self.seed, index, generation)
        first_epoch = generation * self.lifetime - phase if generation else 0
        return ReuseKey(index, epoch, generation, use, seed, first_epoch)

    def is_last_use(self, key: ReuseKey) -> bool:
        """Whether no later epoch uses this generation, so that storing it would be in vain."""
        return key.use == self.lifetime - 1

    @overload
    def order(self, position: int, epoch: int, size: int) -> int: ...
    @overload
    def order(
        self, position: npt.NDArray[np.integer], epoch: int, size: int
    ) -> npt.NDArray[np.int64]: ...
    def order(
        self, position: int | npt.NDArray[np.integer], epoch: int, size: int
    ) -> int | npt.NDArray[np.int64]:
        """The index at ``position`` of the shuffled pass ``epoch``: a bijection of range(size).

        Random access in constant time and memory, for an int or an integer array of any shape.
        With ``balanced``, each of the size // lifetime leading blocks of ``lifetime`` positions
        holds one index of every phase, so it builds exactly one sample in every epoch but the
        first; see `reuseloader.permutation`.

        Raises:
            IndexError: a position is not in range(size).
        """
        epoch = int_at_least(0, "epoch", epoch)
        size = int_at_least(1, "size", size)
        period = self.lifetime if self.balanced else 1
        if isinstance(position, np.ndarray):
            return ordered(position, epoch, size, seed=self.seed, period=period)
        at = np.array([exact_int("position", position)])
        return int(ordered(at, epoch, size, seed=self.seed, period=period)[0])

    def sample_order(
        self,
        size: int,
        *,
        shuffle: bool,
        rank: int | None = None,
        world_size: int | None = None,
        placement: str = SHARED,
        drop_last: bool = False,
    ) -> SampleOrder:
        """The order of a rank's passes over ``size`` samples; `ReuseSampler` has the arguments."""
        size = int_at_least(0, "size", size)
        instance(bool, "shuffle", shuffle)
        instance(bool, "drop_last", drop_last)
        if placement not in (SHARED, LOCAL):
            raise ValueError(f"placement must be {SHARED!r} or {LOCAL!r}, got {placement!r}")
        number, ranks = checked_rank(rank, world_size)
        return SampleOrder(
            size,
            self.seed,
            self.lifetime,
            self.balanced,
            shuffle,
            rank=number,
            world_size=ranks,
            placement=placement,
            drop_last=drop_last,
        )

    def builds(self, epoch: int, size: int) -> int:
        """How many of ``size`` samples begin a new generation in ``epoch``."""
        epoch = int_at_least(0, "epoch", epoch)
        size = int_at_least(0, "size", size)
        if epoch == 0:
            return size
        first = -epoch % self.lifetime  # the smallest index with (epoch + index) % lifetime == 0
        return max(0, -((first - size) // self.lifetime))
