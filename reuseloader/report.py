"""What a loader has done so far, in words, and what other lifetimes would cost."""

from dataclasses import dataclass

from reuseloader.model import (
    CONSUMER,
    WORKERS,
    Costs,
    Pipeline,
    Prediction,
    smallest_hiding,
    steady_epoch,
)
from reuseloader.stats import PassTimes, Stats
from reuseloader.text import amount, duration, number, paragraph, plural, share, table

INPUT_BOUND = 0.05  # the share of a pass that training may wait before it counts as waiting
_ALWAYS = 0.9  # the share from which on what runs ahead of training does nothing but wait
_SHOWN = (1, 2, 4, 8)  # lifetimes that are always predicted


@dataclass(frozen=True)
class Report:
    """What a loader's counts mean: ``str(report)`` is for people, the fields are for programs.

    `dataclasses.asdict` makes a dict of it that `json.dumps` takes. Seconds are means of one
    sample, as a worker measured them. What has not been measured is None, or missing from
    ``predictions``.

    Attributes:
        stats: what the loader counted.
        newest: the times of the newest pass that has ended.
        waited: the share of it, 0 to 1, that training waited for samples; None behind a Prefetcher,
            whose thread takes the samples: how long training takes cannot be seen from here.
        input_bound: whether that is more than 5 %. Behind a Prefetcher True if its thread spent
            more than 90 % of the pass on getting samples: there never were enough; else None.
        size: how many samples a pass delivers here; None if that is not known.
        lifetime: that of the loader.
        pipeline: who does what; None if that is not known.
        hit_rate, expected_hit_rate: so far, and of epochs after epoch 0: (L-1)/L. From 0 to 1.
        build, hit, store, finish: seconds; ``store`` per build.
        predictions: epochs after the first at other lifetimes, by `reuseloader.model`.
        hiding: the smallest lifetime at which training never waits for a build; None if there is
            no such, or if ``predictions`` have only lifetime 1.
    """

    stats: Stats
    newest: PassTimes | None
    waited: float | None
    input_bound: bool | None
    size: int | None
    lifetime: int
    pipeline: Pipeline | None
    hit_rate: float | None
    expected_hit_rate: float
    build: float | None
    hit: float | None
    store: float | None
    finish: float | None
    predictions: tuple[Prediction, ...]
    hiding: int | None

    @classmethod
    def of(
        cls,
        stats: Stats,
        newest: PassTimes | None,
        *,
        size: int | None,
        lifetime: int,
        pipeline: Pipeline | None,
    ) -> "Report":
        """The report of these counts and times; the arguments are the fields of that name."""
        build = _mean(stats.build_seconds, stats.builds)
        hit = _mean(stats.load_seconds, stats.hits)
        store = _mean(stats.store_seconds, stats.builds) if lifetime > 1 else None
        finish = _mean(stats.finish_seconds, stats.samples)
        waited = None if newest is None else _waited(newest)
        hiding = None
        predictions: list[Prediction] = []
        if newest is not None and pipeline is not None and build is not None and size:
            costs = Costs(build, hit or 0.0, store or 0.0, finish or 0.0)
            training = 0.0 if waited is None else newest.elapsed * (1 - waited)
            if waited is not None:
                hiding = smallest_hiding(costs, pipeline, training=training, size=size)
            shown = {*_SHOWN, lifetime, hiding or 1}
            if hit is None:  # then only lifetime 1, at which nothing is read, can be told
                hiding, shown = (1 if hiding == 1 else None), {1}
            predictions = [
                steady_epoch(costs, pipeline, training=training, size=size, lifetime=one)
                for one in sorted(shown)
            ]
        return cls(
            stats=stats,
            newest=newest,
            waited=waited,
            input_bound=None if newest is None else _is_input_bound(newest),
            size=size,
            lifetime=lifetime,
            pipeline=pipeline,
            hit_rate=_mean(stats.hits, stats.samples),
            expected_hit_rate=(lifetime - 1) / lifetime,
            build=build,
            hit=hit,
            store=store,
            finish=finish,
            predictions=tuple(predictions),
            hiding=hiding,
        )

    def __str__(self) -> str:
        parts = self._setup(), self._counts(), self._unexpected(), self._pass(), self._outlook()
        return "\n\n".join(part for part in parts if part)

    def _setup(self) -> str:
        size = "" if self.size is None else f"{plural(self.size, 'sample')} an epoch, "
        workers = f", {plural(self.pipeline.num_workers, 'worker')}" if self.pipeline else ""
        return f"{size}lifetime {number(self.lifetime)}{workers}"

    def _counts(self) -> str:
        stats = self.stats
        if not stats.samples:
            return "No sample has been delivered yet."
        expected = share(self.expected_hit_rate, 1.0)
        rows = [
            ("delivered", number(stats.samples), f"{number(stats.builds)} of them built"),
            ("hit rate", share(stats.hits, stats.samples), f"{expected} expected after epoch 0"),
            ("a build", _time(self.build), ""),
        ]
        if self.store is not None:
            rows.append(("storing it", duration(self.store), ""))
        if self.hit is not None:
            rows.append(("a hit", duration(self.hit), amount(stats.bytes_read / stats.hits)))
        if stats.finish_seconds:
            rows.append(("finish", _time(self.finish), "at every use"))
        return "\n".join(
            table([(name, value, f"  {rest}") for name, value, rest in rows], "<><", "  ")
        )

    def _unexpected(self) -> str:
        """What the rule did not ask for, and what may be behind it."""
        stats = self.stats
        causes = (
            (
                stats.absent,
                "built because nothing was stored",
                "Expected where a run resumes over an empty directory, and after a pass that was "
                "broken off. Else files were deleted, or ranks with a directory each do not keep "
                "to samples of their own.",
            ),
            (
                stats.other_stamp,
                "built because what was stored had another stamp",
                "Another fingerprint, seed, lifetime or format wrote here: expected once after a "
                "change of one of them. Give runs that take turns a directory each.",
            ),
            (
                stats.damaged,
                "built because what was stored could not be read",
                "The ReuseWarning of the pass names the first: a failing disk, or a load that "
                "raises.",
            ),
            (stats.unsaved, "could not be stored", f"The first: {stats.unsaved_reason}"),
        )
        return "\n".join(
            f"{plural(count, 'sample')} {what}.\n{paragraph(why, '  ')}"
            for count, what, why in causes
            if count
        )

    def _pass(self) -> str:
        """The newest pass, and the verdict on it."""
        if self.pipeline is None:
            return "Whether training waits for samples, a dataset alone does not know."
        if self.newest is None:
            return "No pass has ended yet: whether training waits for samples is not known."
        epoch, elapsed = self.newest.epoch, self.newest.elapsed
        part = f"{duration(self.newest.waited)} of it ({share(self.newest.waited, elapsed)})"
        if self.newest.ahead:
            seen = (
                f"The thread that runs ahead of training (Prefetcher) was through with epoch "
                f"{epoch} in {duration(elapsed)}, and spent {part} on getting samples"
            )
        else:
            seen = f"Epoch {epoch} took {duration(elapsed)}. Training waited for samples for {part}"
        return paragraph(f"{seen}: {self._verdict(epoch)}.")

    def _verdict(self, epoch: int) -> str:
        if self.input_bound is None:
            return (
                "in the rest it was in nodes that follow, or enough was ready. Which of these, and "
                "whether training waited, cannot be seen from here"
            )
        if not self.input_bound:
            return "not input-bound, samples come as fast as training takes them"
        if epoch == 0 and self.lifetime > 1:
            return "input-bound, but epoch 0 builds every sample: look again after another"
        return "input-bound, training would be faster if samples came faster"

    def _outlook(self) -> str:
        """Other lifetimes, if enough is known to tell."""
        newest = self.newest
        if newest is None:
            return ""
        if not self.predictions:
            lacking = "no build has been timed" if self.build is None else "the size is not known"
            return f"What other lifetimes would cost cannot be told: {lacking}."
        rows: list[tuple[str, ...]] = [
            ("lifetime", "an epoch", "training waits", "", "builds", ""),
            *((*cells(at), self._remark(at, newest)) for at in self.predictions),
        ]
        if self.waited is None:  # nor is it known how long training takes
            rows = [(row[0], row[1], *row[4:]) for row in rows]
        lines = table(rows, ">" * (len(rows[0]) - 1) + "<", "  ")
        return "\n".join(
            ["Predicted for epochs after epoch 0:", "", *lines, "", paragraph(self._advice(newest))]
        )

    def _remark(self, at: Prediction, newest: PassTimes) -> str:
        remarks = []
        if at.lifetime == self.lifetime:
            known = newest.epoch and not newest.ahead
            remarks.append(f"now, took {duration(newest.elapsed)}" if known else "now")
        if at.lifetime == self.hiding:
            remarks.append("hides the builds")
        return f"  {'; '.join(remarks)}"

    def _advice(self, newest: PassTimes) -> str:
        if self.waited is None:
            return (
                "At least: how long training itself takes cannot be seen behind a Prefetcher. "
                "advise(step=...) predicts with it."
            )
        if self.hiding is None:
            if self.pipeline is None or self.build is None or self.hit is None:
                return (
                    "What a hit costs is not known, since none has been timed; advise() measures "
                    "it, and so predicts longer lifetimes."
                )
            return why_none(self.pipeline, Costs(self.build, self.hit, finish=self.finish or 0.0))
        never = "training never waits for a build"
        if self.hiding > self.lifetime:
            return f"Lifetime {self.hiding} is the smallest at which {never}."
        if self.input_bound and newest.epoch > 0:
            return (
                "These costs do not explain the waiting: collating and moving batches, or workers "
                "that share processors with training, take the rest."
            )
        if self.hiding < self.lifetime:
            return (
                f"Lifetime {self.hiding} is enough: {never}, and a longer one only makes samples "
                f"less fresh."
            )
        return f"Lifetime {self.hiding} is right: the smallest at which {never}."


