"""Keeps the threads of a broken-off pass away from the next one."""

import threading
from typing import Generic, TypeVar

P = TypeVar("P")


class Fence(Generic[P]):
    """Knows the pass of a node, and which pass each thread reads.

    torchdata's prefetching threads are joined for about a second when a pass is broken off, and
    abandoned if a slow build holds them; they then go on pulling from the same nodes. A thread
    keeps the pass that it read first, until it resets the node itself; once that is no longer the
    node's pass, reading is an error. (An abandoned thread puts it where nobody looks; to a thread
    that lives across resets, StopIteration would be a silently empty epoch.)
    """

    def __init__(self) -> None:
        self._current: P | None = None
        self._local = threading.local()

    def begin(self, current: P) -> P | None:
        """A reset by this thread: everybody else's pass is over. Returns the pass before."""
        before, self._current = self._current, current
        self._local.mine = current
        return before

    def mine(self) -> P:
        """The pass that this thread reads; a thread that has read none joins the current one."""
        mine: P | None = getattr(self._local, "mine", None)
        if mine is None:
            mine = self._local.mine = self._current
        if mine is None:
            raise RuntimeError("the node was read before its first reset()")
        return mine

    def check(self) -> P:
        """The pass that this thread reads; RuntimeError if it was ended by a reset."""
        mine: P | None = getattr(self._local, "mine", None)
        if mine is None or mine is not self._current:
            mine = self.mine()
            self.require(mine)
        return mine

    def require(self, mine: P) -> None:
        """RuntimeError if this pass, which `check` gave, was ended by a reset since."""
        if not self.is_current(mine):
            raise RuntimeError(
                "the pass that this thread reads was ended by a reset in another thread: read each "
                "pass in the thread that began it, or in a new one"
            )

    def is_current(self, mine: P) -> bool:
        """Whether this pass, which `mine` gave, is still the node's."""
        return mine is self._current
