"""What the stress scripts share: samples in closed form, places to work in, the last line."""

import argparse
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
import xxhash
from torchdata.nodes import Batcher, Loader, Prefetcher

from reuseloader import ReuseDataLoader, ReuseKey, ReusePolicy, ReuseWarning
from reuseloader.nodes import ReuseMapper, ReuseSampler

T = TypeVar("T")

NOBODY = 65534  # a user whom file modes bind
_SHOWN = 20  # faults of a kind that are printed


# --- samples --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Build:
    """A build in closed form: the key, and ``count`` random words; takes ``seconds``."""

    format: str = "torch"
    count: int = 30
    seconds: float = 0.0
    version: int = 1  # what a fingerprint has to tell apart

    def __call__(self, key: ReuseKey) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        words = key.rng().integers(0, 2**63 // self.version, self.count)
        values = np.concatenate([np.array(key), words])
        if self.format == "numpy":
            return values
        if self.format == "pickle":
            return {"key": tuple(key), "values": values}
        return {"key": tuple(key), "values": torch.from_numpy(values)}


def save_array(array: np.ndarray, file: BinaryIO) -> None:
    np.save(file, array)


FORMATS: dict[str, dict[str, Any]] = {
    "torch": {},
    "pickle": {"save": pickle.dump, "load": pickle.load},
    "numpy": {"save": save_array, "load": np.load},
}


def digest(sample: Any) -> str:
    """Equal exactly for equal samples of `Build`: types, dtype, shape and every bit."""
    key, values = (sample["key"], sample["values"]) if isinstance(sample, dict) else ("", sample)
    kind = f"{type(sample).__name__} {key} {type(values).__name__} {values.dtype} {values.shape}"
    return xxhash.xxh3_128_hexdigest(kind.encode() + np.asarray(values).tobytes())


@lru_cache(maxsize=2**16)
def expected(build: Build, policy: ReusePolicy, index: int, epoch: int) -> str:
    """The digest of what a right loader delivers for index and epoch: the closed form."""
    return digest(replace(build, seconds=0)(policy.key(index, epoch).first))


def expected_pass(build: Build, policy: ReusePolicy, epoch: int, size: int) -> list[str]:
    """The digests of a whole shuffled pass, in its order."""
    order = policy.order(np.arange(size), epoch, size).tolist()
    return [expected(build, policy, index, epoch) for index in order]


# --- pipelines ------------------------------------------------------------------------------------

_FORK = {"num_workers": 2, "prefetch_factor": 8, "multiprocessing_context": "fork"}
PIPELINES: dict[str, dict[str, Any]] = {
    "DataLoader": {},
    "DataLoader, 2 workers": _FORK,
    "DataLoader, 2 persistent workers": {**_FORK, "persistent_workers": True},
    "DataLoader, 2 spawned workers": {
        **_FORK,
        "multiprocessing_context": "spawn",
        "persistent_workers": True,
    },
    "nodes": {},
    "nodes, 2 threads": {"num_workers": 2, "method": "thread"},
    "nodes, 2 processes": {
        "num_workers": 2,
        "method": "process",
        "multiprocessing_context": "fork",
        "max_concurrent": 16,
    },
    "nodes, 2 processes, whole batches": {
        "num_workers": 2,
        "method": "process",
        "multiprocessing_context": "fork",
    },
}


def pipeline(
    name: str,
    build: Build,
    policy: ReusePolicy,
    path: Path | str,
    *,
    size: int,
    batch: int,
    start_epoch: int = 0,
    **options: Any,
) -> tuple[Any, Any]:
    """Return (loader, what to close): shuffled batches, which are lists."""
    options = {**PIPELINES[name], **FORMATS[build.format], **options}
    if name.startswith("DataLoader"):
        loader = ReuseDataLoader(
            build,
            size,
            path,
            lifetime=policy.lifetime,
            seed=policy.seed,
            start_epoch=start_epoch,
            shuffle=True,
            batch_size=batch,
            collate_fn=list,
            **options,
        )
        return loader, loader
    node: Any = ReuseSampler(size, policy, start_epoch=start_epoch)
    whole = "whole batches" in name
    if whole:  # made in one worker, and sent
        node = Batcher(node, batch, drop_last=False)
    node = mapper = ReuseMapper(node, build, path, policy, size=size, **options)
    if not whole:
        node = Batcher(node, batch, drop_last=False)
    return Loader(Prefetcher(node, 4)), mapper


# --- places ---------------------------------------------------------------------------------------


@contextmanager
def directory() -> Iterator[Path]:
    """A new directory in which every user may work; gone afterwards, whatever its modes."""
    path = Path(tempfile.mkdtemp(prefix="reuseloader-stress-"))
    path.chmod(0o777)
    try:
        yield path
    finally:
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path)


