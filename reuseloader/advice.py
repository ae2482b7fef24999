"""What `advise` has to say, in numbers and in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from reuseloader.model import Costs, Prediction
from reuseloader.report import cells
from reuseloader.text import amount, duration, number, paragraph, plural, table


@dataclass(frozen=True)
class Machine:
    """What there is to use."""

    cores: int  # processors of a rank
    ranks: int  # that share this machine
    memory: int  # bytes
    free: int  # bytes of the disk


@dataclass(frozen=True)
class Workers:
    """So many workers, side by side."""

    num_workers: int
    builds_per_second: float
    memory: float  # bytes of samples that wait for training, of all ranks here


@dataclass(frozen=True)
class Advice:
    """What `advise` measured and recommends: ``str(advice)`` is for people.

    `dataclasses.asdict` makes a dict of it that `json.dumps` takes.

    Attributes:
        size, batch_size: as given.
        pipeline: ``"graph"`` or ``"dataloader"``.
        machine: what there is to use.
        costs: seconds of one sample in this process, the median.
        stored, in_memory: bytes of one sample, the mean; stored with its trailer.
        step: seconds that training takes for a batch; None if not given.
        workers: what so many workers build.
        predictions: epochs of one rank at other lifetimes, with the workers that are recommended.
        first_epoch: seconds of epoch 0, at the lifetime that is recommended, or 1.
        disk: bytes of all samples stored; none at lifetime 1.
        lifetime, num_workers: the recommendation. lifetime is None if ``step`` is.
        reason: of the recommendation, one sentence.
    """

    size: int
    batch_size: int
    pipeline: str
    machine: Machine
    costs: Costs
    stored: float
    in_memory: float
    step: float | None
    workers: tuple[Workers, ...]
    predictions: tuple[Prediction, ...]
    first_epoch: float
    disk: float
    lifetime: int | None
    num_workers: int
    reason: str

    def __str__(self) -> str:
        parts = (
            self._setup(),
            self._costs(),
            self._workers(),
            self._title(),
            self._epochs(),
            self._room(),
            self._recommendation(),
        )
        return "\n\n".join(part for part in parts if part)

    def _setup(self) -> str:
        ranks = self.machine.ranks
        shared = f", shared by {ranks} ranks" if ranks > 1 else ""
        cores = f"{plural(self.machine.cores, 'processor')}{' each' if ranks > 1 else ''}"
        return f"{plural(self.size, 'sample')} an epoch{shared}, {cores}"

    def _costs(self) -> str:
        costs = self.costs
        rows = [
            ("a build", duration(costs.build), f"{amount(self.in_memory)} in memory"),
            ("storing it", duration(costs.store), f"{amount(self.stored)} on disk"),
            ("a hit", duration(costs.hit), ""),
        ]
        if costs.finish:
            rows.append(("finish", duration(costs.finish), "at every use"))
        if self.step is not None:
            batch = f"training on a batch of {number(self.batch_size)}"
            rows.append(("a step", duration(self.step), batch))
        return _lines([(name, value, f"  {rest}") for name, value, rest in rows], "<><")

    def _workers(self) -> str:
        inline = self.workers[0].builds_per_second
        rows = [("workers", "builds/s", "speedup", "memory for samples")]
        rows += (
            (
                number(one.num_workers),
                number(one.builds_per_second),
                f"{one.builds_per_second / inline:.2f}",
                amount(one.memory),
            )
            for one in self.workers
        )
        return _lines(rows, ">>>>")

    def _title(self) -> str:
        kind = {"graph": "A graph of nodes", "dataloader": "A DataLoader"}[self.pipeline]
        workers = plural(self.num_workers, "worker")
        first = duration(self.first_epoch)
        return f"{kind} with {workers}, predicted after epoch 0 (which takes {first}):"

    def _epochs(self) -> str:
        waits = "training waits" if self.step is not None else ""
        rows: list[tuple[str, ...]] = [("lifetime", "an epoch", waits, "", "builds", "disk", "")]
        for at in self.predictions:
            lifetime, epoch, *waiting, builds = cells(at)
            if self.step is None:
                waiting = ["", ""]
            disk = amount(self.disk if at.lifetime > 1 else 0)
            remark = "  recommended" if at.lifetime == self.lifetime else ""
            rows.append((lifetime, epoch, *waiting, builds, disk, remark))
        return _lines(rows, ">>>>>><")

    def _room(self) -> str:
        """What does not fit."""
        disk, machine = self.disk, self.machine
        if disk > machine.free:
            return paragraph(
                f"The disk has {amount(machine.free)} free: not room enough for all samples, and "
                f"those that are not stored are built again at every use."
            )
        if disk > machine.memory:
            return paragraph(
                f"All samples together are more than the {amount(machine.memory)} of memory: a hit "
                f"is then read from the disk itself, and may cost more than measured here."
            )
        return ""

    def _recommendation(self) -> str:
        chosen = "" if self.lifetime is None else f"lifetime={self.lifetime}, "
        return paragraph(f"Recommended: {chosen}num_workers={self.num_workers}. {self.reason}")


def _lines(rows: Sequence[tuple[str, ...]], align: str) -> str:
    return "\n".join(table(rows, align, "  "))
