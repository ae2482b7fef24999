import enum
import json
import math
import struct
import tracemalloc
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import Caught, run_pass, sample_files
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reuseloader import IndexEpoch, ReuseDataLoader, ReuseDataset, ReusePolicy
from reuseloader.record import DamagedError
from reuseloader.tensors import TensorsCodec

CODEC = TensorsCodec()
STATIC = ReusePolicy(10**9)
GOLDEN = bytes.fromhex(
    "0000803f00000040000000000000000061620000000000000000000000000000"
    "5b2264696374222c202278222c205b2274656e736f72222c2022666c6f617433"
    "32222c205b322c20315d5d2c2022c3bc222c205b227475706c65222c20332c20"
    "5b226279746573222c20325d2c206e756c6c5d5d5400000000000000"
)
GOLDEN_SAMPLE = {"x": torch.tensor([[1.0], [2.0]]), "ü": (3, b"ab", None)}


def same(a, b):
    """Equal in types, dtypes, shapes, order and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    return a == b


def raw(tensor):
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def round_trip(sample):
    return CODEC.decode(bytearray(CODEC.encode(sample)))


# --- what it stores -------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.integers(-(2**63), 2**64)
)
TEXTS = st.one_of(st.text(), st.text(st.characters(categories=["Cs"])), st.binary())
ARRAYS = hnp.arrays(
    st.one_of(
        hnp.scalar_dtypes().filter(lambda dtype: dtype.itemsize > 0),
        hnp.array_dtypes().filter(lambda dtype: dtype.itemsize > 0),
    ),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
TENSORS = st.builds(
    lambda array: torch.from_numpy(np.array(array)),
    hnp.arrays(st.sampled_from("?bhilBfd"), hnp.array_shapes(min_dims=0, min_side=0, max_side=4)),
)
LEAVES = st.one_of(NUMBERS, TEXTS, ARRAYS, TENSORS)
SAMPLES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(NUMBERS, TEXTS, st.tuples(NUMBERS)), inner),
    ),
)


@given(SAMPLES)
def test_every_sample_comes_back_as_it_was(sample):
    """Values, types, dtypes, shapes, order, NaN, -0.0, lone surrogates, ints of any size."""
    assert same(round_trip(sample), sample)


DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_every_dtype_of_torch(name, shape):
    """All bits of every dtype, and the shapes without elements."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    count = math.prod(shape) * dtype.itemsize
    elements = torch.arange(count, dtype=torch.uint8) * (name != "bool")
    tensor = elements.view(dtype).view(shape)
    assert same(round_trip([tensor]), [tensor])


