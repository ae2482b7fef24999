import collections
import datetime
import functools
import gzip
import marshal
import pickle
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from helpers import Caught, Colour, Labelled, Thing, bits, sample_files

from reuseloader import IndexEpoch, ReuseDataset, ReuseError, ReusePolicy

FOREVER = ReusePolicy(10**9)
OVERHEAD = 4000  # bytes that torch.save adds to a tensor, at most
BIG = 500_000  # elements of a tensor that the samples below are small parts of
META = torch.empty(3, device="meta")
Pair = collections.namedtuple("Pair", ["left", "right"])


class Reuse:
    """One sample, built once and then read back."""

    def __init__(self, make, path, policy=FOREVER, **options):
        self.builds = 0
        self._make = make
        self.dataset = ReuseDataset(self._build, 1, path, policy, **options)
        self.path = Path(path) / "00000000.pt"

    def _build(self, key):
        self.builds += 1
        return self._make()

    def at(self, epoch):
        return self.dataset[IndexEpoch(0, epoch)]


def assert_reused(make, path, **options):
    """The sample is stored, read back bit for bit, and nothing is ever said; returns both."""
    reuse = Reuse(make, path, **options)
    with Caught() as caught:
        built, read = reuse.at(0), reuse.at(1)
        reuse.dataset.close()
    assert not caught
    assert reuse.builds == 1
    assert bits(read) == bits(built)
    return reuse, read


def big(dtype=torch.float64):
    return (torch.arange(BIG) % 101).to(dtype)


# --- views ----------------------------------------------------------------------------------------

VIEWS = {
    "row": lambda: big().view(1000, -1)[3],
    "element": lambda: big()[3],
    "slice": lambda: big()[10:20],
    "nothing": lambda: big()[:0],
    "chunk": lambda: big().chunk(1000)[7],
    "split": lambda: big().split(100)[-1],
    "narrow": lambda: big().narrow(0, 400_000, 50),
    "stride": lambda: big()[::1000],
    "column": lambda: big().view(1000, -1)[:, 2],
    "transposed": lambda: big().view(500, 1000).t()[5:7],
    "all transposed": lambda: big().view(500, 1000).t(),
    "permuted": lambda: big().view(10, 50, 1000).permute(2, 0, 1)[0],
    "expanded": lambda: big()[:1].expand(1000),
    "expanded row": lambda: big()[:10].expand(20, 10),
    "diagonal": lambda: torch.diagonal(big()[:250_000].view(500, 500)),
    "unfolded": lambda: big()[:20].unfold(0, 5, 1),
    "unbound": lambda: torch.unbind(big().view(1000, -1))[1],
    "reinterpreted": lambda: big()[:10].view(torch.int32),
    "real part": lambda: big(torch.complex64)[:50].real,
    "conjugate": lambda: big(torch.complex64)[:50].conj(),
    "negative": lambda: big(torch.complex64)[:50].conj().imag,
    "detached": lambda: (big().requires_grad_() * 2).detach()[:9],
    "parameter": lambda: torch.nn.Parameter(big()[:10]),
    "subclass": lambda: big().as_subclass(Marked)[:10],
}
CONTAINERS = {
    "bare": lambda view: view,
    "dict": lambda view: {"x": view, "y": 1},
    "list in tuple": lambda view: ([view], 2),
    "namedtuple": lambda view: Pair(view, 0),
    "dataclass": lambda view: Labelled(view),
    "object": lambda view: Thing(view),
    "deep": lambda view: {"a": [Thing(Labelled({"b": (view,)}))]},
}


class Marked(torch.Tensor):
    """A kind of tensor of its own, as torchvision's are."""


