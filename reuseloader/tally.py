"""Counts of what went wrong while running, from all workers, and one warning about each kind."""

import os
import threading
from enum import IntEnum

import torch

from reuseloader.errors import warn
from reuseloader.shared import SharedBytes, settle_before_fork

_ROWS = 256  # one for the owner, the others for workers: nobody needs a lock across processes
_SLOTS = 16  # texts of first cases; rows share them
_TEXT = 500  # bytes of a text


class Kind(IntEnum):
    """What can go wrong with a store while the right sample is still delivered."""

    UNREADABLE = 0
    UNSAVED = 1


_RULES = {
    Kind.UNREADABLE: "stored samples could not be read and were built anew",
    Kind.UNSAVED: "samples could not be stored and will be built anew at their next use",
}


class Tally:
    """Workers count here; the process that made it warns, once for each kind."""

    def __init__(self) -> None:
        self._own()

    def _own(self) -> None:
        self._shared = SharedBytes(len(Kind) * (_ROWS * 8 + _SLOTS * _TEXT))
        self._open()

    def _open(self) -> None:
        settle_before_fork(self)
        border = _ROWS * len(Kind) * 8
        self._counts = self._shared.view("int64", 0, border).reshape(_ROWS, len(Kind))
        self._texts = self._shared.view("uint8", border).reshape(_SLOTS, len(Kind), _TEXT)
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._warned: set[Kind] = set()
        self.worker: int | None = None  # the number that a worker of ReuseMapper has
        self.has_news = False  # something was noted by this process

    def settle(self) -> None:
        """A rank counts and warns by itself."""
        if self.worker is None and self._shared.is_foreign:
            self._own()

    def note(self, kind: Kind, place: str, reason: str) -> None:
        """Count one case; the first of this process is kept as text."""
        self.settle()
        self.has_news = True
        row = self._row()
        if os.getpid() != self._pid:  # forked, perhaps while another thread held the lock
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            slot = self._texts[row % _SLOTS, kind]
            if slot[0] == 0:
                text = f"{place}: {reason}".encode("utf-8", "replace")[:_TEXT]
                slot[: len(text)] = memoryview(text)
            self._counts[row, kind] += 1

    def _row(self) -> int:
        worker = self.worker
        if worker is None:
            info = torch.utils.data.get_worker_info()
            if info is None:
                return 0
            worker = info.id
        return 1 + worker % (_ROWS - 1)

    def count(self, kind: Kind) -> int:
        """How many cases of this kind there were, in all processes."""
        return int(self._counts[:, kind].sum())

    def warn(self) -> None:
        """Warn of every kind that has come up and was not warned of yet. Never raises."""
        self.has_news = False
        if not self._shared.is_owned:
            return
        for kind in Kind:
            if kind not in self._warned and self.count(kind):
                self._warned.add(kind)
                row = int(self._counts[:, kind].argmax())
                first = (
                    bytes(self._texts[row % _SLOTS, kind]).rstrip(b"\0").decode("utf-8", "replace")
                )
                message = (
                    f"{self.count(kind)} {_RULES[kind]} so far, the first: {first}. "
                    f"This is said once; the samples delivered are right"
                )
                warn(message, stacklevel=3)

    def __getstate__(self) -> dict[str, SharedBytes]:
        self.settle()
        return {"shared": self._shared}

    def __setstate__(self, state: dict[str, SharedBytes]) -> None:
        self._shared = state["shared"]
        self._open()
