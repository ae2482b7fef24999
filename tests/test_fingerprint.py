import collections
import dataclasses
import datetime
import enum
import functools
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import types
from pathlib import Path, PurePosixPath
from random import uniform

import helpers
import impure
import iniconfig
import numpy as np
import pytest
import torch
from helpers import TESTS
from numpy.random import rand as np_rand
from torch.utils.data import TensorDataset

import reuseloader
from reuseloader import FromDataset, ReusePolicy, fingerprint_of

# --- plain data -----------------------------------------------------------------------------------

GOLDEN = {
    "nothing": ((), "b132d8ca17694d25997f3da31a2ebae5"),
    "none": ((None,), "f3039a1c216f8b9decb0340bed166d7b"),
    "numbers": ((1, -(2**70), 0.1, 1 + 2j, True), "2824b4a55ac13d6df9cf8a22e52b9051"),
    "text": (("a", "ü\ud800", b"a"), "f2add9590d27af64c913ca4766e6286c"),
    "config": (
        ({"size": (224, 224), "mean": [0.5], "names": {"a", "b"}},),
        "6a2560a1a822733f14778e72278c0e60",
    ),
    "array": ((np.arange(6, dtype="<i4").reshape(2, 3),), "d6a9b03953ea7f3b67e5422ad33f0f0a"),
    "tensor": ((torch.arange(3.0),), "8833a6708fef1127a81b03099243f2b6"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
    """The digests of plain data never change: what is stored under them would be lost."""
    things, digest = GOLDEN[name]
    assert fingerprint_of(*things) == digest


def test_a_fingerprint_is_a_short_text():
    """To be given as it is."""
    assert re.fullmatch("[0-9a-f]{32}", fingerprint_of("anything"))
    reuseloader.ReuseDataLoader(
        len, 0, helpers.DictStore(), lifetime=2, fingerprint=fingerprint_of(len)
    )


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


class OtherMode(enum.Enum):
    TRAIN = 1


@dataclasses.dataclass
class Config:
    size: int = 8
    names: tuple = ()


@dataclasses.dataclass
class OtherConfig:
    size: int = 8
    names: tuple = ()


Point = collections.namedtuple("Point", "x y")
ALL_DIFFERENT = [
    None, 0, 1, -1, 2**64, True, False, 0.0, -0.0, 1.0, math.nan, math.inf, 1j, "", "1", "a", b"",
    b"a", bytearray(b"a"), PurePosixPath("a"), "None", ..., (), [], {}, set(), frozenset(),
    (1,), [1], {1}, {1: 1}, {1: 2}, {2: 1}, {"1": 1}, (1, 2), (2, 1), ((1,), 2), (1, (2,)),
    [[1, 2]], [[1], [2]], ["ab", "c"], ["a", "bc"], range(3), slice(3), Point(1, 2),
    Mode.TRAIN, Mode.TEST, OtherMode.TRAIN, Mode, OtherMode, Config(), Config(9), OtherConfig(),
    Config, OtherConfig, int, float, np.float32, torch.float32, np.dtype("f4"), np.dtype("f8"),
    np.float32(1), np.float64(1), np.int64(1), np.zeros(2), np.zeros(3), np.zeros((2, 1)),
    np.zeros(2, "f4"), np.zeros(2, int), np.array([0.0, -0.0]), np.array(["a"]), np.array([b"a"]),
    np.array([None]), np.array([1], object), np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")]),
    np.ma.array([0.0, 0.0]), np.ma.array([0.0, 0.0], mask=[0, 1]), np.array(["2020"], "M8[Y]"),
    torch.zeros(2), torch.zeros(3), torch.zeros(2, 1), torch.zeros(2, dtype=torch.float64),
    torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32), torch.ones(2),
    torch.nn.Parameter(torch.zeros(2)), datetime.date(2020, 1, 1), datetime.date(2020, 1, 2),
    collections.OrderedDict(), collections.Counter(), collections.deque(), re.compile("a"),
    re.compile("a", re.IGNORECASE), ReusePolicy(2), ReusePolicy(3), np, torch, json, math,
    np.random.default_rng(0), np.random.default_rng(1), len, max, math.sin, np.sin, np.mean,
    torch.sin, torch.rand, [].append, {}.get, str.upper, functools.partial(len, ""),
    functools.partial(len, "a"), functools.partial(max, ""), object(), types.SimpleNamespace(a=1),
]  # fmt: skip


def test_different_things_have_different_digests():
    """No two of many things of every kind that look alike."""
    digests = collections.defaultdict(list)
    for thing in ALL_DIFFERENT:
        digests[fingerprint_of(thing)].append(thing)
    assert [same for same in digests.values() if len(same) > 1] == []


SAME = [
    ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
    ({1, "a", None}, {None, "a", 1}),
    ([[1], [1]], [[1]] * 2),
    (np.zeros((2, 3), order="F"), np.zeros((2, 3))),
    (np.arange(6)[::2], np.array([0, 2, 4])),
    (torch.zeros(2, 3).t(), torch.zeros(3, 2)),
    (torch.eye(2)[0], torch.tensor([1.0, 0.0])),
    (Config(8), Config(size=8)),
    (math.nan, -math.nan),
    (object(), object()),
    (types.SimpleNamespace(a=1, b=2), types.SimpleNamespace(b=2, a=1)),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_things_have_equal_digests(one, other):
    """Whatever the order of keys, strides, and what is one object and what two."""
    assert fingerprint_of(one) == fingerprint_of(other)
    assert fingerprint_of([one, one]) == fingerprint_of([other, one])


def test_arguments_are_kept_apart():
    """Their number, order and nesting count."""
    digests = [
        fingerprint_of(*things) for things in [(1, 2), (2, 1), ((1, 2),), (1,), (1, 2, None)]
    ]
    assert len(set(digests)) == 5


def test_big_endian_data_differ_by_name_alone():
    """The bytes that are digested are little-endian on every machine."""
    assert fingerprint_of(np.arange(3, dtype=">i4")) != fingerprint_of(np.arange(3, dtype="<i4"))


def test_what_contains_itself_has_a_digest():
    """Lists, objects and functions that come back to themselves."""

    def ring(value):
        loop = [value]
        loop.append({"again": loop})
        return loop

    assert fingerprint_of(ring(1)) == fingerprint_of(ring(1)) != fingerprint_of(ring(2))
    assert fingerprint_of(even) != fingerprint_of(odd)
    assert fingerprint_of(even) == fingerprint_of(even)


def even(number):
    return number == 0 or odd(number - 1)


def odd(number):
    return number != 0 and even(number - 1)


# --- code -----------------------------------------------------------------------------------------

CODE = """
import numpy as np
import functools, enum, dataclasses, abc

SIZE = 8
NAMES = {"a", "b"}
UNUSED = 1

class Mode(enum.Enum):
    SLOW = 1

def scale(image, by=2):
    "Scale."
    return image * by

def crop(image, *, margin=1):
    # inner
    return [pixel for pixel in image if pixel > margin and pixel in {"x", "y"}]

def shared(key):
    return crop(scale(key.index)) if key else SIZE

def build(key):
    "Build."
    mode = Mode.SLOW
    return shared(key), np.sin(1), sorted(NAMES), (lambda x: x + 3)(1)

class Base(abc.ABC):
    limit = 3

    def helper(self):
        return self.limit

    @property
    def twice(self):
        return 2 * self.limit

@dataclasses.dataclass
class Build(Base):
    size: int = 4

    def __call__(self, key):
        return self.helper() + self.twice + scale(self.size)

    @staticmethod
    def plain(x):
        return x - 1

def outer(depth):
    def inner(key):
        return scale(key.index, depth)
    return inner

closure = outer(3)
partial = functools.partial(scale, by=3)
instance = Build(5)
method = Build(5).helper
cached = functools.lru_cache(build)
"""
THINGS = ("build", "Build", "instance", "method", "closure", "partial", "cached")


def module_of(code, name="made_for_a_test"):
    module = types.ModuleType(name)
    exec(compile(code, name, "exec"), vars(module))
    return module


def digests_of(code):
    module = module_of(code)
    return {name: fingerprint_of(getattr(module, name)) for name in THINGS}


BEFORE = digests_of(CODE)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        # what does not matter
        ("UNUSED = 1", "UNUSED = 2", ""),
        ('"Scale."', '"Scales an image."', ""),
        ("# inner", "# inner loop\n", ""),
        ("mode = Mode", "kind = Mode", ""),
        ("\n\n", "\n\n\n", ""),
        ("return image * by", "return (image  *  by)", ""),
        # what does
        ("image * by", "image + by", "build Build instance method closure partial cached"),
        ("by=2", "by=4", "build Build instance method closure partial cached"),
        ("margin=1", "margin=2", "build cached"),
        ('{"x", "y"}', '{"x", "z"}', "build cached"),
        ("SIZE = 8", "SIZE = 9", "build cached"),
        ('NAMES = {"a", "b"}', 'NAMES = {"a", "c"}', "build cached"),
        ("SLOW = 1", "SLOW = 2", "build cached"),
        ("x + 3", "x + 4", "build cached"),
        ("np.sin", "np.cos", "build cached"),
        ("limit = 3", "limit = 4", "Build instance method"),
        ("2 * self", "3 * self", "Build instance method"),
        ("x - 1", "x - 2", "Build instance method"),
        ("size: int = 4", "size: int = 6", "Build instance method"),
        ("instance = Build(5)", "instance = Build(6)", "instance"),
        ("method = Build(5).helper", "method = Build(5).plain", "method"),
        ("method = Build(5)", "method = Build(6)", "method"),
        ("outer(3)", "outer(4)", "closure"),
        ("by=3", "by=5", "partial"),
    ],
)
def test_code_counts_by_what_it_does(old, new, changed):
    """A change of a helper, constant, default, closure or method shows; one of wording does not."""
    assert old in CODE
    after = digests_of(CODE.replace(old, new))
    assert {name for name in THINGS if after[name] != BEFORE[name]} == set(changed.split())


