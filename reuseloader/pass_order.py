"""What one pass of a ReuseDataLoader draws from."""

from collections.abc import Iterator
from typing import Any, cast

from torch.utils.data import BatchSampler

from reuseloader.epochs import EpochClock
from reuseloader.order import paired
from reuseloader.sampler import ReuseSampler


class Drawn:
    """How many samples a pass has asked for."""

    count = 0


class PassOrder:
    """What a pass draws from: indices or batches of them, each paired with the pass's epoch.

    The epoch is read when a pass begins, in ``iter``, so that a later pass does not change it.

    Args:
        source: the loader's sampler, or batch sampler if ``batched``.
        own: the loader's own sampler, if ``source`` draws from that and from nothing else.
        inner: the own sampler of the loader that this one replaces, somewhere inside ``source``.
        clock: the loader's.
    """

    def __init__(
        self,
        source: Any,
        own: ReuseSampler | None,
        inner: ReuseSampler | None,
        clock: EpochClock,
        *,
        batched: bool,
    ) -> None:
        self._source = source
        self._own = own
        self._inner = inner
        self._clock = clock
        self._batched = batched
        self.drawn = Drawn()  # of the newest pass

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        self.drawn = Drawn()
        return self._counting(self.drawn, self._begun())

    def _counting(self, drawn: Drawn, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            drawn.count += len(item) if self._batched else 1
            yield item

    def _begun(self) -> Iterator[Any]:
        epoch = self._clock.epoch
        if self._own is None:
            return self._theirs(epoch)
        pairs: Iterator[Any] = self._own._pairs(epoch)
        if not self._batched:
            return pairs
        batches = BatchSampler(cast(Any, pairs), self._source.batch_size, self._source.drop_last)
        return iter(batches)

    def _theirs(self, epoch: int) -> Iterator[Any]:
        """The items of a foreign sampler, or batches by any iterable of indices."""
        if self._inner is not None:
            self._inner._handed = epoch  # just before it is drawn from
        for item in self._source:
            yield [paired(i, epoch) for i in item] if self._batched else paired(item, epoch)
