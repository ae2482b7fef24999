"""What a loader has done and what went wrong, counted in all its workers; one warning a kind."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from reuseloader.counters import Counters
from reuseloader.errors import warn
from reuseloader.stats import Stats

_SLOTS = 4  # texts of first cases; processes share them
_TEXT = 500  # bytes of a text


class Column:
    """What is counted; plain integers, since an enum's cost more than the addition."""

    UNREADABLE = 0
    UNSAVED = 1
    HITS = 2
    NEW_GENERATION = 3
    ABSENT = 4
    OTHER_STAMP = 5
    DAMAGED = 6
    BYTES_READ = 7
    BYTES_WRITTEN = 8
    BUILD_NS = 9
    LOAD_NS = 10
    STORE_NS = 11
    FINISH_NS = 12
    COUNT = 13


class Kind(IntEnum):
    """What can go wrong with a store while the right sample is still delivered."""

    UNREADABLE = Column.UNREADABLE
    UNSAVED = Column.UNSAVED


class Miss(IntEnum):
    """Why a sample is built."""

    NEW_GENERATION = Column.NEW_GENERATION
    ABSENT = Column.ABSENT
    OTHER_STAMP = Column.OTHER_STAMP
    DAMAGED = Column.DAMAGED


_RULES = {
    Kind.UNREADABLE: "stored samples could not be read and were built anew",
    Kind.UNSAVED: "samples could not be stored and will be built anew at their next use",
}


class Tally:
    """Workers count here; the process that made it sums up, and warns, once for each kind.

    What goes right costs some tenths of a microsecond a sample. Times are in nanoseconds.
    """

    def __init__(self) -> None:
        self._counters = Counters(Column.COUNT, extra=_SLOTS * len(Kind) * _TEXT)
        self._begin()

    def _begin(self) -> None:
        self._warned: set[Kind] = set()
        self.has_news = False  # something went wrong in this process

    def join_workers(self) -> None:
        """This process is a worker of ReuseMapper."""
        self._counters.is_worker = True

    def hit(self, size: int, elapsed: int) -> None:
        """A record of ``size`` bytes was read and decoded."""
        with self._counters.lock:
            row = self._counters.row()
            row[Column.HITS] += 1
            row[Column.BYTES_READ] += size
            row[Column.LOAD_NS] += elapsed

    def built(self, why: Miss, elapsed: int) -> None:
        """A sample was built."""
        with self._counters.lock:
            row = self._counters.row()
            row[why] += 1
            row[Column.BUILD_NS] += elapsed

    def stored(self, size: int, elapsed: int) -> None:
        """A record was encoded and written."""
        with self._counters.lock:
            row = self._counters.row()
            row[Column.BYTES_WRITTEN] += size
            row[Column.STORE_NS] += elapsed

    def finished(self, elapsed: int) -> None:
        """A sample went through ``finish``."""
        with self._counters.lock:
            self._counters.row()[Column.FINISH_NS] += elapsed

    def note(self, kind: Kind, place: str, reason: str) -> None:
        """Count one case of what went wrong; the first of this process is kept as text."""
        self.has_news = True
        with self._counters.lock:
            self._counters.row()[kind] += 1
            slot = self._slot(kind, self._counters.number)
            if slot[0] == 0:
                text = f"{place}: {reason}".encode("utf-8", "replace")[:_TEXT]
                slot[: len(text)] = memoryview(text)

    def _slot(self, kind: Kind, row: int) -> npt.NDArray[np.uint8]:
        texts = self._counters.extra.reshape(_SLOTS, len(Kind), _TEXT)
        slot: npt.NDArray[np.uint8] = texts[row % _SLOTS, kind]
        return slot

    def _first(self, kind: Kind) -> str:
        """Place and reason of a first case; "" if there was none."""
        row = int(self._counters.by_process(kind).argmax())
        return bytes(self._slot(kind, row)).rstrip(b"\0").decode("utf-8", "replace")

    def count(self, kind: Kind) -> int:
        """How many cases of this kind there were, in all processes."""
        return self._counters.sums()[kind]

    def warn(self) -> None:
        """Warn of every kind that has come up and was not warned of yet. Never raises."""
        self.has_news = False
        if not self._counters.is_owned:
            return
        for kind in Kind:
            if kind not in self._warned and self.count(kind):
                self._warned.add(kind)
                message = (
                    f"{self.count(kind)} {_RULES[kind]} so far, the first: {self._first(kind)}. "
                    f"This is said once; the samples delivered are right"
                )
                warn(message, stacklevel=3)

    def stats(self) -> Stats:
        """The totals so far."""
        sums = self._counters.sums()
        return Stats(
            hits=sums[Column.HITS],
            new_generation=sums[Column.NEW_GENERATION],
            absent=sums[Column.ABSENT],
            other_stamp=sums[Column.OTHER_STAMP],
            damaged=sums[Column.DAMAGED],
            unsaved=sums[Column.UNSAVED],
            unsaved_reason=self._first(Kind.UNSAVED),
            bytes_read=sums[Column.BYTES_READ],
            bytes_written=sums[Column.BYTES_WRITTEN],
            build_seconds=sums[Column.BUILD_NS] / 1e9,
            load_seconds=sums[Column.LOAD_NS] / 1e9,
            store_seconds=sums[Column.STORE_NS] / 1e9,
            finish_seconds=sums[Column.FINISH_NS] / 1e9,
        )

    def __getstate__(self) -> dict[str, Counters]:
        return {"counters": self._counters}

    def __setstate__(self, state: dict[str, Counters]) -> None:
        self._counters = state["counters"]
        self._begin()
