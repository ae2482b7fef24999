"""A torch Sampler of pairs, for DataLoader and StatefulDataLoader."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Sampler

from reuseloader.epochs import EpochClock
from reuseloader.order import IndexEpoch, Pass
from reuseloader.policy import ReusePolicy
from reuseloader.validate import instance


class ReuseSampler(Sampler[IndexEpoch]):
    """Yields each of ``size`` indices once a pass, paired with the epoch of that pass.

    Each pass is the next epoch; it counts from its first pair on, since DataLoader and trainers
    call ``iter(sampler)`` more often than they use the result. `state_dict` describes the newest
    iterator; a loaded state is where the next pass begins.

    Args:
        size: the number of samples.
        policy: the rule of reuse, which also gives the order.
        start_epoch: the epoch of the first pass.
        shuffle: False for the order 0, 1, 2, ... in every epoch.
    """

    def __init__(
        self, size: int, policy: ReusePolicy, *, start_epoch: int = 0, shuffle: bool = True
    ) -> None:
        self._order = instance(ReusePolicy, "policy", policy).sample_order(size, shuffle=shuffle)
        self._clock = EpochClock(start_epoch)
        self._position = 0  # where the next pass begins
        self._newest: Pass | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the newest pass begun, or that of the next before any."""
        return self._clock.epoch

    def set_epoch(self, epoch: int) -> None:
        """Give the next pass this epoch. A loaded position stays if it is of this epoch."""
        if epoch != self._clock.next_epoch:
            self._position = 0
        self._clock.set(epoch)
        self._newest = None

    def __len__(self) -> int:
        return self._order.size

    def __iter__(self) -> Iterator[IndexEpoch]:
        self._newest = None
        return self._run()

    def _join(self, clock: EpochClock) -> None:
        """Count with a loader's clock instead of an own one."""
        self._clock = clock

    def _pairs(self, epoch: int) -> Iterator[IndexEpoch]:
        """The pairs of one pass that a loader counts."""
        return Pass(self._order).begin(epoch)

    def _run(self) -> Iterator[IndexEpoch]:
        this = self._newest = Pass(self._order, self._position)
        self._position = 0  # a loaded place is used up by the first pass that begins
        try:
            yield from this.begin(self._clock.begin(this))
        finally:
            self._clock.end(this)

    def state_dict(self) -> dict[str, int]:
        """Where to go on, as a flat dict of ints: the newest iterator's place, or the next pass."""
        newest = self._newest
        if newest is None or newest.epoch is None:
            return self._order.state(self._clock.next_epoch, self._position)
        if newest.position == len(self):
            return self._order.state(newest.epoch + 1, 0)
        return self._order.state(newest.epoch, newest.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there with the next ``iter``; StateMismatchError if it is of another order."""
        epoch, self._position = self._order.read_state(state)
        self._clock.set(epoch)
        self._newest = None
