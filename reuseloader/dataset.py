"""A map-style dataset over the fetcher."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

from torch.utils.data import Dataset

from reuseloader.codec import Load, Save
from reuseloader.digest import SharedDigests, told
from reuseloader.epochs import EpochClock
from reuseloader.fetcher import Build, Fetcher, Finish, StorePath
from reuseloader.order import IndexEpoch
from reuseloader.policy import ReusePolicy
from reuseloader.report import Report
from reuseloader.stats import Stats
from reuseloader.validate import exact_int, instance, int_at_least


class ReuseDataset(Dataset[Any]):
    """A map-style dataset whose samples are each built once in ``policy.lifetime`` epochs.

    ``dataset[i]`` is sample i of the epoch that `set_epoch` gave (0 at first), which persistent
    workers see too; ``dataset[IndexEpoch(i, e)]`` is that of epoch e. A list of either is a list of
    samples.

    Args:
        build: ``build(key) -> sample``, called with the `ReuseKey` of the first use.
            Its randomness must come from the key: ``key.generator()``, ``key.rng()``, ``key.seed``,
            or for what knows global states alone a ``with key.seeded()``. `FromDataset` makes one
            of a dataset.
        size: the number of samples; indices are 0 .. size - 1.
        path: a directory of this dataset's own, made if it is not there; or a store.
        policy: the rule of reuse.
        fingerprint: what the samples depend on besides index and seed (data, code, settings).
            Samples stored under another fingerprint are built anew.
        save: ``save(sample, file)`` in place of `torch.save`; sees the sample alone.
        load: ``load(file)`` in place of `torch.load`; must return just what ``save`` was given.
        format: ``"torch"``: any object, stored by `torch.save` unless ``save`` is given.
            ``"tensors"``: several times as fast, without pickle, for nested dict, list and tuple of
            tensors, NumPy arrays, str, bytes, int, float, bool and None; see `reuseloader.tensors`.
        finish: ``finish(sample, key) -> sample``, a cheap random last part run at every use with
            the key of that use, never stored. The sample is its own, to be changed in place too: of
            what ``build`` returns it gets a deep copy, in which each tensor is a leaf.
        digest: whether `digest` is to be had; costs about a tenth of a millisecond per megabyte.

    Raises:
        TypeError, ValueError: an argument is not as described.
        OSError: ``path`` cannot be made or written.
    """

    def __init__(
        self,
        build: Build,
        size: int,
        path: StorePath,
        policy: ReusePolicy,
        *,
        fingerprint: str = "",
        save: Save | None = None,
        load: Load | None = None,
        format: str = "torch",
        finish: Finish | None = None,
        digest: bool = False,
    ) -> None:
        self._size = int_at_least(0, "size", size)
        instance(bool, "digest", digest)
        self._fetcher = Fetcher(
            build,
            path,
            policy,
            size=self._size,
            fingerprint=fingerprint,
            save=save,
            load=load,
            format=format,
            finish=finish,
        )
        self._digests = SharedDigests() if digest else None
        self._clock = EpochClock()
        self._of_loader = False

    def _join(self, clock: EpochClock) -> None:
        """Count with a loader's clock, and leave the warnings to the end of its passes."""
        self._clock = clock
        self._of_loader = True

    @property
    def policy(self) -> ReusePolicy:
        """The rule of reuse."""
        return self._fetcher.policy

    @property
    def epoch(self) -> int:
        """The epoch of ``dataset[i]``; inside a ReuseDataLoader, that of its newest pass."""
        return self._clock.epoch

    def set_epoch(self, epoch: int) -> None:
        """Give ``dataset[i]``, here and in every worker, this epoch from now on."""
        self._fetcher.tally.warn()
        self._clock.set(epoch)
        if self._digests is not None:
            self._digests.begin(epoch)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        # without this, an IndexError of build's own would end a loop over the dataset in silence
        return (self[index] for index in range(self._size))

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, list):
            return self.__getitems__(item)
        pair = self._pair(item)
        sample = self._fetcher.fetch(pair)
        if self._digests is not None:
            self._digests.add(pair, sample)
        if not self._of_loader and self._fetcher.tally.has_news:
            self._fetcher.tally.warn()
        return sample

    def __getitems__(self, items: Sequence[Any]) -> list[Any]:
        """The samples of a batch; DataLoader calls this."""
        return [self[item] for item in items]

    def _pair(self, item: Any) -> IndexEpoch:
        index, epoch = item if isinstance(item, IndexEpoch) else (item, self.epoch)
        index = exact_int("an index into ReuseDataset", index)
        if not -self._size <= index < self._size:
            raise IndexError(f"index {index} is out of range for size {self._size}")
        return IndexEpoch(index % self._size, epoch)

    def stats(self) -> Stats:
        """What was read, built and stored so far, by this process and all workers."""
        return self._fetcher.tally.stats()

    def report(self) -> Report:
        """What `stats` means, for people; who waits for its samples a dataset does not know."""
        return Report.of(
            self.stats(), None, size=self._size, lifetime=self.policy.lifetime, pipeline=None
        )

    def digest(self) -> str:
        """A text for the samples delivered in ``epoch``, by all workers, since it was set.

        It says how many they were, and equals that of other samples of the same epoch exactly if
        they are the same ones, in whatever order, with the same content.

        Raises:
            ReuseError: ``digest=True`` was not given, or nothing was delivered.
        """
        newest = None if self._digests is None else self._digests.since_begun(self.epoch)
        return told(self._digests is not None, newest if newest and newest.count else None)

    def close(self) -> None:
        """Warn of what went wrong, if anything did, and release the store."""
        self._fetcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def of_another_loader(
    dataset: Any, build: Build, size: int, policy: ReusePolicy, samplers: list[str]
) -> ReuseDataset:
    """Return the dataset of the loader that a trainer replaces; TypeError if it is not that."""
    if (
        samplers
        and isinstance(dataset, ReuseDataset)
        and dataset._of_loader
        and dataset._fetcher.build is build
        and (len(dataset), dataset.policy) == (size, policy)
    ):
        return dataset
    raise TypeError(
        f"dataset must not be given, got {dataset!r}: ReuseDataLoader makes its own from build and "
        f"size. (A trainer that makes a loader anew gives the old one's, with a sampler)"
    )