def test_code_counts_wherever_it_stands():
    """Neither the module's name nor the file's nor the line; helpers in another module do."""
    assert fingerprint_of(module_of("\n\n" + CODE, "another").build) == BEFORE["build"]
    digests = set()
    for helper in "image + 1", "image + 2", "image + 1":
        tools = module_of(f"def crop(image): return {helper}\nunused = {id(helper)}", "own_tools")
        module = types.ModuleType("user")
        vars(module)["tools"] = tools
        exec("def build(key): return tools.crop(key.index)", vars(module))
        digests.add(fingerprint_of(module.build))
    assert len(digests) == 2


def test_what_is_installed_counts_by_name_in_code():
    """A module that code uses, and a function of it."""
    module = module_of("import numpy\nfrom json import dumps\ndef build(key): return dumps, numpy")
    before = fingerprint_of(module.build)
    module.numpy = json
    assert fingerprint_of(module.build) != before
    module.numpy, module.dumps = np, json.loads
    assert fingerprint_of(module.build) != before


class WithLock:
    def __init__(self):
        self.parts = [threading.Lock()]

    def __call__(self, key):
        return key.index


LOCK = threading.Lock()


def names_a_lock(key):
    with LOCK:
        return key.index


def has_a_lock(lock):
    return lambda key: lock


