"""Builds, sources and pipelines for the tests of the nodes; all usable under spawn."""

import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from helpers import FORKS, ODD_ERRORS
from torchdata.nodes import BaseNode, Batcher, IterableWrapper, Loader, Prefetcher, SamplerWrapper

from reuseloader import IndexEpoch, ReuseKey, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler, WithEpoch
from reuseloader.store import DirectoryStore

MARKS = [pytest.mark.filterwarnings(FORKS), pytest.mark.usefixtures("no_worker_left")]
PATIENCE = 60  # seconds until something that must happen is given up


# What is built, and what must come of it


def sample_of(key: ReuseKey) -> dict[str, Any]:
    """The sample of every build here: what it was built from, and random bits of its seed."""
    bits = torch.randint(0, 2**31, (4,), generator=key.generator())
    return {"index": key.index, "generation": key.generation, "seed": key.seed, "bits": bits}


def with_key(sample: dict[str, Any], key: ReuseKey) -> tuple[Any, ...]:
    """A finish that adds the epoch of the present use and makes the sample comparable."""
    bits = tuple(sample["bits"].tolist())
    return sample["index"], key.epoch, sample["generation"], sample["seed"], key.use, bits


def expected(policy: ReusePolicy, index: int, epoch: int) -> tuple[Any, ...]:
    """What `with_key` must give for a pair, from the closed form alone."""
    generation, use = divmod(epoch + index % policy.lifetime, policy.lifetime)
    key = policy.key(index, epoch)
    bits = torch.randint(0, 2**31, (4,), generator=key.generator())
    return index, epoch, generation, key.seed, use, tuple(bits.tolist())


def expected_pass(policy: ReusePolicy, epoch: int, size: int) -> list[tuple[Any, ...]]:
    """A whole shuffled pass, in order."""
    return [expected(policy, policy.order(p, epoch, size), epoch) for p in range(size)]


def pairs_of(policy: ReusePolicy, epoch: int, size: int) -> list[IndexEpoch]:
    """The pairs of a shuffled pass, in order."""
    return [IndexEpoch(policy.order(p, epoch, size), epoch) for p in range(size)]


def new_generations(lifetime: int, epoch: int, size: int) -> list[int]:
    """The indices that an uninterrupted run builds in an epoch."""
    return [i for i in range(size) if epoch == 0 or (epoch + i) % lifetime == 0]


# Builds


@dataclasses.dataclass(frozen=True)
class LoggedBuild:
    """Appends "index epoch pid" to a file, then builds."""

    log: str

    def __call__(self, key: ReuseKey) -> dict[str, Any]:
        append(self.log, f"{key.index} {key.epoch} {os.getpid()}")
        return sample_of(key)


@dataclasses.dataclass(frozen=True)
class GatedBuild:
    """Waits, for the given indices of one epoch, until the gate is open."""

    folder: str
    indices: tuple[int, ...] | None = None  # None for all
    epoch: int = 0

    def __call__(self, key: ReuseKey) -> dict[str, Any]:
        if key.epoch == self.epoch and (self.indices is None or key.index in self.indices):
            append(f"{self.folder}/waiting", f"{key.index} {os.getpid()}")
            eventually(lambda: os.path.exists(f"{self.folder}/open"), "the gate to open")
        append(f"{self.folder}/built", f"{key.index} {key.epoch}")
        return sample_of(key)

    def waiting(self) -> list[str]:
        return lines(f"{self.folder}/waiting")

    def open(self) -> None:
        Path(self.folder, "open").touch()


@dataclasses.dataclass(frozen=True)
class CrowdBuild:
    """Leaves a file while it builds, and logs how many such files there are."""

    folder: str

    def __call__(self, key: ReuseKey) -> dict[str, Any]:
        mine = Path(self.folder, f"{key.index}.building")
        mine.touch()
        sample = sample_of(key)
        time.sleep(0.01)  # long enough to meet others
        crowd = len(list(Path(self.folder).glob("*.building")))
        append(f"{self.folder}/crowd", str(crowd))
        mine.unlink()
        return sample


@dataclasses.dataclass(frozen=True)
class KilledOnce:
    """The process dies, as from the OOM killer, at one index; the second time it does not."""

    marker: str
    index: int

    def __call__(self, key: ReuseKey) -> dict[str, Any]:
        if key.index == self.index and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample_of(key)


