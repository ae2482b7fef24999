"""What was delivered in an epoch, as a number that does not depend on the order."""

import os
import struct
from typing import Any, Self

import xxhash

from reuseloader.counters import Counters
from reuseloader.errors import ReuseError
from reuseloader.key import ReuseKey
from reuseloader.order import IndexEpoch
from reuseloader.tensors import UnsupportedError, encoded, unsupported_place

_SIZE = struct.Struct("<QQ")
_WORD = 2**64


class Digest:
    """Of samples of one epoch: how many, and the sum of XXH3-128 of index, epoch and content.

    Low and high 64 bits are summed apart, modulo 2**64: in any order, in any number of parts.
    """

    WORDS = 4

    def __init__(self, epoch: int, count: int = 0, low: int = 0, high: int = 0) -> None:
        self.epoch = epoch
        self.count = count
        self._low, self._high = low % _WORD, high % _WORD

    @classmethod
    def of(cls, pair: IndexEpoch | ReuseKey, sample: Any) -> Self:
        """Of one sample; TypeError if it holds anything that ``format="tensors"`` does not."""
        try:
            content = encoded(sample)
        except UnsupportedError as error:
            raise TypeError(
                f"digest=True cannot take {unsupported_place(sample)} of index {pair.index}, epoch "
                f"{pair.epoch}: {error}. It takes the types of format='tensors'"
            ) from None
        number = xxhash.xxh3_128_intdigest(_SIZE.pack(pair.index, pair.epoch) + content)
        return cls(pair.epoch, 1, number, number >> 64)

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(
            self.epoch, self.count + other.count, self._low + other._low, self._high + other._high
        )

    def __sub__(self, other: "Digest") -> "Digest":
        return self + Digest(self.epoch, -other.count, -other._low, -other._high)

    def words(self) -> tuple[int, int, int, int]:
        """What the constructor takes."""
        return self.epoch, self.count, self._low, self._high

    def __str__(self) -> str:
        return f"{self._high:016x}{self._low:016x}-{self.count}-{self.epoch}"


class SharedDigests:
    """The digests of the newest few epochs, of all processes that deliver samples of a dataset."""

    _EPOCHS = 4  # side by side

    def __init__(self) -> None:
        self._open(Counters(self._EPOCHS * Digest.WORDS, rows=128))

    def _open(self, counters: Counters) -> None:
        self._counters = counters
        self._before, self._pid = Digest(0), os.getpid()

    def add(self, pair: IndexEpoch, sample: Any) -> None:
        """One sample was delivered."""
        digest = Digest.of(pair, sample)
        start = pair.epoch % self._EPOCHS * Digest.WORDS
        with self._counters.lock:
            row = self._counters.row()
            before = row[start : start + Digest.WORDS].tolist()
            if before[0] == pair.epoch:
                digest += Digest(*before)
            for column, word in enumerate(digest.words(), start):
                row[column] = word - _WORD if word >= _WORD // 2 else word  # signed

    def begin(self, epoch: int) -> Digest:
        """A pass of this epoch begins; what was delivered of it before is not part of it."""
        self._before, self._pid = self.of(epoch), os.getpid()
        return self._before

    def since_begun(self, epoch: int) -> Digest:
        """What was delivered of this epoch since it was begun."""
        total = self.of(epoch)
        # a rank that was forked since counts by itself
        is_mine = self._before.epoch == epoch and self._pid == os.getpid()
        return total - self._before if is_mine else total

    def of(self, epoch: int) -> Digest:
        """All that was delivered of this epoch."""
        total = Digest(epoch)
        start = epoch % self._EPOCHS * Digest.WORDS
        columns = map(self._counters.by_process, range(start, start + Digest.WORDS))
        for words in zip(*columns, strict=True):
            if words[0] == epoch:
                total += Digest(*map(int, words))
        return total

    def __getstate__(self) -> Counters:
        return self._counters

    def __setstate__(self, counters: Counters) -> None:
        self._open(counters)


def told(is_on: bool, digest: Digest | None) -> str:
    """What ``digest()`` returns, or a ReuseError that says why there is nothing to return."""
    if not is_on:
        raise ReuseError("digest() needs digest=True, given when this was made")
    if digest is None:
        raise ReuseError(
            "there is no digest yet: no pass was delivered whole (without another one of the same "
            "epoch beside it)"
        )
    return str(digest)
