"""The node where a pipeline of pairs begins."""

from collections.abc import Iterator
from typing import Any

from torchdata.nodes import BaseNode

from reuseloader.group import ForgottenRanks
from reuseloader.nodes.fence import Fence
from reuseloader.order import SHARED, IndexEpoch, Pass, Place, SampleOrder
from reuseloader.policy import ReusePolicy
from reuseloader.validate import instance, int_at_least


class ReuseSampler(BaseNode[IndexEpoch]):
    """Yields each of ``size`` indices once an epoch, paired with that epoch.

    Each reset without a state is the next epoch, and so is one with a state of an ended epoch:
    torchdata's Loader would otherwise report that state for ever. The state is a flat dict of ints
    and strings; with ``placement="shared"`` all ranks have the same, and another number of ranks
    can go on from it where each has yielded a multiple of ``lifetime`` pairs, except in an epoch's
    last blocks, of which there are too few for all ranks.

    Args:
        size, policy, shuffle, rank, world_size, placement, drop_last: see the sampler of the same
            name in `reuseloader`.
        start_epoch: the first epoch.

    Raises:
        TypeError, ValueError: an argument is not as described.
        StateMismatchError: at a reset, the state belongs to another order of samples, or another
            number of ranks cannot go on there.
    """

    EPOCH_KEY = SampleOrder.EPOCH_KEY
    POSITION_KEY = SampleOrder.POSITION_KEY
    ORIGIN_KEY = SampleOrder.ORIGIN_KEY
    WORLD_SIZE_KEY = SampleOrder.WORLD_SIZE_KEY

    def __init__(
        self,
        size: int,
        policy: ReusePolicy,
        *,
        start_epoch: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        placement: str = SHARED,
        drop_last: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.policy = policy
        self._order = instance(ReusePolicy, "policy", policy).sample_order(
            size,
            shuffle=shuffle,
            rank=rank,
            world_size=world_size,
            placement=placement,
            drop_last=drop_last,
        )
        self._forgotten = ForgottenRanks(rank)
        self._next_epoch = int_at_least(0, "start_epoch", start_epoch)
        self._fence: Fence[_Running] = Fence()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on where ``initial_state`` was taken."""
        super().reset(initial_state)
        self._forgotten.look()
        if initial_state is None:
            place = Place(self._next_epoch)
        else:
            place = self._order.read_state(initial_state)
        self._next_epoch = place.epoch + 1
        self._fence.begin(_Running(self._order, place))

    def next(self) -> IndexEpoch:
        """The next pair."""
        return next(self._fence.check().pairs)

    def get_state(self) -> dict[str, int | str]:
        """The epoch, the rank's position in it, and what the order depends on."""
        running = self._fence.mine()
        return self._order.state(running.epoch, running.walk.position, running.walk.origin)


class _Running:
    """One walk through the order and its pairs yet to come."""

    def __init__(self, order: SampleOrder, place: Place) -> None:
        self.epoch = place.epoch
        self.walk = Pass(order, place.position, place.origin)
        self.pairs: Iterator[IndexEpoch] = self.walk.begin(place.epoch)
