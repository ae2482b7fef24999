"""A torch Sampler of pairs, for DataLoader and StatefulDataLoader."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Self

from torch.utils.data import DistributedSampler, Sampler

from reuseloader.epochs import EpochClock
from reuseloader.group import ForgottenRanks
from reuseloader.order import SHARED, IndexEpoch, Pass
from reuseloader.policy import ReusePolicy
from reuseloader.validate import instance


class ReuseSampler(Sampler[IndexEpoch]):
    """Yields each of ``size`` indices once a pass, paired with the epoch of that pass.

    Each pass is the next epoch; it counts from its first pair on, since DataLoader and trainers
    call ``iter(sampler)`` more often than they use the result. `state_dict` describes the newest
    iterator; a loaded state is where the next pass begins.

    With ``rank`` and ``world_size`` each rank yields its share: equally many pairs on all, and of
    the builds of an epoch equally many within one (plain orders with a shared store: by chance).
    Without, in a torch.distributed group of several ranks, it warns and shares nothing out.

    Args:
        size: the number of samples.
        policy: the rule of reuse, which also gives the order.
        start_epoch: the epoch of the first pass.
        shuffle: False for the order 0, 1, 2, ... in every epoch.
        rank, world_size: which of how many ranks this is, 0 <= rank < world_size; both or neither.
        placement: "shared" if all ranks use one store: one order, dealt to the ranks in blocks of
            ``lifetime``, new indices for a rank in every epoch. "local" if each has a store of its
            own: it owns a fixed part of the indices, so that it finds there what it has built.
        drop_last: leave out the few indices that do not go round. Otherwise ranks that lack one
            repeat one, of the first of the order ("local": of their own).

    Raises:
        TypeError, ValueError: an argument is not as described.
    """

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
        self._order = instance(ReusePolicy, "policy", policy).sample_order(
            size,
            shuffle=shuffle,
            rank=rank,
            world_size=world_size,
            placement=placement,
            drop_last=drop_last,
        )
        self._clock = EpochClock(start_epoch)
        self._start = (0, 0)  # position and origin where the next pass begins
        self._newest: Pass | None = None
        self._forgotten = ForgottenRanks(rank)
        self._of_loader = False
        self._handed: int | None = None  # the epoch of the next pass, which a loader has counted

    @property
    def epoch(self) -> int:
        """The epoch of the newest pass begun, or that of the next before any."""
        return self._clock.epoch

    def set_epoch(self, epoch: int) -> None:
        """Give the next pass this epoch. A loaded position stays if it is of this epoch."""
        if epoch != self._clock.next_epoch:
            self._start = (0, 0)
        self._clock.set(epoch)
        self._newest = None

    def __len__(self) -> int:
        return self._order.length()

    def __iter__(self) -> Iterator[IndexEpoch]:
        self._newest = None
        return _Pairs(self)

    def _join(self, clock: EpochClock) -> None:
        """Count with a loader's clock instead of an own one."""
        self._clock = clock
        self._of_loader = True

    def _pairs(self, epoch: int) -> Iterator[IndexEpoch]:
        """The pairs of one pass that a loader counts."""
        self._forgotten.look()
        return Pass(self._order).begin(epoch)

    def _run(self, walk: "_Walk") -> Iterator[IndexEpoch]:
        if walk.is_over:
            return
        handed, self._handed = self._handed, None
        if handed is not None:
            yield from Pass(self._order).begin(handed)
            return
        if not self._of_loader:  # else a trainer took it out of its loader, to shard it
            self._forgotten.look()
        this = self._newest = walk.newest = Pass(self._order, *self._start)
        self._start = (0, 0)  # a loaded place is used up by the first pass that begins
        try:
            yield from this.begin(self._clock.begin(this))
        finally:
            self._clock.end(this)

    def state_dict(self) -> dict[str, int | str]:
        """Where to go on: the newest iterator's place, or the next pass.

        A flat dict of ints and strings. With ``placement="shared"`` all ranks have the same, and
        another number of ranks can go on from it where each has yielded a multiple of ``lifetime``
        pairs, except in an epoch's last blocks, of which there are too few for all ranks.
        """
        newest = self._newest
        if newest is None or newest.epoch is None:
            return self._order.state(self._clock.next_epoch, *self._start)
        if newest.ended:
            return self._order.state(newest.epoch + 1)
        return self._order.state(newest.epoch, newest.position, newest.origin)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there with the next ``iter``; StateMismatchError if it is of another order."""
        epoch, position, origin = self._order.read_state(state)
        self._start = position, origin
        self._clock.set(epoch)
        self._newest = None


class _Walk:
    """What an iterator of a sampler and its generator both know."""

    newest: Pass | None = None
    is_over = False


class _Pairs(chain[IndexEpoch]):
    """An iterator of a sampler; a chain, so that a pair costs no call into Python.

    StatefulDataLoader keeps its state beside the sampler's. Loaded after a pass had ended, it makes
    two iterators and drops the first: that one stands for the rest of the old pass, and is empty.
    """

    OVER_KEY = "over"
    _walk: _Walk

    def __new__(cls, sampler: ReuseSampler) -> Self:
        walk = _Walk()
        this = super().__new__(cls, sampler._run(walk))
        this._walk = walk
        return this

    def state_dict(self) -> dict[str, int]:
        """Whether no pair is left."""
        newest = self._walk.newest
        return {self.OVER_KEY: int(self._walk.is_over or (newest is not None and newest.ended))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Yield nothing if that iterator had no pair left; else the sampler knows where it is."""
        self._walk.is_over = bool(state[self.OVER_KEY])


def loader_sampler(*samplers: Any) -> ReuseSampler | None:
    """The sampler of a ReuseDataLoader around which a trainer wrapped its own, if there is one."""
    todo, seen = list(samplers), set()
    while todo:
        sampler = todo.pop()
        if sampler is None or id(sampler) in seen:
            continue
        if isinstance(sampler, ReuseSampler) and sampler._of_loader:
            return sampler
        seen.add(id(sampler))
        todo += [getattr(sampler, name, None) for name in ("sampler", "batch_sampler")]
        if isinstance(sampler, DistributedSampler):  # Lightning puts a dataset around a sampler
            todo.append(getattr(sampler.dataset, "_sampler", None))
    return None
