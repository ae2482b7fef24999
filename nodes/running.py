"""A pass of ReuseMapper under way: what was pulled from its source and not delivered."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import compress
from typing import Any

from reuseloader.digest import Digest
from reuseloader.nodes.progress import Progress
from reuseloader.nodes.worker import Request
from reuseloader.stats import PassWatch

Taken = tuple[int, Request, Any]  # number, request and result of an item


class Unit:
    """The items that go to a worker together, if they need one."""

    __slots__ = ("asked", "future", "numbers", "requests")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.requests: list[Request] = []
        self.asked: list[bool] = []  # which of the requests went to a worker, if there are any
        self.future: Future[Any] | None = None

    def add(self, number: int, request: Request) -> None:
        """One more item, by its number in the pass."""
        self.numbers.append(number)
        self.requests.append(request)

    def questions(self) -> list[Request]:
        """The requests that need a worker."""
        return list(compress(self.requests, self.asked))


class Running:
    """One pass: its progress, and what lies between pulling and delivering.

    Args:
        progress: where it begins.
        is_resumed: whether it goes on from a state; its times are then not those of a whole pass.
        digest: the words of that of what was delivered before, if anything was.
        is_digested: whether ``digest`` knows of all that was delivered before.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        is_resumed: bool,
        digest: Sequence[int] | None,
        is_digested: bool,
    ) -> None:
        self.progress = progress
        self.is_resumed = is_resumed
        self.watch = PassWatch()
        self.pulled: Request | None = None  # the newest
        self.samples = 0  # delivered
        self.current: tuple[int, Request] | None = None  # what is made without a window
        self.window: deque[Unit] = deque()
        self.building = 0  # units of the window that have a future
        self.ready: deque[Taken] = deque()
        self.digest = None if digest is None else Digest(*digest)  # of what was delivered so far
        self._is_digested = is_digested
        self.ended = False
        self.error: Exception = StopIteration()

    @property
    def epoch(self) -> int:
        """That of what was pulled last; 0 before."""
        return 0 if self.pulled is None else self.pulled.epoch

    def add_to_digest(self, request: Request, delivered: Any) -> None:
        """One more item was delivered; one of another epoch begins anew."""
        for digest in request.digests(delivered):
            before = self.digest
            same = before is not None and before.epoch == digest.epoch
            self.digest = before + digest if before is not None and same else digest

    def whole_digest(self) -> Digest | None:
        """Of the pass, now that it has ended; None if a part of it is not known."""
        if not self._is_digested:
            return None
        return self.digest or Digest(self.epoch)

    def cancel(self) -> None:
        """Nobody wants what has not been begun."""
        for unit in tuple(self.window):  # at once: an old thread may still be appending
            if unit.future is not None:
                unit.future.cancel()
