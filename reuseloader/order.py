"""(position, epoch) -> index, for one of several ranks: which sample comes where in a pass.

`SampleOrder` is what both samplers walk through; `reuseloader.permutation` shuffles, and
`reuseloader.ranks` says which positions are whose. Pure integers, computed block by block.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import length_hint
from typing import Any, ClassVar, NamedTuple

import numpy as np

from reuseloader.errors import StateMismatchError
from reuseloader.mix import mix
from reuseloader.permutation import ordered
from reuseloader.ranks import Int64Array, Share
from reuseloader.validate import MAX_INT, exact_int

SHARED, LOCAL = "shared", "local"  # where ranks keep their samples

_CHUNK = 2**13  # positions computed at a time


class IndexEpoch(NamedTuple):
    """The pair that travels: which sample, in which pass."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    epoch: int


def paired(item: Any, epoch: int) -> Any:
    """Pair an index, or each of a list or array of them, with an epoch; pairs stay as they are."""
    if isinstance(item, IndexEpoch):
        return item
    if isinstance(item, (list, tuple)) or getattr(item, "ndim", 0) > 0:
        return [paired(index, epoch) for index in item]
    return IndexEpoch(exact_int("index", item), epoch)


class Place(NamedTuple):
    """Where a rank stands: ``position`` of its pairs of the pass lie behind it.

    ``origin`` positions of the order had been done before, by another number of ranks.
    """

    epoch: int
    position: int = 0
    origin: int = 0


@dataclass(frozen=True)
class SampleOrder:
    """The order of every pass of one rank, and what a saved state must agree with.

    With placement "shared" the order is one for all ranks, which deal it out. With "local" each
    rank owns a part of the indices (dealt as the unshuffled order is), and shuffles it by itself.
    """

    size: int
    seed: int
    lifetime: int
    balanced: bool
    shuffle: bool
    rank: int = 0
    world_size: int = 1
    placement: str = SHARED
    drop_last: bool = False

    EPOCH_KEY: ClassVar[str] = "epoch"
    POSITION_KEY: ClassVar[str] = "position"
    ORIGIN_KEY: ClassVar[str] = "origin"
    WORLD_SIZE_KEY: ClassVar[str] = "world_size"

    @property
    def _period(self) -> int:
        """The length of a block of the order; a plain permutation has none."""
        return self.lifetime if self.balanced or not self.shuffle else 1

    def _share(self, origin: int, world_size: int) -> Share:
        period = self.lifetime if self.placement == LOCAL else self._period
        return Share(self.size, period, self.rank, world_size, origin)

    def length(self, origin: int = 0) -> int:
        """How many pairs a rank yields in a pass from ``origin`` on: all ranks the same."""
        return self._share(origin, self.world_size).length(drop_last=self.drop_last)

    def blocks(self, epoch: int, start: int = 0, origin: int = 0) -> Iterator[list[int]]:
        """The rank's indices of pass ``epoch`` from its position ``start`` on, block by block."""
        share = self._share(origin, self.world_size)
        indices = self._owned if self.placement == LOCAL else self._dealt
        length = self.length(origin)
        for first in range(start, length, _CHUNK):
            position = np.arange(first, min(first + _CHUNK, length))
            yield indices(share, position, epoch).tolist()

    def _dealt(self, share: Share, own: Int64Array, epoch: int) -> Int64Array:
        """Of the one order of all ranks."""
        row = share.positions(own)
        if not self.shuffle:
            return row
        return ordered(row, epoch, self.size, seed=self.seed, period=self._period, tail=share.tail)

    def _owned(self, share: Share, own: Int64Array, epoch: int) -> Int64Array:
        """Of the rank's order of its own part; padding repeats that from its beginning."""
        if share.count == 0:
            return share.positions(own)
        own = own % share.count
        if not self.shuffle:
            return share.positions(own)
        seed = self.seed if self.world_size == 1 else mix(self.seed, self.rank)
        return share.aligned(ordered(own, epoch, share.count, seed=seed, period=self._period))

    def state(self, epoch: int, position: int = 0, origin: int = 0) -> dict[str, int | str]:
        """A flat dict from which `read_state` goes on; see `Place`."""
        return {
            self.EPOCH_KEY: epoch,
            self.POSITION_KEY: position,
            self.ORIGIN_KEY: origin,
            self.WORLD_SIZE_KEY: self.world_size,
            **self._settings,
        }

    def read_state(self, state: Mapping[str, Any]) -> Place:
        """Return where a state goes on that was saved by a sampler of the same settings.

        If it was saved by another number of ranks, what they had left is dealt anew; an ended pass
        goes on with the next.

        Raises:
            StateMismatchError: the settings differ, with the values of both; or another number of
                ranks cannot take over there, with the nearest place where it can.
        """
        if not isinstance(state, Mapping):
            raise StateMismatchError(f"the state must be a dict of a ReuseSampler, got {state!r}")
        for name, here in self._settings.items():
            if state.get(name) != here:
                raise StateMismatchError(
                    f"the state was saved with {name} = {state.get(name)!r}, but this sampler has "
                    f"{name} = {here!r}. Load it into a sampler made with the same arguments"
                )
        epoch = _state_int(state, self.EPOCH_KEY, 0, MAX_INT)
        world_size = _state_int(state, self.WORLD_SIZE_KEY, 1, MAX_INT)
        origin = _state_int(state, self.ORIGIN_KEY, 0, self.size)
        there = self._share(origin, world_size)
        if origin % there.period:
            raise StateMismatchError(
                f"the state must have an origin that is a multiple of {there.period}, got {origin}"
            )
        position = _state_int(state, self.POSITION_KEY, 0, there.length(drop_last=False))
        if 0 < position >= there.length(drop_last=self.drop_last):
            return Place(epoch + 1)
        if world_size != self.world_size:
            nearest = there.nearest_round(position)
            if position != nearest:
                raise StateMismatchError(
                    f"the state was saved with world_size = {world_size} at position {position}, "
                    f"but this sampler has world_size = {self.world_size}, which can take over "
                    f"only at a multiple of {there.period} from 0 to {there.in_rounds} (positions "
                    f"count the pairs of one rank), or at an epoch's end; the nearest position is "
                    f"{nearest}. Load it with world_size = {world_size}, or one saved there"
                )
            origin, position = origin + position * world_size, 0
            if origin and not self.length(origin):  # too few are left for all, and are dropped
                return Place(epoch + 1)
        return Place(epoch, position, origin)

    @cached_property
    def _settings(self) -> dict[str, int | str]:
        settings: dict[str, int | str] = {
            "size": self.size,
            "seed": self.seed,
            "lifetime": self.lifetime,
            "balanced": int(self.balanced),
            "shuffle": int(self.shuffle),
            "placement": self.placement,
        }
        if self.placement == LOCAL:
            settings |= {"rank": self.rank, "world_size": self.world_size}
        return settings


