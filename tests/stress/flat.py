"""Break off pass after pass over millions of samples: memory and open files must not grow.

    python -W error tests/stress/flat.py --rounds 50

A round is one pass over 5 million samples, broken off after 1,000 batches; every second one resumes
at the beginning of the one before, and reads what that has stored. Each of three pipelines runs in
a process of its own, where a warning is an error. Open files and memory are those of that process
and its workers together; once the first passes are over they may not grow, but by what workers have
open at that moment.
"""

import gc
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from common import directory
from pipelines import pipeline
from report import Report, arguments
from samples import Build, digest
from torch.multiprocessing import get_context

from reuseloader import ReusePolicy
from reuseloader.audit import check
from reuseloader.store import DirectoryStore

SIZE = 5 * 10**6
BATCH = 2
COUNT = 4  # words of a sample
LIFETIME = 10**9
WARM = 10  # the first passes
MEMORY = 8.0  # MB that Python's allocator may come to hold later
OPEN = 2.0  # files that two workers may have open for a moment; a leak would be one a pass
NAMES = ("DataLoader", "DataLoader, 2 persistent workers", "nodes, 2 threads")


class Flatness:
    """A pipeline, and what it takes."""

    def __init__(self, name: str, batches: int, seed: int) -> None:
        self.name = name
        self.batches = batches  # of each pass
        self.build = Build("torch", COUNT)
        self.policy = ReusePolicy(LIFETIME, seed)
        self.report = new_report()
        self.usages: list[tuple[int, float]] = []

    def run(self, path: Path, passes: int) -> None:
        """All passes; the workers live as long."""
        loader, owner = pipeline(self.name, self.build, self.policy, path, size=SIZE, batch=BATCH)
        with owner:
            for number in range(passes):
                batches = iter(loader)
                if number % 2 == 0:
                    state = loader.state_dict()
                self.compare(batches, number // 2)
                self.usages.append(usage())
                if number % 2 == 0:
                    loader.load_state_dict(state)
        del loader, batches
        gc.collect()  # ends a prefetching thread, of which an exit could make an abort
        found = check(DirectoryStore(path), SIZE)
        self.report.expect(found.clean, "files left", found)
        self.report.count("samples stored", found.samples)

    def compare(self, batches: Any, epoch: int) -> None:
        """The first batches of a pass are those of this epoch."""
        due = self.policy.order(np.arange(self.batches * BATCH), epoch, SIZE).tolist()
        keys = iter([self.policy.key(index, epoch) for index in due])
        for batch in islice(batches, self.batches):
            for sample in batch:
                key = next(keys)
                good = digest(sample) == digest(self.build(key.first))
                self.report.expect(good, "wrong samples", f"{self.name}, {key}")
                self.report.count("samples compared")

    def judge(self) -> None:
        """Nothing has grown since the first passes."""
        warm, later = self.usages[:WARM], self.usages[WARM:]
        for place, (what, most) in enumerate({"open files": OPEN, "MB": MEMORY}.items()):
            before = max(use[place] for use in warm)
            after = [use[place] for use in later] or [before]
            text = f"{self.name}: {what} {before:.0f} at most at first, {max(after):.0f} later"
            print(text, flush=True)
            self.report.expect(max(after) <= before + most, f"{what} too many", text)


def usage() -> tuple[int, float]:
    """Return (open files, MB of memory) of this process and its children."""
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    resident = sum(member.memory_info().rss for member in family)
    return sum(member.num_fds() for member in family), resident / 2**20


def run(name: str, passes: int, batches: int, seed: int, path: Path) -> Report:
    """All passes of one pipeline, in a process of its own."""
    torch.set_num_threads(1)
    flatness = Flatness(name, batches, seed)
    flatness.run(path, passes)
    flatness.judge()
    return flatness.report


def new_report() -> Report:
    return Report("wrong samples", "open files too many", "MB too many", "files left", "crashes")


def main() -> int:
    chosen = arguments(__doc__, rounds=50, batches=1_000)
    report = new_report()
    for name in NAMES:
        with directory() as folder, ProcessPoolExecutor(1, get_context("spawn")) as process:
            args = (name, chosen.rounds, chosen.batches, chosen.seed, folder / "store")
            try:
                report.add(process.submit(run, *args).result())
            except Exception as error:
                report.fault("crashes", f"{name}: {type(error).__name__}: {error}")
        report.count("rounds", chosen.rounds)
    return report.finish()


if __name__ == "__main__":
    if "error" not in sys.warnoptions:
        sys.exit("run me with python -W error")
    sys.exit(main())