@pytest.mark.parametrize(
    ("thing", "place"),
    [
        (threading.Lock(), "things[0], a _thread.lock"),
        ({"a": [threading.Lock()]}, "things[0]['a'][0], a _thread.lock"),
        (WithLock(), "things[0].parts[0], a _thread.lock"),
        (WithLock().__call__, "things[0][1].parts[0], a _thread.lock"),
        (names_a_lock, "things[0].__globals__.LOCK, a _thread.lock"),
        (has_a_lock(threading.Lock()), "things[0].__closure__.lock, a _thread.lock"),
        ((number for number in "ab"), "things[0], a builtins.generator"),
        (sys.stderr, "things[0], a "),
    ],
)
def test_what_is_not_understood_is_an_error(thing, place):
    """With its place: never a digest of an address."""
    with pytest.raises(TypeError) as caught:
        fingerprint_of(thing)
    assert str(caught.value).startswith(f"fingerprint_of does not understand {place}")


# --- files and modules ----------------------------------------------------------------------------


def test_a_file_counts_by_name_and_content(tmp_path):
    """Wherever it lies and whenever it was written."""
    for folder in "one", "two":
        (tmp_path / folder).mkdir()
    one, other = tmp_path / "one" / "a.txt", tmp_path / "two" / "a.txt"
    one.write_text("content")
    other.write_text("content")
    os.utime(other, (1, 1))
    before = fingerprint_of(one)
    assert fingerprint_of(other) == before
    other.write_text("another")
    assert fingerprint_of(other) != before
    assert fingerprint_of(one.rename(one.with_name("b.txt"))) != before
    assert fingerprint_of(str(other)) != fingerprint_of(other)


