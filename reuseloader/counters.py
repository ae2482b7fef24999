"""Integers that the processes of one loader count together, without locks between them."""

import os
import threading
import weakref
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from reuseloader.process import is_running
from reuseloader.shared import SharedBytes, settle_before_fork

_all: "weakref.WeakSet[Counters]" = weakref.WeakSet()


class Counters:
    """Columns of integers: each process adds to a row of its own, and `sums` adds up the rows.

    So no process waits for another, and no count is lost: the owner gives every process that it
    forks, or pickles this for, a row that no living process has (with more workers alive than
    rows, two may share one). A copy, or a rank that was handed this, counts by itself, from 0.

    Args:
        columns: how many integers.
        extra: bytes to share beside them.
        rows: one for this process, the others for its workers; those of dead ones are used again.
    """

    def __init__(self, columns: int, extra: int = 0, rows: int = 256) -> None:
        self._shape = rows, 1 + columns  # the first column has the pid
        self._extra = extra
        self._own()

    def _own(self) -> None:
        self._shared = SharedBytes(prod(self._shape) * 8 + self._extra)
        self._open(row=0)

    def _open(self, row: int) -> None:
        border = prod(self._shape) * 8
        self._table = self._shared.view("int64", 0, border).reshape(self._shape)
        self.extra = self._shared.view("uint8", border)
        self._given = row  # to the process that is forked next; in that process, its own
        self.is_worker = False  # of ReuseMapper; DataLoader's are known anyhow
        self.renew()
        settle_before_fork(self)
        _all.add(self)

    def renew(self) -> None:
        """In a process of its own: another row, and a lock that nobody holds."""
        self.lock = threading.Lock()
        self._row: memoryview | None = None

    @property
    def is_owned(self) -> bool:
        """Whether this process made them, and no worker did."""
        return self._shared.is_owned

    def settle(self) -> None:
        """Before a fork: a row for the new process. A rank counts by itself."""
        self._leave()
        if self.is_owned:
            self._given = self._free_row()

    def _leave(self) -> None:
        if not self.is_worker and self._shared.is_foreign:
            self._own()

    def _free_row(self) -> int:
        row, rows = self._given, self._shape[0]
        for _ in range(rows):
            row = row % (rows - 1) + 1
            pid = int(self._table[row, 0])
            if pid == 0 or not is_running(pid, 0):
                break
        return row

    def row(self) -> memoryview:
        """This process's integers, to add to; `lock` must be held."""
        if self._row is None:
            self._leave()
            self._table[self.number, 0] = os.getpid()
            self._row = self._table[self.number, 1:].data
        return self._row

    @property
    def number(self) -> int:
        """Which row is this process's."""
        return 0 if self.is_owned else self._given

    def sums(self) -> list[int]:
        """Each column over all processes so far."""
        self._leave()
        sums: list[int] = self._table[:, 1:].sum(axis=0).tolist()
        return sums

    def by_process(self, column: int) -> npt.NDArray[np.int64]:
        """A column, one integer a row."""
        self._leave()
        return self._table[:, 1 + column]

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {
            "shared": self._shared,
            "shape": self._shape,
            "extra": self._extra,
            "row": self._given,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shape, self._extra = state["shape"], state["extra"]
        self._shared = state["shared"]
        self._open(state["row"])


def _renew_all() -> None:
    for counters in tuple(_all):
        counters.renew()


os.register_at_fork(after_in_child=_renew_all)