class Panic(BaseException):
    """No Exception, as a panic in an extension written in Rust is none."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ordinary": lambda: ValueError("the reason"),
    "reduced": lambda: json.JSONDecodeError("the reason", "{", 1),
    "chained": lambda: OSError(28, "the reason", "/some/file"),
    "stop": lambda: StopIteration("the reason"),
    "exit": lambda: SystemExit("the reason"),
    "panic": lambda: Panic("the reason"),
    **ODD_ERRORS,
}


@dataclasses.dataclass(frozen=True)
class FailingBuild:
    """Raises one of ERRORS at one index."""

    error: str
    index: int

    def __call__(self, key: ReuseKey) -> dict[str, Any]:
        if key.index == self.index:
            raise ERRORS[self.error]()
        return sample_of(key)


FALSY = [None, False, 0, 0.0, "", (), [], {}, b"", torch.tensor(0), torch.zeros(0)]


def falsy(key: ReuseKey) -> Any:
    return FALSY[key.index % len(FALSY)]


def only_none(key: ReuseKey) -> None:
    return None


def many_tensors(key: ReuseKey) -> list[torch.Tensor]:
    return [torch.full((4,), key.index) for _ in range(50)]


def a_lambda(key: ReuseKey) -> Any:
    return lambda: key


def on_meta_device(key: ReuseKey) -> torch.Tensor:
    return torch.empty(2, device="meta")


def torch_threads(key: ReuseKey) -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def global_random(key: ReuseKey) -> float:
    return float(torch.rand(()))


def save_text(sample: dict[str, Any], file: Any) -> None:
    """A save of one's own: text, closed at the end as some writers do."""
    file.write(json.dumps({**sample, "bits": sample["bits"].tolist()}).encode())
    file.close()


def load_text(file: Any) -> dict[str, Any]:
    sample = json.loads(file.read())
    return {**sample, "bits": torch.tensor(sample["bits"])}


def broken_save(sample: Any, file: Any) -> None:
    raise ValueError("save is broken")


def broken_load(file: Any) -> Any:
    raise ValueError("load is broken")


def broken_finish(sample: Any, key: ReuseKey) -> Any:
    raise ValueError("finish is broken")


@dataclasses.dataclass(frozen=True)
class LoggedInit:
    """A worker_init_fn that logs its worker; may wait until all have come, or fail."""

    log: str
    expect: int = 0
    error: str = ""

    def __call__(self, worker: int) -> None:
        append(self.log, f"{worker} {os.getpid()} {threading.get_ident()}")
        eventually(lambda: len(lines(self.log)) >= self.expect, "the other workers")
        if self.error:
            raise ERRORS[self.error]()


class LoggedStore:
    """A store of the user's, without `tail`; logs which process reads."""

    def __init__(self, path: str) -> None:
        self.store = DirectoryStore(path)
        self.log = f"{path}.reads"

    def read(self, index: int) -> bytes | None:
        record = self.store.read(index)
        append(self.log, f"{index} {os.getpid()} {record is not None}")
        return record

    def write(self, index: int, record: bytes) -> None:
        self.store.write(index, record)

    def close(self) -> None:
        self.store.close()


# Files as counters


