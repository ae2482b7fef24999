"""The node where a pipeline of pairs begins."""

from collections.abc import Iterator
from typing import Any

from torchdata.nodes import BaseNode

from reuseloader.nodes.fence import Fence
from reuseloader.order import IndexEpoch, Pass, SampleOrder
from reuseloader.policy import ReusePolicy
from reuseloader.validate import instance, int_at_least


class ReuseSampler(BaseNode[IndexEpoch]):
    """Yields each of ``size`` indices once an epoch, paired with that epoch.

    Each reset without a state is the next epoch, and so is one with a state of an ended epoch:
    torchdata's Loader would otherwise report that state for ever. The state is a flat dict of ints.

    Args:
        size: the number of samples.
        policy: the rule of reuse, which also gives the order.
        start_epoch: the first epoch.
        shuffle: False for the order 0, 1, 2, ... in every epoch.

    Raises:
        TypeError, ValueError: an argument is not as described.
        StateMismatchError: at a reset, the state belongs to another order of samples.
    """

    EPOCH_KEY = SampleOrder.EPOCH_KEY
    POSITION_KEY = SampleOrder.POSITION_KEY

    def __init__(
        self, size: int, policy: ReusePolicy, *, start_epoch: int = 0, shuffle: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.policy = policy
        self._order = instance(ReusePolicy, "policy", policy).sample_order(size, shuffle=shuffle)
        self._next_epoch = int_at_least(0, "start_epoch", start_epoch)
        self._fence: Fence[_Running] = Fence()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on where ``initial_state`` was taken."""
        super().reset(initial_state)
        if initial_state is None:
            epoch, position = self._next_epoch, 0
        else:
            epoch, position = self._order.read_state(initial_state)
        self._next_epoch = epoch + 1
        self._fence.begin(_Running(self._order, epoch, position))

    def next(self) -> IndexEpoch:
        """The next pair."""
        return next(self._fence.check().pairs)

    def get_state(self) -> dict[str, int]:
        """The epoch, the position in it, and what the order depends on."""
        running = self._fence.mine()
        return self._order.state(running.epoch, running.walk.position)


class _Running:
    """One walk through the order and its pairs yet to come."""

    def __init__(self, order: SampleOrder, epoch: int, position: int) -> None:
        self.epoch = epoch
        self.walk = Pass(order, position)
        self.pairs: Iterator[IndexEpoch] = self.walk.begin(epoch)
