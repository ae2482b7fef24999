"""A rank's position -> the position in the whole row: which of several ranks takes what.

A row of ``size`` positions, from ``origin`` on, is dealt to ``world_size`` ranks:

- in rounds of one block of ``period`` positions for each rank: block j goes to rank j % world_size,
  as long as there is one for every rank.
- the tail, for which there is no whole round: in runs, consecutive positions for one rank after the
  other, of equal lengths within one. The tail is shorter than a round, so a run is at most a block.

So of the positions that are equal modulo ``period`` no two ranks have numbers that differ by more
than one, whatever the period and the number of ranks. (Dealt one by one, as DistributedSampler
does, lifetime 2 on 2 ranks gives all builds of an epoch to one rank.)
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reuseloader.validate import exact_int, int_at_least

Int64Array = npt.NDArray[np.int64]


def checked_rank(rank: Any, world_size: Any) -> tuple[int, int]:
    """Return both as ints, (0, 1) if both are None; ValueError if one is, or out of range."""
    if rank is None and world_size is None:
        return 0, 1
    if rank is None or world_size is None:
        raise ValueError(
            f"rank and world_size must be given both or neither, "
            f"got rank={rank!r}, world_size={world_size!r}"
        )
    world_size = int_at_least(1, "world_size", world_size)
    number = exact_int("rank", rank)
    if not 0 <= number < world_size:
        raise ValueError(
            f"rank must be an int from 0 to world_size - 1 = {world_size - 1}, got {rank!r}"
        )
    return number, world_size


@dataclass(frozen=True)
class Share:
    """What one rank takes of a row. ``origin`` <= size is a multiple of ``period``."""

    size: int
    period: int
    rank: int = 0
    world_size: int = 1
    origin: int = 0

    @cached_property
    def in_rounds(self) -> int:
        """How many positions each rank takes in whole rounds."""
        blocks = (self.size - self.origin) // self.period
        return blocks // self.world_size * self.period

    @cached_property
    def tail(self) -> int:
        """The position in the row at which the whole rounds end."""
        return self.origin + self.in_rounds * self.world_size

    @cached_property
    def _run(self) -> tuple[int, int]:
        """(where in the row the rank's run begins, its length)."""
        each, longer = divmod(self.size - self.tail, self.world_size)
        return self.tail + self.rank * each + min(self.rank, longer), each + (self.rank < longer)

    @property
    def count(self) -> int:
        """How many positions the rank takes, before any padding."""
        return self.in_rounds + self._run[1]

    def length(self, *, drop_last: bool) -> int:
        """How many each rank yields: all take one more or, with ``drop_last``, none does."""
        dealt, more = divmod(self.size - self.origin, self.world_size)
        return dealt + (more > 0 and not drop_last)

    def positions(self, own: Int64Array) -> Int64Array:
        """The positions in the row of the rank's positions ``own`` (each from 0 to the length).

        A rank whose run is shorter takes one position more, from the row's beginning, as in
        DistributedSampler: the first such rank takes position 0, the next 1 ...
        """
        if self.world_size == 1:
            return own + self.origin
        first, length = self._run
        longer = (self.size - self.tail) % self.world_size
        padding = (self.rank - longer) % max(self.size, 1)
        in_tail = own - self.in_rounds
        row = np.where(in_tail < length, in_tail + first, padding)
        dealt = in_tail < 0
        block, place = np.divmod(own[dealt], self.period)
        row[dealt] = self.origin + (block * self.world_size + self.rank) * self.period + place
        return row

    def aligned(self, own: Int64Array) -> Int64Array:
        """`positions`, with each block turned such that positions equal modulo period stay so.

        (In a run they would not: it begins anywhere in a block.) The rank's positions are the same,
        so this serves to shuffle among them by class.
        """
        block, place = np.divmod(own, self.period)
        turned = block * self.period + (place + self._run[0] % self.period) % self.period
        return self.positions(np.where(own < self.in_rounds, turned, own))

    def nearest_round(self, position: int) -> int:
        """The position of a rank nearest to this one at which every rank has ended a round."""
        rounds = (2 * position + self.period) // (2 * self.period)
        return min(rounds * self.period, self.in_rounds)
