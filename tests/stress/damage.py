"""Damage stored files at random and fetch them: every sample must be right, and nothing crash.

    python tests/stress/damage.py --rounds 10000

A round is one damage, to a file of a small store: flipped bits, cuts, zeroed blocks, files of other
indices, generations and settings, foreign files, links, pipes, sockets, directories, unreadable
modes. Rounds come in chapters, each with a format and settings of its own; in every fourth one
another process does the damage while a loader runs. As root the script works as another user.
"""

import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from common import become_nobody, caught, directory, in_child
from damages import SIZE, Damager, clear
from report import Report, arguments
from samples import FORMATS, Build, digest, expected, expected_pass

from reuseloader import IndexEpoch, ReuseDataLoader, ReuseDataset, ReusePolicy
from reuseloader.audit import check

CHAPTER = 40  # rounds with one store
LIFETIMES = (2, 3, 10**9)
LIVE = 4  # every so many chapters the damage is done while a loader runs
LIVE_PASSES = 8
LIVE_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
)


@dataclass(frozen=True)
class Settings:
    """What a store is used with."""

    format: str
    lifetime: int
    seed: int
    version: int = 1  # of the build, and its fingerprint
    count: int = 30

    @property
    def build(self) -> Build:
        return Build(self.format, self.count, version=self.version)

    @property
    def policy(self) -> ReusePolicy:
        return ReusePolicy(self.lifetime, self.seed)

    def dataset(self, path: Path) -> ReuseDataset:
        return ReuseDataset(
            self.build,
            SIZE,
            path,
            self.policy,
            fingerprint=f"{self.version}",
            **FORMATS[self.format],
        )

    def others(self) -> Iterator["Settings"]:
        """The same but for one thing."""
        values = {**vars(self)}
        yield Settings(**{**values, "seed": self.seed + 1})
        yield Settings(**{**values, "lifetime": self.lifetime + 1})
        yield Settings(**{**values, "version": self.version + 1})
        for name in FORMATS:
            if name != self.format:
                yield Settings(**{**values, "format": name})


class Chapter:
    """A store of its own, and donors."""

    def __init__(self, rng: random.Random, folder: Path, report: Report, *, modes: bool) -> None:
        self.rng = rng
        self.report = report
        self.kinds: Counter[str] = Counter()
        self.settings = Settings(
            rng.choice([*FORMATS]), rng.choice(LIFETIMES), rng.randrange(10**6)
        )
        self.path = folder / "store"
        self.dataset = self.settings.dataset(self.path)
        self.epoch = rng.randrange(5)
        donors = []
        for number, other in enumerate(self.settings.others()):
            donors.append(folder / f"donor-{number}")
            donor = other.dataset(donors[-1])
            for index in range(SIZE):  # any epoch in which it is stored will do
                epochs = range(self.epoch, self.epoch + 2)
                [donor[IndexEpoch(index, epoch)] for epoch in epochs]
        self.damager = Damager(self.path, donors, rng, modes=modes)
        self.fetch_all()

    def fetch_all(self) -> None:
        """One pass: all samples are right."""
        for index in range(SIZE):
            good = expected(self.settings.build, self.settings.policy, index, self.epoch)
            place = f"{self.settings}, index {index}, epoch {self.epoch}"
            try:
                got = digest(self.dataset[IndexEpoch(index, self.epoch)])
                self.report.expect(got == good, "wrong samples", place)
            except Exception as error:
                self.report.fault("crashes", f"{place}: {type(error).__name__}: {error}")
            self.report.count("samples compared")

    def round(self) -> None:
        """Damage, audit, and fetch everything, in this epoch and perhaps the next."""
        kind, target, unsound = self.damager.damage()
        self.kinds[kind] += 1
        found = check(self.damager.store)
        if unsound:
            place = f"{self.settings}: {kind}, {target.name}"
            self.report.expect(target.name in found.damaged, "damages unseen by an audit", place)
        self.fetch_all()
        if self.rng.random() < 0.5:
            self.epoch += 1
            self.fetch_all()
        if target.is_dir() and not target.is_symlink():
            clear(target)
        left = [*found.temps, *found.strays]
        self.report.expect(not left, "files left", f"{self.settings}: {left}")

    def live(self, rounds: int) -> None:
        """Run a loader while another process does the damage."""
        context = get_context("fork")
        stop = context.Event()
        answer, sender = context.Pipe(duplex=False)
        args = (self.damager, rounds, stop, sender)
        vandal = context.Process(target=damage_until, args=args)
        vandal.start()
        sender.close()
        try:
            for options in LIVE_OPTIONS:
                self.run_loader(options)
        finally:
            stop.set()
            self.kinds.update(answer.recv())
            vandal.join()

    def run_loader(self, options: dict[str, Any]) -> None:
        settings = self.settings
        with ReuseDataLoader(
            settings.build,
            SIZE,
            self.path,
            lifetime=settings.lifetime,
            seed=settings.seed,
            start_epoch=self.epoch,
            fingerprint=f"{settings.version}",
            shuffle=True,
            collate_fn=list,
            batch_size=2,
            **FORMATS[settings.format],
            **options,
        ) as loader:
            for epoch in range(self.epoch, self.epoch + LIVE_PASSES):
                place = f"{settings}, {options}, epoch {epoch}, damaged while it ran"
                try:
                    got = [digest(sample) for batch in loader for sample in batch]
                except Exception as error:
                    self.report.fault("crashes", f"{place}: {type(error).__name__}: {error}")
                    return
                good = expected_pass(settings.build, settings.policy, epoch, SIZE)
                self.report.expect(got == good, "wrong samples", place)
                self.report.count("samples compared", SIZE)


def damage_until(damager: Damager, rounds: int, stop: Any, sender: Any) -> None:
    """Do this many damages, and go on until told to stop."""
    kinds: Counter[str] = Counter()
    while rounds > 0 or not stop.is_set():
        with suppress(OSError):  # the loader is at work at the same files
            kind, _, _ = damager.damage()
            kinds[kind] += 1
        rounds -= 1
    sender.send(kinds)


def run_chapters(chosen: Any, folder: Path) -> Report:
    """All chapters, as an ordinary user."""
    kinds: Counter[str] = Counter()
    report = Report("wrong samples", "crashes", "damages unseen by an audit", "files left")
    torch.set_num_threads(1)
    os.chdir(folder)  # a socket's path must be short
    rng = random.Random(chosen.seed)
    with caught() as texts:
        # imports all that is ever needed: another user may not be able to read the modules
        Chapter(rng, folder / "first", report, modes=False).live(1)
        modes = become_nobody()
        for number, start in enumerate(range(0, chosen.rounds, CHAPTER)):
            rounds = min(CHAPTER, chosen.rounds - start)
            place = folder / f"{number}"
            chapter = Chapter(rng, place, report, modes=modes)
            if number % LIVE == LIVE - 1:
                chapter.live(rounds)
            else:
                for _ in range(rounds):
                    chapter.round()
            chapter.dataset.close()
            kinds.update(chapter.kinds)
            report.count("rounds", rounds)
            shutil.rmtree(place)
    report.count("warnings", len(texts))
    print("damages:", ", ".join(f"{times} {kind}" for kind, times in sorted(kinds.items())))
    return report


def main() -> int:
    chosen = arguments(__doc__, rounds=10_000)
    with directory() as folder:
        report = in_child(run_chapters, chosen, folder)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