def tensors(value):
    """Every tensor in a sample."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, Thing):
        value = [value.value]
    elif isinstance(value, Labelled):
        value = [value.image, value.label]
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in tensors(item)]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_costs_its_own_size(view, tmp_path):
    """Whatever part of a big tensor a sample is, its file has about the size of the part."""
    reuse, read = assert_reused(VIEWS[view], tmp_path)
    assert reuse.path.stat().st_size <= read.numel() * read.element_size() + OVERHEAD


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_view_costs_its_own_size_wherever_it_lies(container, tmp_path):
    """A view of a big tensor is cut out in whatever container or object it lies."""
    reuse, read = assert_reused(lambda: CONTAINERS[container](big()[5:25]), tmp_path)
    assert reuse.path.stat().st_size <= 20 * 8 + OVERHEAD
    assert [tensor.numel() for tensor in tensors(read)] == [20]


@pytest.mark.parametrize(
    "pick",
    [
        lambda t: {"a": t[:10], "b": t[5:15]},
        lambda t: {"a": t[:10], "b": t[:10]},
        lambda t: [t[:50], t[:50][10:20], t[3]],
        lambda t: Pair(t[::1000], Thing(t[1::1000])),
    ],
    ids=["overlapping", "equal", "nested", "interleaved"],
)
def test_views_of_one_tensor_cost_their_own_size(pick, tmp_path):
    """Several fields that share one big storage are stored at their own sizes and right."""
    reuse, read = assert_reused(lambda: pick(big()), tmp_path)
    size = sum(tensor.numel() * 8 for tensor in tensors(read))
    assert reuse.path.stat().st_size <= size + OVERHEAD


def test_one_tensor_in_two_fields_is_right(tmp_path):
    """A tensor, and a view, that occurs twice in a sample has the right values in both places."""
    whole = torch.arange(10.0)
    view = big()[:10]
    _, read = assert_reused(lambda: [whole, whole, view, view], tmp_path)
    assert bits(read) == bits([whole, whole, view, view])


def test_a_tensor_that_learns_still_does(tmp_path):
    """requires_grad survives, for a whole tensor and for a view of a big one."""
    for place, make in enumerate((lambda: torch.ones(3), lambda: big()[:3])):
        _, read = assert_reused(lambda make=make: make().requires_grad_(), tmp_path / str(place))
        assert read.requires_grad


def test_building_does_not_change_the_sample(tmp_path):
    """The built sample is delivered as it is: its view of a big tensor is not cut out of it."""
    source = big()
    reuse = Reuse(lambda: source[:10], tmp_path)
    assert reuse.at(0).data_ptr() == source.data_ptr()


# --- kinds of samples -----------------------------------------------------------------------------

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
SAMPLES = {
    "None": lambda: None,
    "zero": lambda: 0,
    "False": lambda: False,
    "empty str": lambda: "",
    "empty bytes": lambda: b"",
    "empty list": list,
    "empty tuple": tuple,
    "empty dict": dict,
    "zero tensor": lambda: torch.tensor(0),
    "empty tensor": lambda: torch.empty(0, 3, dtype=torch.int16),
    "empty array": lambda: np.empty((0, 3), np.int16),
    "nan": lambda: {"a": float("nan"), "b": -0.0, "c": float("-inf"), "d": 1e-310},
    "nan tensor": lambda: torch.tensor([float("nan"), -0.0, float("inf")]),
    "big int": lambda: [2**200, -(2**64)],
    "numpy scalars": lambda: [np.float32(1.5), np.int8(-1), np.bool_(True), np.float64("nan")],
    "arrays": lambda: {
        "c": np.arange(6).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "view": np.arange(100)[::7],
        "0-d": np.array(2.5),
        "text": np.array(["a", "bcd"]),
        "records": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        "dates": np.array(["2024-02-29"], dtype="datetime64[D]"),
    },
    "big endian": lambda: [np.arange(3, dtype=">i4"), np.ones((2, 2), ">f8"), np.array(2, ">u2")],
    "big endian records": lambda: np.array([(1, 2.5)], dtype=[("a", ">i4"), ("b", "f8")]),
    "big endian text": lambda: np.array(["a", "bcd"], dtype=">U3"),
    "big endian dates": lambda: np.array(["2024-02-29"], dtype=">M8[D]"),
    "array twice": lambda: [(x := np.arange(4.0)), x, x[1:3], x[::-1], x.reshape(2, 2).T],
    "read-only array": lambda: np.broadcast_to(np.float32(2), (2, 3)),
    "many arrays": lambda: [np.full(3, i, np.int16) for i in range(50)],
    "every array dtype": lambda: [np.arange(3).astype(c) for c in "?bBhHiIlLqQefdgFDGSUmMO"],
    "array in object array": lambda: np.array([np.arange(2), "a", None], dtype=object)[:2].tolist(),
    "masked": lambda: np.ma.array([1.0, 2.0], mask=[0, 1]).filled(0),
    "namedtuple": lambda: Pair(torch.ones(2), {"deep": Pair(1, 2)}),
    "dataclass": lambda: Labelled(torch.ones(2), Labelled(np.ones(2))),
    "enum": lambda: [Colour.RED, Colour.BLUE],
    "object": lambda: Thing([Thing(torch.zeros(1)), Thing(None)]),
    "sets": lambda: [{1, "a"}, frozenset({(1, 2)})],
    "standard library": lambda: [
        datetime.datetime(2024, 2, 29, 12, 30),
        PurePosixPath("a/b"),
        collections.OrderedDict(a=1),
        collections.Counter("abca"),
        1 + 2j,
        range(3),
    ],
    "dtype": lambda: [torch.float16, np.dtype("int8"), torch.Size([1, 2])],
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_sample_is_a_sample(sample, tmp_path):
    """Values, types and dtypes of any object come back, None and all that is falsy included."""
    assert_reused(SAMPLES[sample], tmp_path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_survives(dtype, tmp_path):
    """Tensors of every dtype come back bit for bit, whole and as views."""
    assert_reused(lambda: [big(dtype)[:9], big(dtype)[:9].clone()], tmp_path)


def test_sparse_tensors_survive(tmp_path):
    """A sparse tensor comes back with its layout and its values."""
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    reuse = Reuse(dense.to_sparse, tmp_path)
    reuse.at(0)
    read = reuse.at(1)
    assert reuse.builds == 1
    assert read.layout == torch.sparse_coo
    assert torch.equal(read.to_dense(), dense)


def test_tensors_can_be_loaded_without_running_code(tmp_path):
    """``load=partial(torch.load, weights_only=True)`` reads samples of tensors and plain values."""
    safe = functools.partial(torch.load, weights_only=True)
    assert_reused(lambda: {"x": big()[:9], "y": [1, "a", None, (2.5, True)]}, tmp_path, load=safe)


def test_what_a_safe_load_refuses_is_built_anew(tmp_path):
    """A sample that ``weights_only=True`` refuses is built at every use, and that is said once."""
    safe = functools.partial(torch.load, weights_only=True)
    reuse = Reuse(lambda: Thing(1), tmp_path, load=safe)
    with Caught() as caught:
        values = [reuse.at(epoch).value for epoch in range(4)]
        reuse.dataset.close()
    assert values == [1] * 4
    assert reuse.builds == 4
    assert len(caught) == 1
    assert str(reuse.path) in caught[0]
    assert "Weights only load failed" in caught[0]


@pytest.mark.parametrize("value", ["1", "y", "yes", "true"])
def test_weights_only_forced_by_the_environment_is_a_clear_error(value, tmp_path, monkeypatch):
    """With TORCH_FORCE_WEIGHTS_ONLY_LOAD a refused sample is an error that names the variable."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", value)
    reuse = Reuse(lambda: Thing(1), tmp_path)
    assert reuse.at(0).value == 1
    for epoch in (1, 2):
        with pytest.raises(ReuseError, match="TORCH_FORCE_WEIGHTS_ONLY_LOAD") as caught:
            reuse.at(epoch)
        notes = "\n".join(caught.value.__notes__)
        assert f"index 0, epoch {epoch}, generation 0" in notes
        assert str(reuse.path) in notes
    assert reuse.builds == 1


