"""Which items of a source were delivered, in whatever order, and where to go on from."""

import copy
from collections import deque
from collections.abc import Iterable
from typing import Any


class Progress:
    """Numbers the items as they are pulled from a source and keeps what resuming them takes.

    That is the source's state before the oldest item not delivered (or a little earlier, if the
    source is asked less often), how many items to skip from there, and the numbers, counted from
    there, of items beyond that were delivered early.
    """

    def __init__(self, source_state: Any, skip: int = 0, ahead: Iterable[int] = ()) -> None:
        self._snapshots = deque([(0, source_state)])
        self.pulled = 0
        self._complete = skip  # every number below is delivered
        self._ahead = set(ahead)  # and these above

    @property
    def is_level(self) -> bool:
        """Whether just what was pulled is delivered: the source's state is then all there is."""
        return self.pulled == self._complete and not self._ahead

    @property
    def is_short(self) -> bool:
        """Whether fewer items were pulled than had been delivered before the resume."""
        return self.pulled < max(self._complete, 1 + max(self._ahead, default=-1))

    def pull(self) -> int | None:
        """The number of the item just pulled, or None if it was delivered before the resume."""
        number = self.pulled
        self.pulled += 1
        return None if number < self._complete or number in self._ahead else number

    def snapshot(self, source_state: Any) -> None:
        """Keep the source's state after what was pulled so far."""
        self._snapshots.append((self.pulled, source_state))
        self._forget()

    def deliver(self, number: int) -> None:
        """The item of this number went to the consumer."""
        if number != self._complete:
            self._ahead.add(number)
            return
        self._complete += 1
        while self._complete in self._ahead:
            self._ahead.remove(self._complete)
            self._complete += 1
        self._forget()

    def _forget(self) -> None:
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= self._complete:
            self._snapshots.popleft()

    def resume(self) -> tuple[Any, int, list[int]]:
        """Source state, how many items to skip, and which beyond them were delivered."""
        base, source_state = self._snapshots[0]
        return (
            copy.deepcopy(source_state),
            self._complete - base,
            sorted(n - base for n in self._ahead),
        )
