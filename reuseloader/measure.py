"""Timing of what `advise` needs to know: a few samples, workers side by side, a training step."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from reuseloader.errors import ReuseError
from reuseloader.fetcher import Fetcher
from reuseloader.key import ReuseKey
from reuseloader.loader import ReuseDataLoader
from reuseloader.model import Costs
from reuseloader.sample import parts_of
from reuseloader.tally import Miss

_LEAST, MOST = 3, 16  # samples that are timed, after one that is not
_ENOUGH = 2.0  # seconds after which no more samples than the least, or steps, are timed
_WORKER_ENOUGH = 0.5  # seconds that each number of workers builds for, if it is not for the least
_MESSAGE = 0.005  # seconds of builds that a worker gets at a time, so that messages do not count
_LONGEST, _MOST_TURNS = 64, 64  # builds of a message, messages of a worker
_WARM_STEPS, _STEPS = 2, 10


@dataclass(frozen=True)
class Samples:
    """What a few samples cost, and the samples."""

    costs: Costs
    finished: list[Any]
    stored: float  # bytes of one, the mean; with its trailer
    in_memory: float


def time_samples(fetcher: Fetcher, most: int) -> Samples:
    """Build, store, read back and finish up to ``most`` samples and one that is not timed; medians.

    Raises:
        ReuseError: what was built could not be stored, or not be read back.
    """
    taken: dict[str, list[float]] = {"build": [], "store": [], "hit": [], "finish": []}

    def timed(name: str, call: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        result = call(*args)
        taken[name].append(time.perf_counter() - start)
        return result

    keys = []
    begun = time.perf_counter()
    for index in _indices(fetcher, most + 1):
        key = fetcher.policy.key(index, 0)
        sample = timed("build", fetcher.make, key)
        # twice, since in all epochs but one a sample replaces another, which costs more
        if not (fetcher.keep(key, sample) and timed("store", fetcher.keep, key, sample)):
            raise ReuseError("a sample could not be stored: is path full, or not to be written?")
        keys.append(key)
        if len(keys) > _LEAST and time.perf_counter() - begun > _ENOUGH:
            break
    finished = []
    for key in keys:
        sample = timed("hit", fetcher.read, key)
        if isinstance(sample, Miss):
            raise ReuseError("a stored sample could not be read back: does load fit save?")
        finished.append(timed("finish", fetcher.finished, key, sample))
    medians = {name: median(times[1:] or times) for name, times in taken.items()}
    if fetcher.finish is None:
        medians["finish"] = 0.0
    stored = mean(len(fetcher.store.read(key.index) or b"") for key in keys)
    return Samples(Costs(**medians), finished, stored, mean(map(size_in_memory, finished)))


def size_in_memory(sample: Any) -> int:
    """Bytes of the tensors, arrays, texts and bytes in a sample, each counted once."""
    todo, seen, size = [sample], set(), 0
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            size += value.numel() * value.element_size()
        elif isinstance(value, np.ndarray):
            size += value.nbytes
        elif isinstance(value, (str, bytes, bytearray)):
            size += len(value)
        else:
            todo.extend(part for _, part in parts_of("", value))
    return size


def _indices(fetcher: Fetcher, count: int) -> list[int]:
    """Indices from all over the samples, round and round."""
    size = fetcher.size or 1
    indices: list[int] = fetcher.policy.order(np.arange(count) % size, 0, size).tolist()
    return indices


class _Unsent:
    """A build whose sample stays in the worker: what is timed is building."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def __repr__(self) -> str:
        return repr(self._fetcher.build)  # for the error if it cannot be pickled

    def __call__(self, key: ReuseKey) -> None:
        self._fetcher.make(key)


def _nothing(samples: list[Any]) -> None:
    return None


def builds_per_second(
    fetcher: Fetcher,
    path: Path,
    *,
    num_workers: int,
    seconds: float,
    multiprocessing_context: Any,
) -> float:
    """What so many worker processes of a `ReuseDataLoader` build side by side.

    ``seconds`` is about what one build takes. Each worker first builds a message that is not timed
    (it starts, and builds its first), then for about half a second, but two messages or more.
    """
    message = max(1, min(_LONGEST, int(_MESSAGE / max(seconds, 1e-9))))
    turns = max(2, min(_MOST_TURNS, int(_WORKER_ENOUGH / (message * max(seconds, 1e-9)))))
    loader = ReuseDataLoader(
        _Unsent(fetcher),
        fetcher.size or 1,
        path,
        lifetime=1,
        seed=fetcher.policy.seed,
        sampler=_indices(fetcher, num_workers * message * (1 + turns)),
        batch_size=message,
        collate_fn=_nothing,
        num_workers=num_workers,
        multiprocessing_context=multiprocessing_context,
    )
    with loader:
        arrived = list(_arrivals(loader))
    # in order, so when the last of a turn is there, all workers are through with it
    took = arrived[-1] - arrived[num_workers - 1]
    return num_workers * message * turns / max(took, 1e-9)


def _arrivals(loader: ReuseDataLoader) -> Iterator[float]:
    for _ in loader:
        yield time.perf_counter()


def time_step(step: Callable[[Any], object], batch: Any) -> float:
    """Median seconds of a training step, after two that are not timed."""
    taken: list[float] = []
    begun = time.perf_counter()
    while len(taken) < _WARM_STEPS + _STEPS:
        start = time.perf_counter()
        step(batch)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # what it began on the GPU belongs to it
        taken.append(time.perf_counter() - start)
        if len(taken) >= _WARM_STEPS + _LEAST and time.perf_counter() - begun > _ENOUGH:
            break
    return median(taken[_WARM_STEPS:])