def test_weights_only_forced_by_the_environment_lets_tensors_pass(tmp_path, monkeypatch):
    """With TORCH_FORCE_WEIGHTS_ONLY_LOAD samples of tensors are reused as ever."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    assert_reused(lambda: {"x": big()[:9], "y": torch.ones(2)}, tmp_path)


class Node:
    """A node of a graph."""

    def __init__(self, number):
        self.number = number
        self.neighbours = []


@pytest.mark.timeout(30)
def test_a_sample_may_be_a_graph(tmp_path):
    """Objects that all refer to each other are looked at once each, and come back as they were."""
    nodes = [Node(torch.tensor(number)) for number in range(12)]
    for node in nodes:
        node.neighbours = [other for other in nodes if other is not node]
    reuse = Reuse(lambda: nodes, tmp_path)
    assert reuse.at(0) is nodes
    read = reuse.at(1)
    assert reuse.builds == 1
    assert [int(node.number) for node in read] == list(range(12))
    for node in read:
        others = [other for other in read if other is not node]
        assert all(a is b for a, b in zip(node.neighbours, others, strict=True))
    nodes[7].number = META
    for lifetime in (1, 3):
        with pytest.raises(TypeError, match=r"number is on device 'meta'"):
            Reuse(lambda: nodes, tmp_path, ReusePolicy(lifetime)).at(0)


UNPICKLABLE = {
    "lambda": (lambda: lambda: 1, "sample"),
    "generator": (lambda: (i for i in range(3)), "sample"),
    "open file": (lambda: open("/dev/null"), "sample"),  # noqa: SIM115
    "in a list in a dict": (lambda: {"a": [torch.ones(1), lambda: 1]}, "sample['a'][1]"),
    "in a dataclass": (lambda: Labelled(1, (2, lambda: 1)), "sample.label[1]"),
    "in an object": (lambda: Thing({"b": lambda: 1}), "sample.value['b']"),
}


@pytest.mark.parametrize("sample", UNPICKLABLE)
def test_a_sample_that_cannot_be_pickled_is_an_error(sample, tmp_path):
    """A sample that torch.save refuses is an error with index, epoch, generation and place."""
    make, place = UNPICKLABLE[sample]
    made = make()
    reuse = Reuse(lambda: made, tmp_path, ReusePolicy(3))
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as caught:
        reuse.at(4)
    notes = "\n".join(caught.value.__notes__)
    assert "in save for index 0, epoch 4, generation 1" in notes
    assert f"fails at {place}, of type" in notes
    assert sample_files(tmp_path) == []
    if hasattr(made, "close"):
        made.close()


# --- devices --------------------------------------------------------------------------------------

ELSEWHERE = {
    "bare": (META, "sample"),
    "parameter": (torch.nn.Parameter(META), "sample"),
    "dict": ({"a": torch.ones(1), "b": META}, "sample['b']"),
    "number as name": ({7: META}, "sample[7]"),
    "list": ([1, META], "sample[1]"),
    "tuple": ((META,), "sample[0]"),
    "namedtuple": (Pair(1, META), "sample[1]"),
    "dataclass": (Labelled(1, META), "sample.label"),
    "ordered dict": (collections.OrderedDict(a=META), "sample['a']"),
    "deep": ({"a": [(1, Labelled({"b": META}))]}, "sample['a'][0][1].image['b']"),
}
USES = {"first use": (4, 0), "last use": (4, 3), "no reuse": (1, 0), "for ever": (10**9, 0)}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("sample", ELSEWHERE)
def test_tensors_of_another_device_are_a_type_error(sample, use, tmp_path):
    """A tensor off the CPU is a TypeError that names its place, also where it is not stored."""
    made, place = ELSEWHERE[sample]
    lifetime, epoch = USES[use]
    reuse = Reuse(lambda: made, tmp_path, ReusePolicy(lifetime))
    for _ in range(2):
        with pytest.raises(TypeError, match="CPU") as caught:
            reuse.at(epoch)
        assert f"{place} is on device 'meta'" in str(caught.value)
    assert reuse.builds == 2
    assert sample_files(tmp_path) == []


@pytest.mark.parametrize("use", USES)
def test_tensors_of_another_device_in_objects_are_a_type_error(use, tmp_path):
    """A tensor off the CPU in an object of the user's is a TypeError at every build as well."""
    lifetime, epoch = USES[use]
    reuse = Reuse(lambda: {"thing": Thing(META)}, tmp_path, ReusePolicy(lifetime))
    with pytest.raises(TypeError, match=r"CPU.*meta"):
        reuse.at(epoch)
    assert sample_files(tmp_path) == []


