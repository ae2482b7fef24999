"""(position, epoch) -> index of a shuffled pass: a pseudo-random permutation in closed form.

A pass of ``size`` positions is cut in blocks of ``period`` (the lifetime, or 1 for a plain
permutation). With m = size // period:

- position p < m * period lies in block j = p // period. The classes 0 .. period - 1 (index modulo
  period) stand in that block in an order drawn for it; class c gives its member number P_c(j).
- the last size % period positions hold the members number P_c(m) of the classes that have one
  more, in an order drawn likewise.

P_c is a pseudo-random permutation of the members of class c. With period 1 all this is one
permutation of range(size). Everything is computed from integers alone, in constant memory.

For several ranks (`reuseloader.ranks`) the blocks of the tail, of which there are too few for all,
have their classes in one order, drawn for the pass; in it the classes of the last size % period
positions come first. So ``period`` consecutive positions of the tail hold no class twice.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np
import numpy.typing as npt

from reuseloader.mix import UInt64Array, mix, step_array

# Below: sort by hash, exactly uniform. Above: Feistel. Few Feistel rounds are not uniform on a tiny
# domain (8 ideal rounds on n = 6 make one order twice as frequent as it should be).
_SMALL = 16
_ROUNDS = 12  # with 8, domains of 17 to 400 show too many successor pairs (up to 2 %)
_CHUNK = 2**13  # positions computed at a time: the temporaries stay in the processor's cache


def ordered(
    position: npt.NDArray[np.integer],
    epoch: int,
    size: int,
    *,
    seed: int,
    period: int,
    tail: int | None = None,
) -> npt.NDArray[np.int64]:
    """The indices at ``position`` (integer array of any shape) of pass ``epoch``.

    ``tail`` is where the tail begins, a multiple of ``period``; by default where the blocks end.
    """
    if position.dtype.kind not in "iu":
        raise TypeError(f"position must be an int or an integer array, got dtype {position.dtype}")
    flat = position.reshape(-1)
    if flat.size and not (flat.min() >= 0 and flat.max() < size):
        raise IndexError(f"position must be in range({size}), got {flat.min()} to {flat.max()}")
    if tail is None:
        tail = size - size % period
    index = np.empty(flat.shape, dtype=np.int64)
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK].astype(np.uint64)
        index[start : start + _CHUNK] = _balanced(chunk, epoch, size, seed, period, tail)
    return index.reshape(position.shape)


def _balanced(
    position: UInt64Array, epoch: int, size: int, seed: int, period: int, tail: int
) -> UInt64Array:
    blocks, rest = divmod(size, period)
    members = _permutation(seed, epoch, 0, blocks + (rest > 0))
    if period == 1:
        return members(position, np.uint64(0), blocks)
    block = position // np.uint64(period)
    place = position - block * np.uint64(period)
    if blocks == 0:
        return _permutation(seed, epoch, 2, rest)(place, block, rest)
    before_tail = position < np.uint64(tail)
    if before_tail.all():
        phase = _permutation(seed, epoch, 1, period)(place, block, period)
    else:
        # the classes in the tail: those that have one more member, then the others
        more = ~before_tail & (place < np.uint64(rest))
        others = ~(before_tail | more)
        last = np.uint64(blocks)
        phase = np.empty_like(place)
        phase[before_tail] = _permutation(seed, epoch, 1, period)(
            place[before_tail], block[before_tail], period
        )
        if rest:
            phase[more] = _permutation(seed, epoch, 2, rest)(place[more], last, rest)
        phase[others] = np.uint64(rest) + _permutation(seed, epoch, 3, period - rest)(
            place[others] - np.uint64(rest), last, period - rest
        )
    limit = np.uint64(blocks) + (phase < np.uint64(rest)) if rest else blocks
    return members(block, phase, limit) * np.uint64(period) + phase


@lru_cache(maxsize=64)
def _permutation(seed: int, epoch: int, tag: int, domain: int) -> "_Permutation":
    """The family for these integers; ``tag`` tells apart what one pass needs several of."""
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
