"""Builds that depend on more than their key, one mistake each, and ordinary ones that do not."""

import dataclasses
import datetime
import enum
import functools
import os
import random
import threading
import time
from collections import OrderedDict, deque, namedtuple
from pathlib import PurePosixPath

import numpy as np
import torch

# --- impure ---------------------------------------------------------------------------------------


def global_numpy(key):
    return {"index": key.index, "noise": np.random.rand(2, 3)}


def global_torch(key):
    return {"index": key.index, "noise": [torch.rand(2)]}


def global_random(key):
    return {"index": key.index, "flip": random.random()}


class GeneratorOfTheInstance:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, key):
        return {"index": key.index, "noise": self.rng.normal(size=4)}


class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self, key):
        self.calls += 1
        return key.index, {"calls": self.calls}


def clock(key):
    return {"index": key.index, "time": [0.0, time.time()]}


def clock_in_seconds(key):
    return {"index": key.index, "noise": np.random.RandomState(int(time.time())).rand(3)}


class OnePrevious:
    def __init__(self):
        self.previous = None

    def __call__(self, key):
        before, self.previous = self.previous, key.index
        return {"index": key.index, "changed": before != key.index}


class CacheByIndex:
    """Not by generation: the second one gets the sample of the first."""

    def __init__(self):
        self.cache = {}

    def __call__(self, key):
        if key.index not in self.cache:
            self.cache[key.index] = key.rng().random(3)
        return {"index": key.index, "noise": self.cache[key.index].copy()}


class OfThread:
    def __init__(self):
        self.local = threading.local()
        self.local.scale = 2

    def __call__(self, key):
        return {"index": key.index, "scale": getattr(self.local, "scale", 1)}


def of_process(key):
    return {"index": key.index, "tensor": torch.tensor([0, os.getpid()])}


def order_of_a_set(key):
    return {"index": key.index, "words": list({f"word {number}" for number in range(20)})}


def number_of_threads(key):
    return {"index": key.index, "sum": torch.tensor(torch.get_num_threads())}


class OneBuffer:
    def __init__(self):
        self.buffer = torch.zeros(3)

    def __call__(self, key):
        self.buffer[:] = key.index
        return {"index": key.index, "row": self.buffer}


class DataChangedInPlace:
    def __init__(self):
        self.data = np.zeros((1000, 3))

    def __call__(self, key):
        row = self.data[key.index]
        row += key.rng().random(3)
        return {"index": key.index, "row": row.copy()}


# --- pure -----------------------------------------------------------------------------------------

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


@dataclasses.dataclass
class Boxes:
    boxes: torch.Tensor
    labels: list


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: object


class Plain:
    """An object without ``==``, that knows itself."""

    def __init__(self, value):
        self.value = value
        self.me = self


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class TensorWithNote(torch.Tensor):
    pass


class EqualToNothing:
    def __eq__(self, other):
        raise RuntimeError("not to be compared")

    __hash__ = None


def tensors(key):
    noise = torch.rand(3, 4, generator=key.generator())
    noted = torch.rand(2, generator=key.generator()).as_subclass(TensorWithNote)
    noted.note = f"index {key.index}"
    return {
        "view": torch.rand(1000, generator=key.generator())[3:5],
        "transposed": noise.t(),
        "expanded": noise[:1].expand(5, 4),
        "half": noise.half(),
        "bfloat16": noise.bfloat16(),
        "complex": torch.complex(noise, noise).conj(),
        "nan": torch.tensor([torch.nan, -0.0, torch.inf]),
        "sparse": noise.to_sparse(),
        "scalar": torch.tensor(key.index),
        "empty": torch.zeros(0, 4),
        "parameter": torch.nn.Parameter(noise),
        "noted": noted,
    }


def arrays(key):
    rng = key.rng()
    records = np.zeros(2, dtype=[("name", "U5"), ("box", "f4", 2)])
    records["box"] = rng.random((2, 2))
    return {
        "float": rng.random((2, 3)),
        "big-endian": rng.random(2).astype(">f4"),
        "long double": rng.random(2).astype(np.longdouble),
        "fortran": np.asfortranarray(rng.random((2, 3))),
        "words": np.array(["a" * (1 + key.index % 5)]),
        "objects": np.array([key.index, "text", None], dtype=object),
        "records": records,
        "masked": np.ma.masked_less(rng.random(5), 0.5),
        "dates": np.array(["2020-01-01", "NaT"], "M8[D]"),
        "scalar": np.float32(rng.random()),
        "nan": np.array([np.nan, -0.0]),
    }