def append(path: str, line: str) -> None:
    """Add a line to a file that several threads and processes write."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def lines(path: str) -> list[str]:
    return Path(path).read_text().split("\n")[:-1] if os.path.exists(path) else []


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that another thread or process does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.003)


# Sources


class Pulled(BaseNode[Any]):
    """Passes on what its source gives and counts it."""

    def __init__(self, source: BaseNode[Any]) -> None:
        super().__init__()
        self.source = source
        self.count = 0

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.source.reset(initial_state and initial_state["source"])
        self.count = 0

    def next(self) -> Any:
        item = next(self.source)
        self.count += 1
        return item

    def get_state(self) -> dict[str, Any]:
        return {"source": self.source.state_dict()}


class Failing:
    """An iterable that gives some items and then raises."""

    def __init__(self, items: list[Any], error: Exception) -> None:
        self.items = items
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        yield from self.items
        raise self.error


# Pipelines


@dataclasses.dataclass(frozen=True)
class Graph:
    """The settings of a pipeline; all of plain values, so that they can go to another process."""

    size: int = 11
    lifetime: int = 3
    seed: int = 7
    balanced: bool = True
    shuffle: bool = True
    workers: int = 0
    method: str = "thread"
    context: str | None = None
    in_order: bool = True
    prebatch: int | None = None
    max_concurrent: int | None = None
    frequency: int = 1
    hop: int | None = None  # pairs that go to a worker as one list
    batch: int | None = None
    prefetch: int | None = None
    prefetch_frequency: int = 1
    with_epoch: bool = False
    start_epoch: int = 0

    @property
    def policy(self) -> ReusePolicy:
        return ReusePolicy(self.lifetime, self.seed, balanced=self.balanced)

    def pairs(self) -> BaseNode[Any]:
        """The beginning: pairs, or lists of them."""
        source: BaseNode[Any]
        if self.with_epoch:
            source = SamplerWrapper(ByPolicy(self), initial_epoch=self.start_epoch)
            source = WithEpoch(source, start_epoch=self.start_epoch)
        else:
            source = ReuseSampler(
                self.size, self.policy, start_epoch=self.start_epoch, shuffle=self.shuffle
            )
        return source if self.hop is None else Batcher(source, self.hop, drop_last=False)

    def mapper(self, path: Any, build: Any = sample_of, **options: Any) -> ReuseMapper:
        """The node where pairs become samples."""
        options = {"finish": with_key, **options}
        return ReuseMapper(
            options.pop("source", None) or self.pairs(),
            build,
            path if hasattr(path, "read") else str(path),
            self.policy,
            num_workers=self.workers,
            method=self.method,
            multiprocessing_context=self.context,
            in_order=self.in_order,
            prebatch=self.prebatch,
            max_concurrent=self.max_concurrent,
            snapshot_frequency=self.frequency,
            **options,
        )

    def root(self, node: BaseNode[Any]) -> BaseNode[Any]:
        """What follows the mapper."""
        if self.batch is not None:
            node = Batcher(node, self.batch, drop_last=False)
        if self.prefetch is not None:
            node = Prefetcher(node, self.prefetch, snapshot_frequency=self.prefetch_frequency)
        return node

    @contextmanager
    def loader(self, path: Any, build: Any = sample_of, **options: Any) -> Iterator[Loader[Any]]:
        """The whole pipeline; its workers and the thread that reads it are ended afterwards."""
        with self.mapper(path, build, **options) as mapper, loading(self.root(mapper)) as loader:
            yield loader

    def __str__(self) -> str:
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ",".join(changed) or "inline"


@contextmanager
def loading(root: BaseNode[Any]) -> Iterator[Loader[Any]]:
    """A Loader whose Prefetcher, if any, is ended afterwards, by this thread.

    Otherwise, since Loader is part of a cycle, the garbage collector would end it sooner or later,
    and perhaps do so in the Prefetcher's own thread, which cannot join itself.
    """
    try:
        yield Loader(root)
    finally:
        if isinstance(root, Prefetcher):
            vars(root).clear()


INLINE = Graph()
THREADS = Graph(workers=2)
PROCESSES = Graph(workers=2, method="process", context="fork")
MODES = {"inline": INLINE, "threads": THREADS, "processes": PROCESSES}
all_modes = pytest.mark.parametrize("graph", MODES.values(), ids=MODES.keys())


def variant(graph: Graph, **changes: Any) -> Graph:
    return dataclasses.replace(graph, **changes)


def passes_are_right(
    graph: Graph, epochs: int, path: Any, build: Any = sample_of, **options: Any
) -> None:
    """The first passes of a new pipeline are those of the closed form."""
    with graph.loader(path, build, **options) as loader:
        for epoch in range(epochs):
            assert flat(list(loader)) == expected_pass(graph.policy, epoch, graph.size)


def told(error: BaseException) -> str:
    """All that a user sees of an error."""
    return "".join(traceback.format_exception(error))


class ByPolicy(torch.utils.data.Sampler[int]):
    """A sampler of plain indices that has `set_epoch`, as DistributedSampler does."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        policy, size = self.graph.policy, self.graph.size
        return iter([policy.order(p, self.epoch, size) for p in range(size)])


def flat(items: Any) -> list[Any]:
    """The samples in (nested) lists of them."""
    if isinstance(items, list):
        return [sample for item in items for sample in flat(item)]
    return [items]


def what_is_left(node: BaseNode[Any]) -> list[Any]:
    """What a thread of a pass that was broken off still gets, until it is told that all is over."""
    items = []
    with suppress(StopIteration, RuntimeError):
        while True:
            items.append(next(node))
    return items


def listed(items: list[Any]) -> BaseNode[Any]:
    """A node of these items."""
    return IterableWrapper(items)


# Other processes


def start_python(
    code: str, *options: str, arguments: Sequence[str] = (), **kwargs: Any
) -> subprocess.Popen[str]:
    """Run code, which finds this module, in an interpreter of its own."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *options, "-c", f"from nodes_helpers import *\n{code}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        **kwargs,
    )


def run_python(code: str, *options: str, text: str = "", arguments: Sequence[str] = ()) -> str:
    """Run code to its end; it must succeed and say nothing on stderr. Returns its output."""
    with start_python(code, *options, arguments=arguments) as process:
        try:
            out, err = process.communicate(text, timeout=PATIENCE)
        finally:
            kill_tree(process)
    assert (process.returncode, err) == (0, "")
    return out


def kill_tree(process: subprocess.Popen[str]) -> None:
    """Nothing that a test has started outlives it."""
    if process.poll() is None:
        for child in descendants(process.pid):
            child.kill()
        process.kill()


def descendants(pid: int) -> list[psutil.Process]:
    """The processes under ``pid``, without the two helpers that multiprocessing keeps."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):
            command = " ".join(child.cmdline())
            if "resource_tracker" not in command and "forkserver" not in command:
                found.append(child)
            found += child.children(recursive=True)
    return [child for child in found if child.is_running() and not is_zombie(child)]


def is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def no_worker_is_left() -> None:
    """The graphs that went out of use have left no process and no thread of theirs."""

    def left() -> list[Any]:
        threads = [t for t in threading.enumerate() if t.name.startswith("ReuseMapper")]
        return threads or descendants(os.getpid())

    if left():
        gc.collect()
        eventually(lambda: not left(), "workers to end")