VIEWS = {
    "row": lambda big: big[3],
    "transposed": lambda big: big.T,
    "every second": lambda big: big[::2],
    "expanded": lambda big: big[0, 0].expand(3, 3),
    "conjugate": lambda big: torch.complex(big, big)[:2].conj(),
    "negative": lambda big: torch.complex(big, big)[:2].conj().imag,
    "reversed array": lambda big: big.numpy()[::-1, ::-2],
    "Fortran order": lambda big: np.asfortranarray(big.numpy()),
    "read-only": lambda big: np.broadcast_to(big.numpy()[:2], (2, 2, 50)),
    "big-endian": lambda big: big.numpy()[:2].astype(">f4"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_costs_its_own_size(view):
    """A view of a big tensor is stored as the elements that it shows."""
    sample = VIEWS[view](torch.arange(5000.0).reshape(100, 50))
    payload = CODEC.encode(sample)
    assert len(payload) < sample.nbytes + 100
    assert same(CODEC.decode(payload), sample)


def test_what_is_loaded_can_be_written_and_shares_nothing(tmp_path):
    """In-place work on one tensor of a loaded sample reaches no other, nor the store."""
    first = {"a": torch.ones(3), "b": torch.ones(3), "c": np.ones(3, np.uint8), "d": b"abc"}
    dataset = ReuseDataset(lambda key: first, 2, tmp_path, STATIC, format="tensors")
    dataset[0]
    sample = dataset[0]
    sample["a"] += 1
    sample["c"] += 1
    assert same(sample["b"], torch.ones(3))
    assert sample["c"].tolist() == [2, 2, 2]
    assert same(dataset[0], first)
    read_only = CODEC.decode(CODEC.encode(first))  # as from a store that returns bytes
    read_only["a"] += 1
    assert same(read_only["b"], torch.ones(3))


def test_golden_bytes():
    """The layout in the module's docstring, byte for byte."""
    assert CODEC.encode(GOLDEN_SAMPLE) == GOLDEN
    assert same(CODEC.decode(GOLDEN), GOLDEN_SAMPLE)


# --- what it refuses ------------------------------------------------------------------------------


@dataclass
class Point:
    x: float


class Colour(enum.IntEnum):
    RED = 1


Pair = namedtuple("Pair", "x y")
CYCLE = []
CYCLE.append(CYCLE)
REFUSED = {
    "object": (object(), "builtins.object"),
    "set": ({1}, "builtins.set"),
    "bytearray": (bytearray(b"a"), "builtins.bytearray"),
    "complex": (1j, "builtins.complex"),
    "dataclass": (Point(1.0), "Point"),
    "named tuple": (Pair(1, 2), "Pair"),
    "enum": (Colour.RED, "Colour"),
    "ordered dict": (OrderedDict(a=1), "OrderedDict"),
    "NumPy scalar": (np.float64(1), "numpy.float64"),
    "object array": (np.array([None]), "dtype object"),
    "array subclass": (np.ma.masked_array([1]), "MaskedArray"),
    "array of nothing": (np.zeros(2, np.dtype([])), "dtype"),
    "parameter": (torch.nn.Parameter(torch.ones(1)), "Parameter"),
    "tensor with grad": (torch.ones(1, requires_grad=True), "requires grad"),
    "dimensions": (torch.ones([1] * 40), "40 dimensions"),
    "sparse tensor": (torch.eye(2).to_sparse(), "torch.sparse_coo"),
    "cycle": (CYCLE, "contains itself"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_plain_value_is_named_with_its_place(kind, tmp_path):
    """A TypeError says what it is, where in the sample, of which index and epoch."""
    value, text = REFUSED[kind]
    dataset = ReuseDataset(
        lambda key: {"fine": [1], "x": (1, [value])}, 4, tmp_path, STATIC, format="tensors"
    )
    with pytest.raises(TypeError) as caught:
        dataset[IndexEpoch(3, 1)]
    message = str(caught.value)
    assert message.startswith("format='tensors' cannot store sample['x'][1][0]: ")
    assert text in message
    assert "format='torch'" in message
    assert "in save for index 3, epoch 1, generation 0" in caught.value.__notes__[0]
    assert not sample_files(tmp_path)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_named():
    """It has a strided layout, and yet no elements in a row."""
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.raises(TypeError, match=r"cannot store sample\[0\]: .*nested tensor"):
        CODEC.encode([nested])


@pytest.mark.filterwarnings("error")
def test_what_a_dtype_says_beside_its_kind_is_dropped():
    """The metadata of a dtype, of which NumPy's own equality knows nothing."""
    dtype = np.dtype("f4", metadata={"unit": "s"})
    assert same(round_trip(np.ones(2, dtype)), np.ones(2, "f4"))


def test_a_key_that_is_no_plain_value_is_named():
    """So are keys of a dict."""
    with pytest.raises(TypeError, match=r"cannot store sample\[0\]: .*Colour is not one of"):
        CODEC.encode([{Colour.RED: 1}])


def test_save_and_load_clash():
    """A save or load beside a format that has its own is an error that names it."""
    for name in ("save", "load"):
        with pytest.raises(ValueError, match=f"{name} must not be given with format='tensors'"):
            ReuseDataset(len, 1, "unused", STATIC, format="tensors", **{name: len})


# --- hostile files --------------------------------------------------------------------------------


def payload_of(structure, elements=b""):
    text = structure if isinstance(structure, bytes) else json.dumps(structure).encode()
    return elements + text + struct.pack("<Q", len(text))


HOSTILE = {
    "nothing": b"",
    "no length": b"1234567",
    "length beyond the start": struct.pack("<Q", 1),
    "huge length": struct.pack("<Q", 2**64 - 1),
    "no JSON": payload_of(b"[1,"),
    "two values": payload_of(b"1 2"),
    "no UTF-8": payload_of(b'"\xff"'),
    "object": payload_of({"a": 1}),
    "nested object": payload_of(["list", {"a": 1}]),
    "deep": payload_of(b"[" * 100_000 + b"]" * 100_000),
    "deep lists": payload_of(b'["list",' * 5000 + b"1" + b"]" * 5000),
    "long number": payload_of(b"1" * 10_000),
    "empty list": payload_of([]),
    "unknown kind": payload_of(["object", 1]),
    "kind that is no text": payload_of([["list"], 1]),
    "half an item": payload_of(["dict", 1]),
    "list as key": payload_of(["dict", ["list"], 1]),
    "bytes that are not there": payload_of(["bytes", 2**62], bytes(16)),
    "bytes backwards": payload_of(["bytes", -16], bytes(16)),
    "bytes by text": payload_of(["bytes", "16"], bytes(16)),
    "bytes left over": payload_of(["bytes", 16], bytes(32)),
    "one buffer twice": payload_of(["list", ["bytes", 16], ["bytes", 16]], bytes(16)),
    "hex that is none": payload_of(["int", "zz"]),
    "hex that is a number": payload_of(["int", 1]),
    "tensor that is not there": payload_of(["tensor", "float32", [2**40]], bytes(16)),
    "size that overflows": payload_of(["tensor", "uint8", [2**32, 2**32]]),
    "size that overflows to one": payload_of(
        ["tensor", "uint8", [2**33 + 1, 2**33 - 1]], bytes(16)
    ),
    "size beyond 64 bits": payload_of(["tensor", "uint8", [2**70, 0]]),
    "negative": payload_of(["tensor", "uint8", [-4, -4]], bytes(16)),
    "negative and none": payload_of(["tensor", "uint8", [-1, 0]]),
    "guessed": payload_of(["tensor", "uint8", [-1]], bytes(16)),
    "shape by text": payload_of(["tensor", "uint8", ["a", 2**40]]),
    "shape of lists": payload_of(["tensor", "uint8", [[1], 2**40]]),
    "shape of fractions": payload_of(["tensor", "uint8", [4.0, 4]], bytes(16)),
    "no shape": payload_of(["tensor", "uint8"]),
    "dtype of none": payload_of(["tensor", "qint8", [16]], bytes(16)),
    "dtype that is a function": payload_of(["tensor", "load", [16]], bytes(16)),
    "object array": payload_of(["array", "|O", [2]], bytes(16)),
    "array without a dtype": payload_of(["array", None, [16]], bytes(16)),
    "array of nothing": payload_of(["array", "|S0", [2**40]]),
    "array of void": payload_of(["array", "|V0", [2**40]]),
    "array of huge items": payload_of(["array", "|V2147483647", [2**40]]),
    "array of a huge field": payload_of(["array", [["a", "<f4", [2**40]]], [1]]),
    "array of many fields": payload_of(["array", [["a", "<f4"], ["a", "<f4"]], [1]], bytes(16)),
    "array of odd fields": payload_of(["array", [[1]], [1]], bytes(16)),
    "negative array": payload_of(["array", "|u1", [-4, -4]], bytes(16)),
    "array that is not there": payload_of(["array", "<f8", [2**40, 2**20]]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_payload_is_damage(kind):
    """Whatever a file says, it is DamagedError, and it costs no memory."""
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match=r"no sample of format='tensors'"):
            CODEC.decode(bytearray(HOSTILE[kind]))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_hostile_file_is_built_anew(tmp_path):
    """Under a right stamp and right checksums: a miss, and one warning with the path."""
    dataset = ReuseDataset(lambda key: key.index, 2, tmp_path, STATIC, format="tensors")
    run_pass(dataset, 0)
    fetcher = dataset._fetcher
    key = dataset.policy.key(1, 0)
    encode = fetcher.codec.encode
    fetcher.codec.encode = lambda sample: HOSTILE["unknown kind"]
    fetcher.keep(key, None)
    fetcher.codec.encode = encode
    with Caught() as caught:
        assert run_pass(dataset, 1) == [0, 1]
        dataset.close()
    assert len(caught) == 1
    assert "00000001.pt: it is no sample of format='tensors': KeyError('object')" in caught[0]


# --- beside the other format ----------------------------------------------------------------------


def sample_of(key):
    return {"x": torch.rand(4, generator=key.generator()), "y": [key.index, None], "z": "text"}


def test_the_other_format_is_a_miss(tmp_path):
    """A directory used with one format and then another: every sample is right, no warning."""
    for epoch, kind in enumerate(("torch", "tensors", "torch", "tensors")):
        dataset = ReuseDataset(sample_of, 5, tmp_path, STATIC, format=kind)
        for index, sample in enumerate(run_pass(dataset, epoch)):
            assert same(sample, sample_of(STATIC.key(index, epoch).first))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_under_a_loader_it_gives_what_the_torch_format_gives(num_workers, tmp_path):
    """Batches of both formats are equal, built and read."""
    batches = []
    for kind in ("torch", "tensors"):
        with ReuseDataLoader(
            sample_of,
            10,
            tmp_path / kind,
            lifetime=3,
            shuffle=True,
            batch_size=4,
            num_workers=num_workers,
            collate_fn=list,
            format=kind,
        ) as loader:
            batches.append([batch for _ in range(4) for batch in loader])
    assert same(*batches)