def _state_int(state: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = state.get(name)
    if type(value) is not int or not least <= value <= most:
        raise StateMismatchError(
            f"the state must have an int {name} from {least} to {most}, got {value!r}"
        )
    return value


class Pass:
    """One walk through an order, from a position on; knows its epoch once it has begun."""

    def __init__(self, order: SampleOrder, position: int = 0, origin: int = 0) -> None:
        self.order = order
        self.epoch: int | None = None
        self.origin = origin
        self._start = position
        self._computed = position
        self._block: Iterator[int] = iter([])

    def begin(self, epoch: int) -> Iterator[IndexEpoch]:
        """Begin, with this epoch, and return the pairs from the position on. To be called once."""
        self.epoch = epoch
        return self._pairs(epoch)

    def _pairs(self, epoch: int) -> Iterator[IndexEpoch]:
        for block in self.order.blocks(epoch, self._start, self.origin):
            self._computed += len(block)
            self._block = iter(block)
            # IndexEpoch(i, epoch) without a call into Python per pair; and one pair at a time: a
            # list of thousands of tuples keeps the garbage collector busy
            pairs = zip(self._block, repeat(epoch))
            yield from map(tuple.__new__, repeat(IndexEpoch), pairs)

    @property
    def position(self) -> int:
        """How many pairs of the epoch lie behind."""
        # a list's iterator knows what is left of it: no counting per pair
        return self._computed - length_hint(self._block)

    @property
    def ended(self) -> bool:
        """Whether no pair is left."""
        return self.position == self.order.length(self.origin)