@pytest.mark.parametrize("use", USES)
def test_tensors_of_another_device_are_refused_before_save(use, tmp_path):
    """With a save function of the user's the same TypeError comes, and save is not called."""
    lifetime, epoch = USES[use]
    reuse = Reuse(
        lambda: {"x": META}, tmp_path, ReusePolicy(lifetime), save=never, load=pickle.load
    )
    with pytest.raises(TypeError, match=r"sample\['x'\] is on device 'meta'"):
        reuse.at(epoch)


def never(sample, file):
    raise AssertionError("save was called")


# --- save and load of the user's ------------------------------------------------------------------

PAYLOAD = b"exactly these bytes \x00\xff" * 50


def save_numpy(sample, file):
    np.save(file, sample)


def save_numpy_zip(sample, file):
    np.savez_compressed(file, x=sample)


def load_numpy_zip(file):
    return np.load(file)["x"]


def save_gzip(sample, file):
    with gzip.open(file, "wb") as packed:
        pickle.dump(sample, packed)


def load_gzip(file):
    with gzip.open(file, "rb") as packed:
        return pickle.load(packed)


def save_and_close(sample, file):
    pickle.dump(sample, file)
    file.close()


def save_in_with(sample, file):
    with file:
        pickle.dump(sample, file)


def save_backwards(sample, file):
    file.write(b"\0" * 8)
    pickle.dump(sample, file)
    end = file.tell()
    file.seek(0)
    file.write(end.to_bytes(8, "little"))


