"""From the source of ReuseMapper: the next item, as a request, to one thread at a time."""

import threading
from typing import Any

from torchdata.nodes import BaseNode

from reuseloader.errors import StateMismatchError
from reuseloader.fetcher import Fetcher
from reuseloader.nodes.fence import Fence
from reuseloader.nodes.running import Running
from reuseloader.nodes.worker import BatchRequest, BuildRequest, Request
from reuseloader.order import IndexEpoch


class Pulling:
    """Pulls from a source, and takes a snapshot of its state every ``snapshot_frequency`` items."""

    def __init__(
        self,
        source: BaseNode[Any],
        fetcher: Fetcher,
        fence: Fence[Running],
        snapshot_frequency: int,
    ) -> None:
        self._source = source
        self._fetcher = fetcher
        self._fence = fence
        self._snapshot_frequency = snapshot_frequency  # 0 for never
        self.lock = threading.Lock()  # who holds it has the source for itself
        self.lists = False  # items come in lists

    def pull(self, running: Running) -> tuple[int, Request] | None:
        """Number and request of the next item that was not delivered before a resume.

        None if there is no more; what ended the source is raised once all before it is delivered.
        """
        if running.ended:
            return None
        progress, every = running.progress, self._snapshot_frequency
        with self.lock:
            self._fence.require(running)
            try:
                while True:
                    item = next(self._source)
                    number = progress.pull()
                    if every and progress.pulled % every == 0:
                        progress.snapshot(self._source.state_dict())
                    if number is not None:
                        running.pulled = self._request(item)
                        return number, running.pulled
            except Exception as error:
                running.error = error
                running.ended = True
                if isinstance(error, StopIteration) and progress.is_short:
                    running.error = StateMismatchError(
                        f"the state says that more items were delivered than source has given: "
                        f"{progress.pulled}. Load it into a graph of the same nodes"
                    )
                elif isinstance(error, StopIteration):  # an ended pass has a state without a rest
                    progress.snapshot(self._source.state_dict())
                return None

    def _request(self, item: Any) -> Request:
        if isinstance(item, IndexEpoch):
            return BuildRequest(self._fetcher.key(item))
        if isinstance(item, list) and all(isinstance(pair, IndexEpoch) for pair in item):
            self.lists = True
            return BatchRequest([BuildRequest(self._fetcher.key(pair)) for pair in item])
        raise TypeError(
            f"source must yield IndexEpoch pairs or lists of them, got {item!r}. "
            f"Put WithEpoch between a node of plain indices and ReuseMapper"
        )