def test_a_directory_counts_by_what_is_in_it(tmp_path):
    """Names and contents at any depth, links followed; not where it lies."""

    def tree(name, content="content", inner="inner"):
        folder = tmp_path / name
        (folder / inner).mkdir(parents=True)
        (folder / inner / "a.txt").write_text(content)
        (folder / "b.txt").write_text("b")
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "a.pyc").write_text(name)
        return folder

    one = tree("one")
    before = fingerprint_of(one)
    assert fingerprint_of(tree("two")) == before
    assert fingerprint_of(tree("three", content="other")) != before
    assert fingerprint_of(tree("four", inner="other")) != before
    link = tmp_path / "link"
    link.symlink_to(one)
    assert fingerprint_of(link) == before
    (one / "empty").mkdir()
    assert fingerprint_of(one) != before
    (one / "loop").symlink_to(one)
    with pytest.raises(TypeError, match=r"needs a file or a directory as things\[0\], got .*loop"):
        fingerprint_of(one)


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    """With its place and name; in a function it is text, as what is read is not known."""
    with pytest.raises(FileNotFoundError, match=r"things\[1\] is the path of nothing .*absent"):
        fingerprint_of(1, tmp_path / "absent")
    module = module_of(
        "from pathlib import Path\nROOT = Path('absent')\ndef build(key): return ROOT"
    )
    before = fingerprint_of(module.build)
    module.ROOT = Path("other")
    assert fingerprint_of(module.build) != before


def test_a_module_counts_by_version_or_source(tmp_path, monkeypatch):
    """The version of an installed one, the source of one's own, be it a file or a package."""
    before = fingerprint_of(np)
    assert fingerprint_of(np.linalg) != before
    monkeypatch.setattr(np, "__version__", "0.0")
    assert fingerprint_of(np) != before
    assert fingerprint_of(iniconfig) != before  # by its metadata, as it has no __version__
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_file.py").write_text("x = 1\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "part.py").write_text("x = 1\n")
    import own_file
    import own_package

    before = fingerprint_of(own_file), fingerprint_of(own_package)
    (tmp_path / "own_file.py").write_text("x = 2\n")
    (tmp_path / "own_package" / "part.py").write_text("x = 2\n")
    after = fingerprint_of(own_file), fingerprint_of(own_package)
    assert before[0] != after[0]
    assert before[1] != after[1]
    with pytest.raises(TypeError, match="no version and no source of things"):
        fingerprint_of(module_of(""))


# --- other processes ------------------------------------------------------------------------------

ELSEWHERE = """
import json, sys
sys.path.append(sys.argv[1])
import test_fingerprint
print(json.dumps(test_fingerprint.digests_to_compare()))
"""


def digests_to_compare():
    things = [
        BEFORE,
        even,
        Config({"a", "b", "c"}),
        impure.pure_builds(),
        impure.order_of_a_set,
        impure.Data(),
        functools.partial(impure.fails_at, index=3),
        np,
    ]
    return [fingerprint_of(thing) for thing in things]


def test_another_process_has_the_same_digests():
    """With another hash seed and another working directory."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", ELSEWHERE, str(TESTS)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == digests_to_compare()


def draws_by_functions_of_modules(key):
    return uniform(0, 1) + np_rand()


def test_functions_of_modules_that_are_methods_count_by_name():
    """`random.uniform` is a method of a generator whose state is no part of the code."""
    things = (draws_by_functions_of_modules, uniform, functools.partial(np_rand, 2))
    before = fingerprint_of(*things)
    uniform(0, 1), np_rand()
    assert fingerprint_of(*things) == before
    assert fingerprint_of(random.Random(1).uniform) != fingerprint_of(random.Random(2).uniform)
    assert fingerprint_of(uniform) != fingerprint_of(random.gauss)


class Scaled(torch.utils.data.Dataset):
    def __init__(self, scale):
        self.scale = scale

    def __getitem__(self, index):
        return index * self.scale


class Named:
    """An instance that has given itself the name of a function."""

    def __init__(self, value):
        self.__qualname__ = "named"
        self.value = value

    def __call__(self, key):
        return self.value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda scale: FromDataset(Scaled(scale)),
        lambda scale: FromDataset(Scaled(scale)).__call__,
        lambda scale: FromDataset([scale]),
        lambda scale: FromDataset(TensorDataset(torch.full((3,), scale))),
        lambda scale: [FromDataset(Scaled(scale))],
        lambda scale: functools.partial(max, FromDataset(Scaled(scale))),
        lambda scale: functools.update_wrapper(Named(scale), max),
        Named,
    ],
)
def test_what_a_callable_object_holds_counts(wrap):
    """A dataset in a FromDataset above all: another one must not find its samples."""
    assert fingerprint_of(wrap(1)) == fingerprint_of(wrap(1))
    assert fingerprint_of(wrap(1)) != fingerprint_of(wrap(2))


def test_a_dataset_that_a_build_names_counts():
    """In a closure or a default."""

    def made(dataset):
        return lambda key, again=dataset: (dataset(key), again(key))

    one, other = (FromDataset(Scaled(scale)) for scale in (1, 2))
    assert fingerprint_of(made(one)) != fingerprint_of(made(other))
    assert fingerprint_of(made(one)) == fingerprint_of(made(FromDataset(Scaled(1))))