def load_backwards(file):
    assert int.from_bytes(file.read(8), "little") == file.seek(0, 2)
    file.seek(8)
    return pickle.load(file)


def save_twice(sample, file):
    pickle.dump("a longer draft that is thrown away" * 9, file)
    file.seek(0)
    file.truncate()
    pickle.dump(sample, file)


def save_and_answer(sample, file):
    return file.write(pickle.dumps(sample))


def save_and_answer_none_first(sample, file):
    file.writelines([b"", pickle.dumps(sample)])
    return {"anything": sample}


def save_buffered(sample, file):
    file.write(bytearray(pickle.dumps(sample)))
    file.flush()


def load_half(file):
    """All that pickle reads up to its end mark; the rest stays unread."""
    return pickle.loads(file.read())


def save_with_rest(sample, file):
    pickle.dump(sample, file)
    file.write(b"and much that load leaves unread" * 100)


def save_torch_alone(sample, file):
    torch.save(sample, file)


def load_torch_alone(file):
    return torch.load(file, weights_only=False)


def array():
    return np.arange(12, dtype=np.int16).reshape(3, 4)


def mixed():
    return {"x": torch.arange(3), "y": array(), "z": [None, "a"]}


PAIRS = {
    "pickle": (pickle.dump, pickle.load, mixed),
    "pickle protocol 0": (functools.partial(pickle.dump, protocol=0), pickle.load, mixed),
    "np.save": (save_numpy, np.load, array),
    "np.savez": (save_numpy_zip, load_numpy_zip, array),
    "gzip": (save_gzip, load_gzip, mixed),
    "torch": (save_torch_alone, load_torch_alone, mixed),
    "closes": (save_and_close, pickle.load, mixed),
    "closes by with": (save_in_with, pickle.load, mixed),
    "seeks back": (save_backwards, load_backwards, mixed),
    "truncates": (save_twice, pickle.load, mixed),
    "returns a number": (save_and_answer, pickle.load, mixed),
    "returns a dict": (save_and_answer_none_first, pickle.load, mixed),
    "flushes": (save_buffered, pickle.load, mixed),
    "leaves half": (save_with_rest, pickle.load, mixed),
    "save alone": (save_torch_alone, None, mixed),
    "load alone": (None, load_torch_alone, mixed),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_every_lossless_pair_works(pair, tmp_path):
    """A save/load pair, or one of them alone, may do to its file what the convention allows."""
    save, load, make = PAIRS[pair]
    reuse, _ = assert_reused(make, tmp_path, save=save, load=load)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000.pt", "reuseloader.json"]
    assert reuse.path.stat().st_size > 80


def test_load_sees_exactly_what_save_wrote(tmp_path):
    """Load reads the bytes of save, no more however much it asks for, at any size of the steps."""
    seen = []

    def save(sample, file):
        file.write(sample)

    def load(file):
        start = file.tell()
        seen.append(file.read(10**9) + file.read())
        file.seek(-5, 2)
        seen.append(file.read(100))
        file.seek(start)
        seen.append(b"".join(iter(lambda: file.read(7), b"")))
        file.seek(start)
        return file.read()

    _, read = assert_reused(lambda: PAYLOAD, tmp_path, save=save, load=load)
    assert read == PAYLOAD
    assert seen == [PAYLOAD, PAYLOAD[-5:], PAYLOAD]


def test_load_may_close_its_file(tmp_path):
    """A load that closes the file it is given is fine."""

    def load(file):
        with file:
            return pickle.load(file)

    assert_reused(mixed, tmp_path, save=pickle.dump, load=load)


def test_a_pair_sees_the_sample_alone(tmp_path):
    """Save gets the very object that build returned, not a wrapping of it."""
    made, seen = mixed(), []

    def save(sample, file):
        seen.append(sample)
        pickle.dump(sample, file)

    Reuse(lambda: made, tmp_path, save=save, load=pickle.load).at(0)
    assert len(seen) == 1
    assert seen[0] is made


def write_nothing(sample, file):
    pass


def write_elsewhere(sample, file, path):
    Path(path).write_bytes(pickle.dumps(sample))


def write_and_take_back(sample, file):
    pickle.dump(sample, file)
    file.seek(0)
    file.truncate()


def test_a_save_that_writes_nothing_is_an_error(tmp_path):
    """A save that leaves its file empty is one clear error that names save, function and sample."""
    for number, save in enumerate(
        (
            write_nothing,
            functools.partial(write_elsewhere, path=tmp_path / "elsewhere"),
            write_and_take_back,
        )
    ):
        path = tmp_path / str(number)
        reuse = Reuse(mixed, path, save=save, load=pickle.load)
        with pytest.raises(ReuseError, match=r"^save must write the sample") as caught:
            reuse.at(0)
        assert getattr(save, "func", save).__name__ in str(caught.value)
        assert "index 0, epoch 0, generation 0" in caught.value.__notes__[0]
        assert sample_files(path) == []


def test_another_save_is_not_read(tmp_path):
    """What one save wrote is built anew, in silence, under another, of the same name or not."""
    pairs = [(None, None), (pickle.dump, pickle.load), (save_gzip, load_gzip)]
    pairs += [(marshal.dump, marshal.load), (pickle.dump, pickle.load)]
    for save, load in pairs:
        assert_reused(lambda: [1, 2.5, None], tmp_path, save=save, load=load)


@pytest.mark.parametrize("name", ["save", "load", "finish"])
@pytest.mark.parametrize("value", [1, "pickle", [pickle.dump]])
def test_functions_must_be_callable(name, value, tmp_path):
    """save, load and finish are callables or None; else a TypeError shows the value."""
    with pytest.raises(TypeError, match=f"^{name} must be callable") as caught:
        Reuse(mixed, tmp_path, **{name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", ["pickle", "TORCH", "", None, 1])
def test_format_must_be_known(value, tmp_path):
    """An unknown format is one error that names it."""
    with pytest.raises((TypeError, ValueError), match=r"^format must be") as caught:
        Reuse(mixed, tmp_path, format=value)
    assert repr(value) in str(caught.value)