def ragged(key):
    """Text and boxes: as many as there are."""
    rng = key.rng()
    count = int(rng.integers(0, 5))
    return {
        "tokens": torch.from_numpy(rng.integers(0, 99, 1 + key.index % 7)),
        "image": torch.zeros(3, 4 + count, 5),
        "words": ["word"] * count,
        "target": Boxes(torch.zeros(count, 4), [{"area": 1.0}] * count),
        "crops": [torch.zeros(1, count, 2)] * count,
        "annotations": [{"id": key.index}, "text"][: key.index % 3],
        "caption": None if key.index % 2 else "a caption",
    }


def objects(key):
    return {
        "plain": Plain([key.index, Plain(None)]),
        "slots": Slots(key.index),
        "slotted": Slotted(np.nan),
        "enum": Colour.BLUE,
        "point": Point(key.index, 0.5),
        "set": {"a", "b", f"{key.index}"},
        "sets": frozenset([frozenset([key.index])]),
        "deque": deque([key.index], maxlen=3),
        "ordered": OrderedDict(b=1, a=2),
        "date": datetime.date(2020, 1, 1 + key.index % 20),
        "path": PurePosixPath("a", f"{key.index}"),
        "partial": functools.partial(tensors, key),
        "generator": key.rng(),
        "random": random.Random(key.seed),
        "torch": (torch.float32, torch.device("cpu"), torch.Size([1, 2])),
        "types": (dict, Plain, tensors, len, np.sin, range(3)),
        "bytes": (b"ab", bytearray(b"c"), "text", 1 + 2j, 2**70, True, None),
        "floats": [float("nan"), -0.0, 1e-320],
        "not to be compared": EqualToNothing(),
        "object": object(),
    }


def from_global_state_that_the_key_seeds(key):
    """Libraries that draw from global states can be given the key's seed."""
    random.seed(key.seed)
    np.random.seed(key.seed % 2**32)
    torch.manual_seed(key.seed)
    return random.random(), np.random.rand(2), torch.rand(2)


class CacheByKey:
    """A cache that decides nothing, and a count that goes nowhere."""

    def __init__(self):
        self.cache = {}
        self.calls = 0

    def __call__(self, key):
        self.calls += 1
        if key not in self.cache:
            self.cache[key] = key.rng().random(3)
        return self.cache[key].copy()


class Data:
    """Rows of an array and of a tensor, which it keeps."""

    def __init__(self):
        self.array = np.arange(3000.0).reshape(1000, 3)
        self.tensor = torch.arange(3000.0).reshape(1000, 3)

    def __call__(self, key):
        return self.array[key.index], self.tensor[key.index]


class Several:
    """Builds side by side."""

    def __init__(self, **builds):
        self.builds = builds

    def __call__(self, key):
        return {name: build(key) for name, build in self.builds.items()}


def pure_builds():
    return Several(
        tensors=tensors,
        arrays=arrays,
        ragged=ragged,
        objects=objects,
        seeded=from_global_state_that_the_key_seeds,
        cached=CacheByKey(),
        data=Data(),
        nothing=lambda_like,
        sorted_set=functools.partial(sorted_set, words=("c", "a", "b")),
    )


def lambda_like(key):
    return None


def sorted_set(key, words):
    return sorted(set(words))


# --- and finish -----------------------------------------------------------------------------------


def fresh_noise(sample, key):
    return {**sample, "fresh": np.random.default_rng(key.use_seed).random(2), "use": key.use}


def global_noise(sample, key):
    return {**sample, "fresh": np.random.rand(2)}


def index_alone(key):
    return {"index": key.index}


# --- for errors -----------------------------------------------------------------------------------


def fails_at(key, index, kind=ValueError):
    if key.index == index:
        raise kind("no such picture")
    return key.index


def fails_elsewhere(key, pid):
    if os.getpid() != pid:
        raise FileNotFoundError("not on this machine")
    return key.index


def fails_in_a_thread(key):
    if threading.current_thread() is not threading.main_thread():
        raise LookupError("not in this thread")
    return key.index


def dies_elsewhere(key, pid):
    if os.getpid() != pid:
        os._exit(7)
    return key.index


class OnlyHere:
    """Can be sent to another process, and not be opened there."""

    def __call__(self, key):
        return key.index

    def __reduce__(self):
        return only_in, (os.getpid(),)


def only_in(pid):
    if os.getpid() != pid:
        raise ImportError("no such module here")
    return OnlyHere()
