"""A DataLoader over a ReuseDataset that counts its epochs."""

import multiprocessing
from collections.abc import Iterator, Mapping
from typing import Any, Self

from torch.utils.data import DataLoader

from reuseloader.codec import Load, Save
from reuseloader.dataset import ReuseDataset, of_another_loader
from reuseloader.digest import Digest, told
from reuseloader.epochs import EpochClock
from reuseloader.errors import StateMismatchError, warn
from reuseloader.fetcher import Build, Finish, StorePath
from reuseloader.model import WORKERS, Pipeline
from reuseloader.order import SHARED
from reuseloader.pass_order import PassOrder
from reuseloader.pickling import explain_pickling
from reuseloader.policy import ReusePolicy
from reuseloader.report import Report
from reuseloader.sampler import ReuseSampler, loader_sampler
from reuseloader.stats import PassTimes, PassWatch, Stats
from reuseloader.validate import instance


class ReuseDataLoader(DataLoader[Any]):
    """`torch.utils.data.DataLoader` that builds each sample once in ``lifetime`` epochs.

    Each ``iter(loader)`` begins the next epoch, also after a pass that was broken off; a peek such
    as ``next(iter(loader))`` costs one. `set_epoch` goes back. Iterators alive side by side each
    stay in their own epoch (with ``persistent_workers`` there is one at a time, as in DataLoader).

    Args:
        build, size, path, fingerprint, save, load, format, finish, digest: see `ReuseDataset`.
        lifetime, seed, balanced: see `ReusePolicy`.
        start_epoch: the epoch of the first pass; a resumed run gives the one it stopped in.
        rank, world_size, placement: see `ReuseSampler`; for the loader's own order only.
        options: every option of DataLoader, with its meaning there. A sampler or
            batch_sampler is followed as it is; its ``set_epoch``, if any, is called at each pass.
            With ranks, ``drop_last=True`` also leaves out the few samples that do not go round,
            which some ranks would repeat: then no sample comes twice, and all batches are full.
            ``dataset`` is for trainers alone, see below.

    Trainers such as Lightning make a loader anew, from attributes named like its arguments, to put
    a sampler around its sampler. The new loader then has the old one's ``dataset``, and both count
    with one clock: no epoch is lost, and each sees what is set on the other.

    Raises:
        TypeError, ValueError: an argument is not as described.
        OSError: ``path`` cannot be made or written.
    """

    dataset: ReuseDataset

    def __init__(
        self,
        build: Build,
        size: int,
        path: StorePath,
        *,
        lifetime: int,
        seed: int = 0,
        start_epoch: int = 0,
        fingerprint: str = "",
        save: Save | None = None,
        load: Load | None = None,
        format: str = "torch",
        finish: Finish | None = None,
        digest: bool = False,
        balanced: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        placement: str = SHARED,
        **options: Any,
    ) -> None:
        policy = ReusePolicy(lifetime, seed, balanced=balanced)
        theirs = [name for name in ("sampler", "batch_sampler") if options.get(name) is not None]
        ranks = {"rank": rank, "world_size": world_size, "placement": placement}
        inner = loader_sampler(*(options[name] for name in theirs))
        drawn = options.get("sampler"), getattr(options.get("batch_sampler"), "sampler", None)
        if theirs and (inner is None or all(sampler is not inner for sampler in drawn)):
            for name, value in ranks.items():
                if value not in (None, SHARED):
                    raise ValueError(
                        f"{name} must not be given together with {theirs[0]}, got {name}={value!r}:"
                        f" a sampler of your own is followed as it is. Let it shard by itself; and "
                        f"if a trainer put it here, tell it not to "
                        f"(Lightning: Trainer(use_distributed_sampler=False))"
                    )
        if not theirs:
            shuffle = options.pop("shuffle", None) or False  # DataLoader's words for False
            instance(bool, "shuffle", shuffle)
        if "dataset" in options:
            dataset = of_another_loader(options.pop("dataset"), build, size, policy, theirs)
            self._clock = dataset._clock
        else:
            self._clock = EpochClock(start_epoch) if inner is None else inner._clock
            dataset = ReuseDataset(
                build,
                size,
                path,
                policy,
                fingerprint=fingerprint,
                save=save,
                load=load,
                format=format,
                finish=finish,
                digest=digest,
            )
            dataset._join(self._clock)
        # what a trainer looks for to make this loader anew
        self.build, self.size, self.path = build, size, path
        self.lifetime, self.seed, self.balanced = lifetime, seed, balanced
        self.start_epoch = start_epoch
        self.fingerprint, self.save, self.load = fingerprint, save, load
        self.format, self.finish = format, finish
        self.rank, self.world_size, self.placement = rank, world_size, placement
        self._own_sampler: ReuseSampler | None = None
        if not theirs:
            self._own_sampler = ReuseSampler(
                len(dataset),
                policy,
                shuffle=shuffle,
                drop_last=bool(options.get("drop_last", False)),
                rank=rank,
                world_size=world_size,
                placement=placement,
            )
            self._own_sampler._join(self._clock)
            options["sampler"] = self._own_sampler
        super().__init__(dataset, **options)
        self._pass_order = PassOrder(
            super()._index_sampler,
            self._own_sampler,
            inner,
            self._clock,
            batched=self.batch_sampler is not None,
        )
        self._times: PassTimes | None = None
        self._digest: Digest | None = None
        self._newest: object = None  # stands for the newest pass, and does not keep it alive

    @property
    def policy(self) -> ReusePolicy:
        """The rule of reuse."""
        return self.dataset.policy

    @property
    def epoch(self) -> int:
        """The epoch of the newest pass begun; before any, and once set, that of the next."""
        return self._clock.epoch

    @property
    def next_epoch(self) -> int:
        """The epoch that the next ``iter(loader)`` will have."""
        return self._clock.next_epoch

    def stats(self) -> Stats:
        """What was read, built and stored so far, by this process and all workers."""
        return self.dataset.stats()

    def report(self) -> Report:
        """What `stats` and the newest pass mean, for people: ``print(loader.report())``."""
        newest = self._times
        return Report.of(
            self.stats(),
            newest,
            size=newest.samples if newest else self.size,
            lifetime=self.lifetime,
            pipeline=Pipeline(self.num_workers, WORKERS),
        )

    def digest(self) -> str:
        """A text for the samples of the newest pass that was delivered whole.

        It equals that of another pass of the same epoch exactly if the same samples were delivered,
        in whatever order, with the same content; in whatever batches, by whatever workers, by this
        or by `reuseloader.nodes`.

        Raises:
            ReuseError: ``digest=True`` was not given, or there was no such pass.
        """
        return told(self.dataset._digests is not None, self._digest)

    def set_epoch(self, epoch: int) -> None:
        """Give the next pass this epoch; the same on ``loader.sampler`` and ``loader.dataset``."""
        self._clock.set(epoch)

    def state_dict(self) -> dict[str, int]:
        """One number: the epoch under way, or the next one once the newest pass has ended."""
        return {"epoch": self._clock.resume_epoch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on with the epoch of ``state``, from its start."""
        if not isinstance(state, Mapping) or set(state) != {"epoch"}:
            raise StateMismatchError(
                f"the state must be a dict of a ReuseDataLoader, with an int epoch alone, got "
                f"{state!r}"
            )
        self.set_epoch(state["epoch"])

    def __iter__(self) -> "Iterator[Any]":  # type: ignore[override]  # DataLoader's, watched
        this = object()
        if self._own_sampler is None:
            inner = getattr(self.batch_sampler, "sampler", None)
            for sampler in {id(s): s for s in (self.sampler, self.batch_sampler, inner)}.values():
                set_epoch = getattr(sampler, "set_epoch", None)
                if set_epoch is not None:
                    set_epoch(self._clock.next_epoch)  # which may come back to the clock
        epoch = self._clock.begin(this)
        self._newest = this
        digests = self.dataset._digests
        before = None if digests is None else digests.begin(epoch)
        try:
            return _LoaderPass(self, this, epoch, before, super().__iter__())
        except Exception as error:
            self._clock.end(this)
            if self.num_workers > 0:
                explain_pickling(
                    error,
                    self.multiprocessing_context or multiprocessing.get_context(),
                    **self.dataset._fetcher.parts,
                    collate_fn=self.collate_fn,
                    worker_init_fn=self.worker_init_fn,
                )
            raise

    @property
    def _index_sampler(self) -> Any:
        # DataLoader's iterators draw from this, and persistent ones draw from it again at every
        # pass. While DataLoader.__init__ runs there is no pass order yet.
        pass_order = getattr(self, "_pass_order", None)
        return super()._index_sampler if pass_order is None else pass_order

    def close(self) -> None:
        """End the newest pass and persistent workers, warn of what went wrong, close the store."""
        self._newest = None
        self._clock.end_any()
        if self._iterator is not None:
            self._iterator._shutdown_workers()  # type: ignore[attr-defined]  # has workers
            self._iterator = None
        self.dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _LoaderPass(Iterator[Any]):
    """DataLoader's iterator of one pass; tells the loader when the pass is over."""

    def __init__(
        self,
        loader: ReuseDataLoader,
        this: object,
        epoch: int,
        before: Digest | None,
        batches: Any,
    ) -> None:
        self._loader = loader
        self._this = this
        self._epoch = epoch
        self._before = before
        self._batches = batches
        self._drawn = loader._pass_order.drawn
        self._is_new = True
        self._watch = PassWatch()

    def __next__(self) -> Any:
        if self._loader.persistent_workers and self._loader._newest is not self._this:
            raise RuntimeError(
                "this pass has ended: with persistent_workers a loader has one iterator at a time, "
                "and a newer iter(loader) has begun"
            )
        if self._is_new:
            self._is_new = False
            if self._loader._newest is self._this and self._loader._clock.is_set:
                _warn_of_late_epoch(self._epoch, self._loader._clock.epoch)
        self._watch.ask()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader._times = self._watch.ended(self._epoch, self._drawn.count)
            self._loader._digest = self._whole_digest()
            self._end()
            raise
        self._watch.got()
        return batch

    def _whole_digest(self) -> Digest | None:
        digests = self._loader.dataset._digests
        if digests is None or self._before is None:
            return None
        digest = digests.of(self._epoch) - self._before
        return digest if digest.count == self._drawn.count else None

    def __len__(self) -> int:
        return len(self._batches)

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        self._loader._clock.end(self._this)
        self._loader.dataset._fetcher.tally.warn()


def _warn_of_late_epoch(begun: int, told: int) -> None:
    """Warn that a pass has begun in one epoch before another one was set. Never raises."""
    if begun != told:
        warn(
            f"epoch {told} was set after iter(loader) had begun a pass of epoch {begun}, which "
            f"stays in epoch {begun}. Set the epoch before; a Lightning Trainer that resumes, or "
            f"starts in another epoch, needs it as start_epoch (README, 'With Lightning')",
            stacklevel=4,
        )
