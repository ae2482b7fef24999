"""Builds, and tools to look at what they did, that also work in spawned workers."""

import dataclasses
import enum
import functools
import os
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from reuseloader import IndexEpoch, ReuseDataset, ReusePolicy, ReuseWarning

TESTS = Path(__file__).parent
START_METHODS = ("fork", "spawn", "forkserver")
# Python 3.12 and later warn at every fork of a process with threads, and torch has threads
FORKS = "ignore:This process .*multi-threaded:DeprecationWarning"


# --- builds ---------------------------------------------------------------------------------------


def sample_of(key):
    """A sample that shows which key it was built from, in every kind of value."""
    return {
        "index": key.index,
        "epoch": key.epoch,
        "generation": key.generation,
        "seed": key.seed,
        "use": key.use,
        "tensor": torch.rand(3, generator=key.generator()),
        "array": key.rng().standard_normal((2, 2)).astype(np.float32),
    }


def logged(key, log):
    """`sample_of`, which also appends a line to the file ``log``."""
    append(log, f"{key.index} {key.epoch} {key.generation} {key.seed}\n")
    return sample_of(key)


def big_sample(key):
    """A sample of about 40 kB."""
    return {**sample_of(key), "big": torch.rand(10_000, generator=key.generator())}


def append(path, text):
    """Append in one write, which processes cannot mix up."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def index_of(key):
    return key.index


def other_build(key):
    return key.index


def fail_at_two(key, kind, args=("broken sample",)):
    """A build that fails for index 2 alone."""
    if key.index == 2:
        raise kind(*args)
    return key.index


class TwoArguments(Exception):  # noqa: N818  # the tests speak of its trouble, not of an error
    def __init__(self, code, place):
        super().__init__(f"{place}: {code}")


class KeywordOnly(Exception):  # noqa: N818
    def __init__(self, *, place):
        super().__init__(place)


class Irreducible(Exception):  # noqa: N818
    def __reduce__(self):
        raise TypeError("not to be pickled")


class Hooked(Exception):  # noqa: N818
    def __init__(self, text):
        super().__init__(text)
        self.hook = lambda: None


class Mute(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no words")


class MuteAndHooked(Mute):
    def __init__(self, text):
        super().__init__(text)
        self.hook = lambda: None


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818
    place: str


ODD_ERRORS = {
    "two arguments": lambda: TwoArguments(7, "the reason"),
    "keyword only": lambda: KeywordOnly(place="the reason"),
    "__reduce__ raises": lambda: Irreducible("the reason"),
    "unpicklable attribute": lambda: Hooked("the reason"),
    "__str__ raises": lambda: Mute("the reason"),
    "neither text nor pickle": lambda: MuteAndHooked("the reason"),
    "frozen": lambda: Frozen("the reason"),
}


def odd_at_two(key, error):
    """A build that raises one of ODD_ERRORS for index 2 alone."""
    if key.index == 2:
        raise ODD_ERRORS[error]()
    return sample_of(key)


def with_present(sample, key):
    """A `finish` that adds what the present key says."""
    return {**sample, "present": (key.epoch, key.use, key.use_seed), "pid": os.getpid()}


class Log:
    """The builds that `logged` noted in a file."""

    def __init__(self, folder):
        self.path = Path(folder) / "builds.log"
        self.build = functools.partial(logged, log=str(self.path))

    def take(self):
        """The keys (index, epoch, generation, seed) built since the last call, sorted."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        self.path.unlink()
        return sorted(tuple(map(int, line.split())) for line in lines)

    def indices(self):
        """The indices built since the last call, sorted."""
        return [index for index, *_ in self.take()]


def due(policy, epoch, size):
    """The indices that an uninterrupted run builds in ``epoch``: the rule of DESIGN, section 2."""
    lifetime = policy.lifetime
    return [i for i in range(size) if epoch == 0 or (epoch + i) % lifetime == 0]


def keys(policy, epoch, indices):
    """What `Log.take` gives if just these indices were built in an uninterrupted run."""
    firsts = [policy.key(i, epoch).first for i in indices]
    return sorted((k.index, k.epoch, k.generation, k.seed) for k in firsts)


# --- samples --------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


@dataclasses.dataclass
class Labelled:
    image: object
    label: object = None


class Thing:
    """An object that only pickle can store."""

    def __init__(self, value):
        self.value = value


