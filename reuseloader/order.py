"""(position, epoch) -> index: which sample comes where in a pass, in closed form.

A pass of ``size`` positions is cut in blocks of ``period`` (the lifetime, or 1 for a plain
permutation). With m = size // period:

- position p < m * period lies in block j = p // period. The classes 0 .. period - 1 (index modulo
  period) stand in that block in an order drawn for it; class c gives its member number P_c(j).
- the last size % period positions hold the members number P_c(m) of the classes that have one
  more, in an order drawn likewise.

P_c is a pseudo-random permutation of the members of class c. With period 1 all this is one
permutation of range(size). Everything is computed from integers alone, in constant memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from math import isqrt
from operator import length_hint
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from reuseloader.errors import StateMismatchError
from reuseloader.mix import UInt64Array, mix, step_array
from reuseloader.validate import exact_int

# Below: sort by hash, exactly uniform. Above: Feistel. Few Feistel rounds are not uniform on a tiny
# domain (8 ideal rounds on n = 6 make one order twice as frequent as it should be).
_SMALL = 16
_ROUNDS = 12  # with 8, domains of 17 to 400 show too many successor pairs (up to 2 %)
_CHUNK = 2**13  # positions computed at a time: the temporaries stay in the processor's cache


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


def ordered(
    position: npt.NDArray[np.integer], epoch: int, size: int, *, seed: int, period: int
) -> npt.NDArray[np.int64]:
    """The indices at ``position`` (integer array of any shape) of pass ``epoch``."""
    if position.dtype.kind not in "iu":
        raise TypeError(f"position must be an int or an integer array, got dtype {position.dtype}")
    flat = position.reshape(-1)
    if flat.size and not (flat.min() >= 0 and flat.max() < size):
        raise IndexError(f"position must be in range({size}), got {flat.min()} to {flat.max()}")
    index = np.empty(flat.shape, dtype=np.int64)
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK].astype(np.uint64)
        index[start : start + _CHUNK] = _balanced(chunk, epoch, size, seed, period)
    return index.reshape(position.shape)


def _balanced(position: UInt64Array, epoch: int, size: int, seed: int, period: int) -> UInt64Array:
    blocks, rest = divmod(size, period)
    members = _permutation(seed, epoch, 0, blocks + (rest > 0))
    if period == 1:
        return members(position, np.uint64(0), blocks)
    block = position // np.uint64(period)
    place = position - block * np.uint64(period)
    if blocks == 0:
        return _permutation(seed, epoch, 2, rest)(place, block, rest)
    in_block = block < np.uint64(blocks)
    if in_block.all():
        phase = _permutation(seed, epoch, 1, period)(place, block, period)
    else:
        phase = np.empty_like(place)
        for part, domain, tag in ((in_block, period, 1), (~in_block, rest, 2)):
            phase[part] = _permutation(seed, epoch, tag, domain)(place[part], block[part], domain)
    limit = np.uint64(blocks) + (phase < np.uint64(rest)) if rest else blocks
    return members(block, phase, limit) * np.uint64(period) + phase


@lru_cache(maxsize=64)
def _permutation(seed: int, epoch: int, tag: int, domain: int) -> "_Permutation":
    steps = domain if domain <= _SMALL else _ROUNDS
    keys = tuple(np.uint64(mix(seed, epoch, tag, domain, step)) for step in range(steps))
    return _Permutation(domain, np.uint64(mix(seed, epoch, tag, domain, steps)), keys)


@dataclass(frozen=True)
class _Permutation:
    """A family of pseudo-random permutations of range(domain), one per tweak."""

    domain: int
    tweak_key: np.uint64
    keys: tuple[np.uint64, ...]

    def __call__(
        self, x: UInt64Array, tweak: UInt64Array | np.uint64, limit: UInt64Array | int
    ) -> UInt64Array:
        """Permute each ``x[k]`` within range(limit[k]), limit <= domain, by cycle walking.

        (Black, Rogaway: "Ciphers with arbitrary finite domains", CT-RSA 2002: repeat the
        permutation until the value lies in the range; this is a permutation of the range.)
        """
        salt = np.broadcast_to(step_array(np.atleast_1d(tweak + self.tweak_key)), x.shape)
        bound = np.broadcast_to(np.asarray(limit, dtype=np.uint64), x.shape)
        permute = self._sort if self.domain <= _SMALL else self._feistel
        y = permute(x, salt)
        outside = np.flatnonzero(y >= bound)
        while outside.size:
            y[outside] = permute(y[outside], salt[outside])
            outside = outside[y[outside] >= bound[outside]]
        return y

    def _sort(self, x: UInt64Array, salt: UInt64Array) -> UInt64Array:
        """The rank of the hash of x among the hashes of range(domain)."""
        own = step_array(salt ^ np.array(self.keys)[x.astype(np.intp)])
        rank = np.zeros_like(x)
        for key in self.keys:
            rank += step_array(salt ^ key) < own
        return rank

    def _feistel(self, x: UInt64Array, salt: UInt64Array) -> UInt64Array:
        """A generalised Feistel network on range(a) x range(b), a * b >= domain.

        (Black, Rogaway, as above.) Each round adds to one half a hash of the other half, modulo
        the first half's range; a hash h becomes a number below r as (h >> 32) * r >> 32.
        """
        a = isqrt(self.domain - 1) + 1
        a += a % 2  # with both sides odd every permutation would be an even one
        b = -(-self.domain // a)
        left = x // np.uint64(b)
        right = x - left * np.uint64(b)
        range_of_left, range_of_right = np.uint64(a), np.uint64(b)
        for key in self.keys:
            hashed = right + key
            hashed ^= salt
            hashed = step_array(hashed)
            hashed >>= np.uint64(32)
            hashed *= range_of_left
            hashed >>= np.uint64(32)
            hashed += left
            left, right = right, np.minimum(hashed, hashed - range_of_left)
            range_of_left, range_of_right = range_of_right, range_of_left
        # an even number of rounds: left and right are back in their places
        return left * np.uint64(b) + right


@dataclass(frozen=True)
class SampleOrder:
    """The order of every pass of a sampler, and what a saved state must agree with."""

    size: int
    seed: int
    lifetime: int
    balanced: bool
    shuffle: bool

    EPOCH_KEY: ClassVar[str] = "epoch"
    POSITION_KEY: ClassVar[str] = "position"

    def blocks(self, epoch: int, start: int = 0) -> Iterator[list[int]]:
        """The indices of pass ``epoch`` from position ``start`` on, computed block by block."""
        period = self.lifetime if self.balanced else 1
        for first in range(start, self.size, _CHUNK):
            position = np.arange(first, min(first + _CHUNK, self.size))
            if self.shuffle:
                position = ordered(position, epoch, self.size, seed=self.seed, period=period)
            yield position.tolist()

    def state(self, epoch: int, position: int) -> dict[str, int]:
        """A flat dict from which `read_state` goes on."""
        return {self.EPOCH_KEY: epoch, self.POSITION_KEY: position, **self._settings}

    def read_state(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return (epoch, position) of a state saved by a sampler of the same settings.

        Raises:
            StateMismatchError: it was not; the message has the values of both.
        """
        for name, here in self._settings.items():
            if state.get(name) != here:
                raise StateMismatchError(
                    f"the state was saved with {name} = {state.get(name)!r}, but this sampler has "
                    f"{name} = {here!r}. Load it into a sampler made with the same arguments"
                )
        epoch, position = state.get(self.EPOCH_KEY), state.get(self.POSITION_KEY)
        if type(epoch) is not int or epoch < 0:
            raise StateMismatchError(f"the state must have an int epoch >= 0, got {epoch!r}")
        if type(position) is not int or not 0 <= position <= self.size:
            raise StateMismatchError(
                f"the state must have an int position from 0 to {self.size}, got {position!r}"
            )
        if position == self.size:  # an ended pass: go on with the next
            return epoch + 1, 0
        return epoch, position

    @cached_property
    def _settings(self) -> dict[str, int]:
        return {
            "size": self.size,
            "seed": self.seed,
            "lifetime": self.lifetime,
            "balanced": int(self.balanced),
            "shuffle": int(self.shuffle),
        }


class Pass:
    """One walk through an order, from ``position`` on; knows its epoch once it has begun."""

    def __init__(self, order: SampleOrder, position: int = 0) -> None:
        self.order = order
        self.epoch: int | None = None
        self._start = position
        self._computed = position
        self._block: Iterator[int] = iter([])

    def begin(self, epoch: int) -> Iterator[IndexEpoch]:
        """Begin, with this epoch, and return the pairs from ``position`` on. To be called once."""
        self.epoch = epoch
        return self._pairs(epoch)

    def _pairs(self, epoch: int) -> Iterator[IndexEpoch]:
        for block in self.order.blocks(epoch, self._start):
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