def cells(at: Prediction) -> tuple[str, str, str, str, str]:
    """A prediction's lifetime, epoch, waiting, its share, and builds, in words."""
    return (
        number(at.lifetime),
        duration(at.seconds),
        duration(at.wait),
        share(at.wait, at.seconds),
        number(at.builds),
    )


def why_none(pipeline: Pipeline, costs: Costs) -> str:
    """Why no lifetime hides the builds, and what would help."""
    if costs.hit >= costs.build:
        return "Reuse does not pay here: reading a stored sample takes longer than building it."
    if pipeline.builds_in == CONSUMER:
        return "Without workers training waits for every build: num_workers > 0 builds meanwhile."
    what = "reading stored samples, with finish," if costs.finish else "reading stored samples"
    help_ = "cheaper hits (format='tensors' or LMDBStore, if not in use)"
    if costs.finish > costs.hit:
        help_ = "a cheaper finish"
    more = " and more workers" if pipeline.reads_in == WORKERS else ""
    return (
        f"No lifetime keeps training from waiting, since {what} alone takes longer than training: "
        f"{help_}{more} would help."
    )


def _waited(newest: PassTimes) -> float | None:
    """The share of a pass that training waited, if that can be seen."""
    return None if newest.ahead else _inside(newest)


def _inside(newest: PassTimes) -> float:
    return newest.waited / max(newest.elapsed, 1e-9)


def _is_input_bound(newest: PassTimes) -> bool | None:
    if not newest.ahead:
        return _inside(newest) > INPUT_BOUND
    return True if _inside(newest) > _ALWAYS else None


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _time(seconds: float | None) -> str:
    return "not known" if seconds is None else duration(seconds)
