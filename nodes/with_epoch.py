"""Pairs for the index node that a pipeline already has."""

import threading
from collections.abc import Mapping
from typing import Any

from torchdata.nodes import BaseNode

from reuseloader.errors import StateMismatchError
from reuseloader.nodes.fence import Fence
from reuseloader.order import paired
from reuseloader.validate import MAX_INT, instance, int_at_least


class WithEpoch(BaseNode[Any]):
    """Pairs every index of ``source`` with the number of the pass.

    An index becomes an `IndexEpoch`; a list or tuple of indices becomes a list of them. Each reset
    without a state is the next epoch; the epoch is part of the state.

    Args:
        source: a node of ints (of any integer type), or of lists of them.
        start_epoch: the first epoch.

    Raises:
        TypeError, ValueError: an argument or, later, an item of ``source`` is not as described.
    """

    EPOCH_KEY = "epoch"
    SOURCE_KEY = "source"

    def __init__(self, source: BaseNode[Any], *, start_epoch: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source: BaseNode[Any] = instance(BaseNode, "source", source)
        self._next_epoch = int_at_least(0, "start_epoch", start_epoch)
        self._fence: Fence[_Epoch] = Fence()
        self._pulling = threading.Lock()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on where ``initial_state`` was taken."""
        super().reset(initial_state)
        with self._pulling:
            if initial_state is None:
                epoch, source_state = self._next_epoch, None
            else:
                epoch, source_state = self._checked(initial_state)
            self._next_epoch = epoch + 1
            self._fence.begin(_Epoch(epoch))
            self.source.reset(source_state)

    def _checked(self, state: dict[str, Any]) -> tuple[int, Any]:
        wanted = {self.EPOCH_KEY, self.SOURCE_KEY}
        epoch = state.get(self.EPOCH_KEY) if isinstance(state, Mapping) else None
        if type(epoch) is not int or not 0 <= epoch < MAX_INT or not wanted <= set(state):
            raise StateMismatchError(
                f"the state must be one of WithEpoch, with {self.EPOCH_KEY} and {self.SOURCE_KEY}, "
                f"got {state!r}. Load it into a graph of the same nodes"
            )
        return epoch, state[self.SOURCE_KEY]

    def next(self) -> Any:
        """The next pair, or list of pairs."""
        with self._pulling:  # a reset in between would hand an item of the new pass to the old one
            epoch = self._fence.check().number
            item = next(self.source)
        return paired(item, epoch)

    def get_state(self) -> dict[str, Any]:
        """The epoch and the state of the source."""
        return {
            self.EPOCH_KEY: self._fence.mine().number,
            self.SOURCE_KEY: self.source.state_dict(),
        }


class _Epoch:
    """One pass; an object of its own, so that two passes of one epoch differ."""

    def __init__(self, number: int) -> None:
        self.number = number
