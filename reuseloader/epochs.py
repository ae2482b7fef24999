"""Which epoch is it, and which comes next: one clock for a dataset, its sampler and its loader."""

from typing import Any

import numpy as np
import numpy.typing as npt

from reuseloader.shared import SharedBytes, settle_before_fork
from reuseloader.validate import int_at_least


class EpochClock:
    """Counts passes. Workers see every change; copies and other ranks have a clock of their own.

    ``epoch`` is the epoch of the newest pass begun; before any pass, and after `set`, the epoch
    that the next pass will have. ``next_epoch`` is what it says.
    """

    def __init__(self, start_epoch: int = 0) -> None:
        epoch = int_at_least(0, "start_epoch", start_epoch)
        self._own((epoch, epoch))

    def _own(self, numbers: tuple[int, int]) -> None:
        settle_before_fork(self)
        self._shared = SharedBytes(16)
        self._live = self._shared.view("int64")  # epoch and next epoch, as workers see them
        self._under_way: object = None
        self._move(*numbers)

    def _move(self, epoch: int, next_epoch: int) -> None:
        self._live[:] = self._here = epoch, next_epoch

    def settle(self) -> None:
        """A rank goes on with the epoch it was handed, by itself."""
        if self._shared.is_foreign:
            self._own(self._here)

    def _numbers(self) -> npt.NDArray[np.int64]:
        self.settle()
        return self._live

    @property
    def epoch(self) -> int:
        """The epoch of the newest pass begun."""
        return int(self._numbers()[0])

    @property
    def next_epoch(self) -> int:
        """The epoch that the next pass will have."""
        return int(self._numbers()[1])

    @property
    def is_set(self) -> bool:
        """Whether no pass has begun since `set`, or none at all."""
        return self.epoch == self.next_epoch

    @property
    def resume_epoch(self) -> int:
        """Where to go on after a restart: the epoch under way, or the next once it has ended."""
        return self.next_epoch if self._under_way is None else self.epoch

    def set(self, epoch: int) -> None:
        """Give the next pass this epoch."""
        epoch = int_at_least(0, "epoch", epoch)
        self.settle()
        self._move(epoch, epoch)
        self._under_way = None

    def begin(self, owner: object) -> int:
        """Begin a pass, and return its epoch. ``owner`` stands for the pass in `end`."""
        epoch = self.next_epoch
        self._move(epoch, epoch + 1)
        self._under_way = owner
        return epoch

    def end(self, owner: object) -> None:
        """The pass of ``owner`` is over; of no consequence if a newer one has begun."""
        if self._under_way is owner:
            self._under_way = None

    def end_any(self) -> None:
        """No pass is under way any more."""
        self._under_way = None

    def __getstate__(self) -> dict[str, Any]:
        self.settle()  # a rank's workers are to see the rank's epochs
        return {"shared": self._shared, "numbers": self._here}

    def __setstate__(self, state: dict[str, Any]) -> None:
        settle_before_fork(self)
        self._shared = state["shared"]
        self._live = self._shared.view("int64")
        self._under_way = None
        self._here = state["numbers"]
        if self._shared.is_owned:  # a copy: new memory, the same epochs
            self._move(*self._here)