def bits(value):
    """A value that is equal exactly for equal samples: types, dtypes, shapes and every bit."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        raw = value.detach().resolve_conj().resolve_neg().contiguous()
        content = raw.reshape(-1).view(torch.uint8) if raw.numel() else raw.reshape(-1)
        return kind, value.dtype, tuple(value.shape), content.numpy().tobytes()
    if isinstance(value, (np.ndarray, np.generic)):
        return kind, value.dtype, value.shape, np.ascontiguousarray(value).tobytes()
    if isinstance(value, dict):
        return kind, tuple((name, bits(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return kind, tuple(bits(item) for item in value)
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(bits(item) for item in value)
    if isinstance(value, Thing):
        return kind, bits(value.value)
    if dataclasses.is_dataclass(value):
        return kind, tuple(bits(getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, float):
        return kind, value.hex()
    return kind, value


def expected(policy, index, epoch):
    """The bits of `sample_of` that a right loader delivers for index and epoch."""
    return bits(sample_of(policy.key(index, epoch).first))


def assert_right(samples, policy, epoch):
    """Every sample is bit for bit that of its index in ``epoch``."""
    for sample in samples:
        assert bits(sample) == expected(policy, sample["index"], epoch)


def flat(batches):
    """The samples of batches made by ``collate_fn=list``."""
    return [sample for batch in batches for sample in batch]


# --- passes over a dataset ------------------------------------------------------------------------

SIZE = 5
FOREVER = ReusePolicy(10**9, 3)


def run_pass(dataset, epoch):
    """All samples of one pass."""
    return [dataset[IndexEpoch(index, epoch)] for index in range(len(dataset))]


def right(dataset, epoch):
    """Whether every sample of a pass of `sample_of` is right."""
    samples = enumerate(run_pass(dataset, epoch))
    return all(bits(sample) == expected(dataset.policy, index, epoch) for index, sample in samples)


# --- directories ----------------------------------------------------------------------------------


BOOK = "reuseloader.json"


def overwrite(change):
    """A damage that writes ``change(content)`` over a file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def names(directory):
    return sorted(os.listdir(directory))


def sample_files(directory):
    return [name for name in names(directory) if name.endswith(".pt")]


def temps(directory):
    return [name for name in names(directory) if name.endswith(".tmp")]


def snapshot(directory):
    """Which files there are, and inode, size and mtime of each."""
    infos = ((entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(directory))
    return {name: (info.st_ino, info.st_size, info.st_mtime_ns) for name, info in infos}


class DictStore:
    """The least that a store of the user's must have."""

    def __init__(self):
        self.records = {}
        self.closed = 0

    def read(self, index):
        return self.records.get(index)

    def write(self, index, record):
        self.records[index] = bytes(record)

    def close(self):
        self.closed += 1


# --- warnings -------------------------------------------------------------------------------------


class Caught(list):
    """The texts of the ReuseWarnings of a block; any other warning in it is an error."""

    def __enter__(self):
        self._context = warnings.catch_warnings(record=True)
        self._records = self._context.__enter__()
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This process .*multi-threaded", DeprecationWarning)
        warnings.simplefilter("always", ReuseWarning)
        return self

    def __exit__(self, *exc_info):
        self._context.__exit__(*exc_info)
        self.extend(str(record.message) for record in self._records)


@contextmanager
def fails(kind, match=None):
    """`pytest.raises` that lets go of DataLoader's iterators at once.

    Their frames and the error form a cycle. Collected as garbage, an iterator waits 5 seconds for
    its workers, or a later worker inherits it.
    """
    with pytest.raises(kind, match=match) as caught:
        yield caught
    traceback.clear_frames(caught.tb)


# --- processes ------------------------------------------------------------------------------------


def children():
    """The processes below this one that live, but for multiprocessing's own servants."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            servant = "multiprocessing." in " ".join(child.cmdline())
            if child.status() != psutil.STATUS_ZOMBIE and not servant:
                found.add(child.pid)
    return found


def forked(function, *args, **kwargs):
    """What ``function`` returns in a forked process, where limits and users may be changed."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, args, kwargs))
    process.start()
    sender.close()
    try:
        good, answer = pickle.loads(receiver.recv_bytes())
    except EOFError:
        process.join()
        raise RuntimeError(f"the process ended with exit code {process.exitcode}") from None
    process.join()
    if not good:
        raise AssertionError(f"in the forked process:\n{answer}")
    return answer


def _answer(sender, function, args, kwargs):
    try:
        answer = True, function(*args, **kwargs)
    except BaseException:
        answer = False, traceback.format_exc()
    sender.send_bytes(pickle.dumps(answer))
    sender.close()


def python(code, *args, flags=(), cwd=None, env=None):
    """Run ``code`` with ``args`` in a fresh interpreter that can import this module."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), **(env or {})}
    return subprocess.run(
        [sys.executable, *flags, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=120,
        check=False,
    )


def die_before_renaming(path, index=0):
    """Store a sample, but be killed between writing and renaming its file."""
    dataset = ReuseDataset(sample_of, SIZE, path, FOREVER)
    os.replace = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    dataset[IndexEpoch(index, 0)]


def leave_temp(path, index=0):
    """The temporary file of a process that is dead."""
    before = set(temps(path)) if os.path.exists(path) else set()
    process = get_context("fork").Process(target=die_before_renaming, args=(path, index))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (temp,) = set(temps(path)) - before
    return Path(path) / temp