# --- other processes and users --------------------------------------------------------------------


def become_nobody() -> bool:
    """Give up root for good; whether file modes bind this process now."""
    if os.getuid() == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        except OSError:  # not even root may, in some containers
            return False
    return True


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """What ``function(*args)`` returns in a forked process, which may change user or limits."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_answer, args=(sender, function, args))
    process.start()
    sender.close()
    try:
        good, answer = receiver.recv()
    except EOFError:
        process.join()
        good, answer = False, f"the process ended with exit code {process.exitcode}"
    process.join()
    if not good:
        raise RuntimeError(answer)
    return answer


def _answer(sender: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = True, function(*args)
    except BaseException:
        answer = False, traceback.format_exc()
    sender.send(answer)


# --- warnings -------------------------------------------------------------------------------------


@contextmanager
def caught() -> Iterator[list[str]]:
    """The texts of the ReuseWarnings of a block, once it has ended; any other is an error."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("error")
        # Python 3.12 and later say so at every fork of a process with threads, as torch has
        warnings.filterwarnings("ignore", "This process .*multi-threaded", DeprecationWarning)
        warnings.simplefilter("always", ReuseWarning)
        yield texts
    texts.extend(str(record.message) for record in records)


# --- the frame of a script ------------------------------------------------------------------------


def arguments(doc: str | None, **defaults: int) -> argparse.Namespace:
    """``--seed`` and what else has a default, from the command line; says what repeats the run."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=style)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    again = " ".join(f"--{name} {value}" for name, value in vars(chosen).items())
    print(f"{Path(sys.argv[0]).name} {again}", flush=True)
    return chosen


def shuffled(things: Iterable[T], rng: random.Random) -> Iterator[T]:
    """All of them in a random order, then all again in another one, without end."""
    things = list(things)
    while True:
        rng.shuffle(things)
        yield from things


class Report:
    """Figures of a run, and counts of what must not happen."""

    def __init__(self, *faults: str) -> None:
        self.figures: Counter[str] = Counter()
        self.faults = Counter(dict.fromkeys(faults, 0))
        self._start = time.monotonic()

    def count(self, name: str, by: int = 1) -> None:
        """Add to a figure."""
        self.figures[name] += by

    def fault(self, name: str, text: object) -> None:
        """Something is wrong: count it, and show the first of its kind."""
        self.faults[name] += 1
        if self.faults[name] <= _SHOWN:
            print(f"FAULT, {name}: {text}", flush=True)

    def expect(self, good: bool, name: str, text: object) -> None:
        """A fault unless ``good``."""
        if not good:
            self.fault(name, text)

    def add(self, other: "Report") -> None:
        """Take over what another process has counted."""
        self.figures.update(other.figures)
        self.faults.update(other.faults)

    def finish(self) -> int:
        """Print the last line; return the exit code."""
        counts = [f"{n} {name}" for name, n in [*self.figures.items(), *self.faults.items()]]
        verdict = "WRONG" if self.faults.total() else "right"
        seconds = time.monotonic() - self._start
        print(f"{verdict}: {', '.join(counts)}; {seconds:.0f} s", flush=True)
        return 1 if self.faults.total() else 0
