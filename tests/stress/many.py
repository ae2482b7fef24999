"""Let threads, processes, ranks and different runs use one directory of few samples at once.

    python tests/stress/many.py --rounds 20

A round is one crowd: 8 threads with one dataset, or 8 processes with one each, or 4 ranks of
torch.distributed (gloo) with a loader each, or 5 processes of which no two have the same settings;
all on one directory and, where they can, in other epochs than the others, so that they overwrite
one another all the time. Every sample must be right, and nothing but sound files may be left.
"""

import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import caught, directory, shuffled
from report import Report, arguments
from samples import FORMATS, Build, digest, expected
from torch.utils.data import DistributedSampler

from reuseloader import IndexEpoch, ReuseDataLoader, ReuseDataset, ReusePolicy
from reuseloader.audit import check
from reuseloader.store import DirectoryStore

SIZE = 7  # not a multiple of the ranks: some indices come twice in an epoch
COUNT = 1_000
LIFETIME = 3
EPOCHS = 12
THREADS = PROCESSES = 8
RANKS = 4


def new_report() -> Report:
    return Report("wrong samples", "crashes", "warnings", "files left")


def fetch_at_random(dataset: ReuseDataset, build: Build, task: "Task", report: Report) -> None:
    """Any index, in one of two epochs: what is stored is often, but not always, right."""
    rng = random.Random(task.seed)
    policy = dataset.policy
    for number in range(task.fetches):
        index, epoch = rng.randrange(SIZE), number // 100 + rng.randrange(2)
        try:
            good = digest(dataset[IndexEpoch(index, epoch)]) == expected(
                build, policy, index, epoch
            )
        except Exception as error:
            report.fault(
                "crashes", f"index {index}, epoch {epoch}: {type(error).__name__}: {error}"
            )
        else:
            report.expect(good, "wrong samples", f"{build}, {policy}, index {index}, epoch {epoch}")
        report.count("samples compared")


def dataset_for(build: Build, policy: ReusePolicy, path: Path, fingerprint: str) -> ReuseDataset:
    options = FORMATS[build.format]
    return ReuseDataset(build, SIZE, path, policy, fingerprint=fingerprint, **options)


# --- who does it ----------------------------------------------------------------------------------


class Task(NamedTuple):
    """What everybody in a crowd is told."""

    path: Path
    seed: int
    fetches: int  # of a thread or process

    def by(self, number: int) -> "Task":
        """The same, at random places of one's own."""
        return self._replace(seed=self.seed + number)


def threads(task: Task, report: Report) -> None:
    """One dataset, used by threads."""
    build, policy = Build("torch", COUNT), ReusePolicy(LIFETIME, task.seed)
    dataset = dataset_for(build, policy, task.path, "")
    reports = [new_report() for _ in range(THREADS)]
    workers = [
        threading.Thread(target=fetch_at_random, args=(dataset, build, task.by(number), own))
        for number, own in enumerate(reports)
    ]
    for worker in workers:
        worker.start()
    for worker, own in zip(workers, reports, strict=True):
        worker.join()
        report.add(own)
    dataset.close()


def use(settings: tuple[Build, ReusePolicy, str], task: Task) -> Report:
    """A dataset of this process's own, used alone."""
    torch.set_num_threads(1)
    build, policy, fingerprint = settings
    report = new_report()
    with caught() as texts:
        dataset = dataset_for(build, policy, task.path, fingerprint)
        fetch_at_random(dataset, build, task, report)
        dataset.close()
    for text in texts:
        report.fault("warnings", text)
    return report


def processes(task: Task, report: Report) -> None:
    """Processes with the same settings."""
    settings = Build("torch", COUNT), ReusePolicy(LIFETIME, task.seed), ""
    in_processes([(settings, task.by(number)) for number in range(PROCESSES)], report)


def runs(task: Task, report: Report) -> None:
    """Processes with settings that differ: lifetime, seed, fingerprint, format."""
    seed = task.seed
    settings = [
        (Build("torch", COUNT), ReusePolicy(LIFETIME, seed), ""),
        (Build("torch", COUNT), ReusePolicy(LIFETIME + 1, seed), ""),
        (Build("numpy", COUNT), ReusePolicy(LIFETIME, seed + 1), ""),
        (Build("torch", COUNT, version=2), ReusePolicy(LIFETIME, seed), "2"),
        (Build("pickle", COUNT), ReusePolicy(LIFETIME, seed), ""),
    ]
    in_processes([(one, task) for one in settings], report)


def in_processes(tasks: list[tuple[Any, ...]], report: Report) -> None:
    with mp.get_context("fork").Pool(len(tasks)) as pool:
        for own in pool.starmap(use, tasks, chunksize=1):
            report.add(own)


def ranks(task: Task, report: Report) -> None:
    """The ranks of a group, each with its own loader and workers; they keep step."""
    with tempfile.TemporaryDirectory() as meeting:
        answers = mp.get_context("spawn").SimpleQueue()
        try:
            mp.spawn(rank, (task, f"file://{meeting}/point", answers), nprocs=RANKS)
        except mp.ProcessException as error:
            report.fault("crashes", error)
        while not answers.empty():
            report.add(answers.get())


def rank(number: int, task: Task, meeting: str, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=RANKS)
    report = new_report()
    build, policy = Build("torch", COUNT), ReusePolicy(LIFETIME, task.seed)
    sampler = DistributedSampler(range(SIZE), seed=task.seed)
    with (
        caught() as texts,
        ReuseDataLoader(
            build,
            SIZE,
            task.path,
            lifetime=LIFETIME,
            seed=task.seed,
            sampler=sampler,
            collate_fn=list,
            num_workers=number % 2,
            persistent_workers=number % 2 > 0,
            multiprocessing_context="fork" if number % 2 else None,
        ) as loader,
    ):
        for epoch in range(EPOCHS):
            dist.barrier()  # all at once
            order = list(_indices(sampler, epoch))
            got = [digest(sample) for batch in loader for sample in batch]
            good = got == [expected(build, policy, index, epoch) for index in order]
            report.expect(good, "wrong samples", f"rank {number}, epoch {epoch}")
            report.count("samples compared", len(got))
    for text in texts:
        report.fault("warnings", text)
    answers.put(report)
    dist.barrier()
    dist.destroy_process_group()


def _indices(sampler: DistributedSampler, epoch: int) -> Any:
    sampler.set_epoch(epoch)
    return iter(sampler)


CROWDS: tuple[Callable[[Task, Report], None], ...] = (threads, processes, runs, ranks)


def main() -> int:
    chosen = arguments(__doc__, rounds=20, fetches=1_500)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    report = new_report()
    rng = random.Random(chosen.seed)
    for crowd in islice(shuffled(CROWDS, rng), chosen.rounds):
        with directory() as folder:
            crowd(Task(folder / "store", rng.randrange(10**6), chosen.fetches), report)
            found = check(DirectoryStore(folder / "store"), SIZE)
            report.expect(found.clean, "files left", f"{crowd.__name__}: {found}")
        report.count("rounds")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
