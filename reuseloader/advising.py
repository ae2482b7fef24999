"""Which lifetime and how many workers? Measured before any training."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import default_collate

from reuseloader.advice import Advice, Machine
from reuseloader.codec import Load, Save
from reuseloader.fetcher import Build, Fetcher, Finish
from reuseloader.lmdb_store import LMDBStore
from reuseloader.machine import memory, ranks_here, usable_cores
from reuseloader.measure import MOST, builds_per_second, time_samples, time_step
from reuseloader.policy import ReusePolicy
from reuseloader.recommend import numbers_of_workers, recommended
from reuseloader.store import absolute
from reuseloader.validate import callable_or_none, int_at_least, seconds

_FOREVER = 10**9  # a lifetime at which every sample that is measured gets stored


def advise(
    build: Build,
    size: int,
    path: str | os.PathLike[str] | LMDBStore,
    *,
    batch_size: int,
    step: float | Callable[[Any], object] | None = None,
    pipeline: Literal["graph", "dataloader"] = "graph",
    seed: int = 0,
    save: Save | None = None,
    load: Load | None = None,
    format: str = "torch",
    finish: Finish | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    multiprocessing_context: str | BaseContext | None = None,
    ranks_per_machine: int | None = None,
) -> Advice:
    """Measure a build, and recommend a lifetime and a number of workers for it.

    To be called before training, on the machine that will train, when it is otherwise idle. Builds
    4 to 17 samples here (as many as 2 seconds allow, and the first is not timed), stores them and
    reads them back, from memory as a store does that fits there. Then worker processes of a
    `ReuseDataLoader` build side by side, 1, 2, 4 and so on up to the processors that this process
    may use. Each builds for about half a second, at least three samples and at most 4,160; starting
    the workers is not timed. An index may be built several times.

    What is stored for this lies in a directory of its own, ``reuseloader-advise-*``, which is
    always removed: the samples at ``path`` are neither read nor written.

    Args:
        build: as the loader will get it, see `ReuseDataset`.
        size: the number of samples, of all ranks on this machine together; at least 1.
        path: where the loader will store samples: the disk that is measured. It need not exist, and
            is not made. For an `LMDBStore`, another one beside it is measured.
        batch_size: how many samples training takes at a time.
        step: what training takes for a batch, in seconds; or a function of a batch, as the loader
            will yield it, that trains on it: called 5 to 12 times with the same one. None if not
            known; then no lifetime is recommended.
        pipeline: what is planned: ``"graph"``, nodes with `ReuseMapper` in processes under a
            Prefetcher; or ``"dataloader"``, `ReuseDataLoader`. See `reuseloader.model`.
        seed: as the loader will get it, like the next four.
        save: see `ReuseDataset`.
        load: see there.
        format: see there.
        finish: see there.
        collate_fn: makes the batch for ``step`` of a list of samples; DataLoader's own if None.
        multiprocessing_context: a start method or context for workers; None for Python's default.
        ranks_per_machine: how many ranks share this machine, and its processors; None for what
            torchrun says in LOCAL_WORLD_SIZE, or 1.

    Raises:
        TypeError, ValueError: an argument is not as described.
        OSError: nothing can be stored where ``path`` is.
        ReuseError: what was built could not be stored, or not be read back.
        Exception: what ``build``, ``finish``, ``save``, ``load`` or ``step`` raise.
    """
    size = int_at_least(1, "size", size)
    batch_size = int_at_least(1, "batch_size", batch_size)
    if step is not None and not callable(step):
        step = seconds("step", step)
    if pipeline not in ("graph", "dataloader"):
        raise ValueError(f"pipeline must be 'graph' or 'dataloader', got {pipeline!r}")
    collate_fn = callable_or_none("collate_fn", collate_fn) or default_collate
    if isinstance(multiprocessing_context, str):
        multiprocessing_context = get_context(multiprocessing_context)  # ValueError if none such
    ranks = ranks_here(ranks_per_machine)
    cores = max(1, usable_cores() // ranks)
    policy = ReusePolicy(_FOREVER, seed, balanced=False)
    with directory_beside(path) as own:
        machine = Machine(cores, ranks, memory(), shutil.disk_usage(own).free)
        fetcher = Fetcher(
            build,
            LMDBStore(own / "samples") if isinstance(path, LMDBStore) else own / "samples",
            policy,
            size=size,
            fingerprint="",
            save=save,
            load=load,
            format=format,
            finish=finish,
        )
        try:
            samples = time_samples(fetcher, MOST)
        finally:
            fetcher.close()
        rates = {0: 1 / samples.costs.build}
        for num_workers in numbers_of_workers(cores):
            rates[num_workers] = builds_per_second(
                fetcher,
                own / "workers",
                num_workers=num_workers,
                seconds=samples.costs.build,
                multiprocessing_context=multiprocessing_context,
            )
    if callable(step):  # after the workers: they should not be forked where a GPU is in use
        finished = samples.finished
        step = time_step(step, collate_fn([finished[n % len(finished)] for n in range(batch_size)]))
    return recommended(
        samples, rates, size, batch_size, step=step, pipeline=pipeline, machine=machine
    )


@contextmanager
def directory_beside(path: Any) -> Iterator[Path]:
    """A directory for a while, on the disk where ``path`` is or will be; OSError if none can be."""
    place = Path(path.path if isinstance(path, LMDBStore) else absolute(path))
    while not place.exists() and place != place.parent:
        place = place.parent
    with tempfile.TemporaryDirectory(prefix="reuseloader-advise-", dir=place) as own:
        yield Path(own)
