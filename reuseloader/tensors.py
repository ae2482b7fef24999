"""Sample <-> bytes without pickle: ``format="tensors"``.

A payload has three parts: the elements of all tensors, arrays and bytes, one after another, each
from a multiple of 16 bytes on; the structure, as JSON in UTF-8; the length of the structure, 8
bytes, little-endian. In the structure None, bool, str, float and an int of 64 bits stand for
themselves; all else is a list that begins with its kind:

========================================== ===================================================
``["list", item, ...]``, ``["tuple", ...]`` items in their order
``["dict", key, value, key, value, ...]``   items in their order
``["tensor", dtype, shape]``                dtype as in ``torch.float32``
``["array", dtype, shape]``                 dtype as `numpy.lib.format.dtype_to_descr` says it
``["bytes", length]``
``["int", text]``                           in hexadecimal
========================================== ===================================================

Nothing says where the elements of a tensor lie: they follow those of the one before it. So no two
can overlap, and nothing that a hostile file says makes more memory than the file has bytes (and a
small multiple of its structure).
"""

import json
import re
import struct
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reuseloader.record import Buffer, DamagedError, codec_id
from reuseloader.sample import parts_of, private, smallest_failing

_ALIGNMENT = 16  # of the largest element, complex128; also what memory begins at
_LENGTH = struct.Struct("<Q")
_DTYPES = {  # name -> (dtype, the NumPy dtype that carries its elements)
    name: (getattr(torch, name), np.dtype(carrier or name))
    for carrier, names in {
        "": "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
        "float16 float32 float64 complex64 complex128",
        "int16": "bfloat16",
        "uint8": "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu",
    }.items()
    for name in names.split()
    if hasattr(torch, name)  # torch 2.1 does not have all
}
_NAMES = {dtype: name for name, (dtype, _) in _DTYPES.items()}
_MOST_DIMENSIONS = 32  # of NumPy 1
_DESCR = re.compile(r"[<>|][biufcmMSUV]\d{1,10}(\[\d*\w+\])?")
_DEEPEST = 100  # levels of nesting


class TensorsCodec:
    """Stores nested dict, list and tuple of tensors, arrays, str, bytes, int, float, bool, None.

    Of just these types: what is none of them (a subclass, a NumPy scalar, an object) is a TypeError
    that names its place. Loaded tensors and arrays are writable views of one buffer.
    """

    id = codec_id("reuseloader.tensors")
    parts: dict[str, Any] = {}  # noqa: RUF012  # nothing of the user's goes along to workers

    def encode(self, sample: Any) -> bytes:
        """The payload of a sample; TypeError if it holds anything that this format does not."""
        try:
            return encoded(sample)
        except UnsupportedError as error:
            raise TypeError(
                f"format='tensors' cannot store {unsupported_place(sample)}: {error}. "
                f"Convert it in build, or use format='torch'"
            ) from None

    def decode(self, payload: Buffer) -> Any:
        """The sample of a payload, whose memory it takes over; DamagedError if it is none."""
        view = memoryview(payload)
        if view.readonly:
            view = memoryview(bytearray(view))
        try:
            return _decoded(view)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise DamagedError(f"it is no sample of format='tensors': {error!r}") from error

    def copy(self, sample: Any) -> Any:
        """A deep copy, as it would be decoded, or any other of what is not stored."""
        try:
            return self.decode(encoded(sample))
        except UnsupportedError:
            return private(sample)


class UnsupportedError(TypeError):
    """Something that this format does not store."""


def unsupported_place(sample: Any) -> str:
    """Where in a sample the innermost part lies that `encoded` does not take."""
    return smallest_failing(sample, encoded, _parts)[0]


def _parts(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What `encoded` walks into, and no other kind of mapping, sequence or object."""
    return parts_of(place, value) if type(value) in (dict, list, tuple) else iter(())


def encoded(sample: Any) -> bytes:
    """The payload of a sample; UnsupportedError, with no place in it, if it has none."""
    chunks: list[Any] = []
    structure = json.dumps(_described(sample, chunks, _DEEPEST), ensure_ascii=False)
    text = structure.encode("utf-8", "surrogatepass")
    return b"".join((*chunks, text, _LENGTH.pack(len(text))))


def _described(value: Any, chunks: list[Any], levels: int) -> Any:
    """The structure of ``value``; what its tensors hold is added to ``chunks``."""
    kind = type(value)
    if kind in (str, bool, float, type(None)):
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else ["int", hex(value)]
    if kind is torch.Tensor:
        return _described_tensor(value, chunks)
    if kind is np.ndarray:
        return _described_array(value, chunks)
    if kind is bytes:
        _add(chunks, value, len(value))
        return ["bytes", len(value)]
    if levels == 0:
        raise UnsupportedError(f"it has more than {_DEEPEST} levels, or contains itself")
    if kind in (list, tuple):
        return [kind.__name__, *(_described(item, chunks, levels - 1) for item in value)]
    if kind is dict:
        parts = (part for item in value.items() for part in item)
        return ["dict", *(_described(part, chunks, levels - 1) for part in parts)]
    raise UnsupportedError(f"{kind.__module__}.{kind.__qualname__} is not one of its types")


def _described_tensor(tensor: torch.Tensor, chunks: list[Any]) -> list[Any]:
    if tensor.layout != torch.strided or tensor.is_nested or tensor.dtype not in _NAMES:
        nested = "nested " * tensor.is_nested
        kind = f"{nested}tensor of layout {tensor.layout} and dtype {tensor.dtype}"
        raise UnsupportedError(f"it has no form for a {kind}")
    if tensor.dim() > _MOST_DIMENSIONS:
        raise UnsupportedError(f"it has {tensor.dim()} dimensions, more than {_MOST_DIMENSIONS}")
    if tensor.requires_grad:
        raise UnsupportedError("it requires grad")
    if tensor.numel():  # without elements it may have strides that no view takes
        plain = tensor.resolve_conj().resolve_neg().reshape(-1).contiguous()
        _add(chunks, plain.view(torch.uint8).numpy(), plain.nbytes)
    return ["tensor", _NAMES[tensor.dtype], list(tensor.shape)]


def _described_array(array: npt.NDArray[Any], chunks: list[Any]) -> list[Any]:
    if array.dtype.hasobject or array.dtype.itemsize == 0:
        raise UnsupportedError(f"it has no form for an array of dtype {array.dtype}")
    descr = np.lib.format.dtype_to_descr(np.lib.format.drop_metadata(array.dtype))
    _add(chunks, array.tobytes(), array.nbytes)
    return ["array", descr, list(array.shape)]


def _add(chunks: list[Any], elements: Any, size: int) -> None:
    chunks.append(elements)
    chunks.append(bytes(-size % _ALIGNMENT))


def _decoded(view: memoryview) -> Any:
    end = len(view) - _LENGTH.size
    (length,) = _LENGTH.unpack_from(view, end) if end >= 0 else (len(view),)
    if length > end:
        raise ValueError("its structure is longer than the whole")
    text = bytes(view[end - length : end]).decode("utf-8", "surrogatepass")
    structure, stop = _parse(text)
    if stop != len(text):
        raise ValueError("its structure is followed by something else")
    reader = _Reader(view, end - length)
    sample = reader.value(structure)
    reader.expect_end()
    return sample


def _refuse(pairs: list[tuple[str, Any]]) -> Any:
    raise ValueError(f"its structure has the JSON object {dict(pairs)!r}")


_parse = json.JSONDecoder(object_pairs_hook=_refuse).raw_decode


class _Reader:
    """Takes elements from the first ``end`` bytes of a buffer, in the order of writing."""

    def __init__(self, view: memoryview, end: int) -> None:
        self._view = view
        self._end = end
        self._at = 0

    def value(self, node: Any) -> Any:
        """What a node of the structure stands for."""
        if type(node) is not list:
            return node
        return _READERS[node[0]](self, node)

    def expect_end(self) -> None:
        """ValueError if not all elements were taken."""
        if self._at != self._end:
            raise ValueError(f"{self._end - self._at} bytes belong to nothing")

    def _take(self, size: int) -> int:
        """Where the next ``size`` bytes begin."""
        start = self._at
        self._at += size + -size % _ALIGNMENT
        if size < 0 or self._at > self._end:
            raise ValueError(f"{size} bytes at {start} are not there")
        return start

    def items(self, node: list[Any]) -> Iterator[Any]:
        """The values of all nodes but the first, which is the kind."""
        return map(self.value, node[1:])

    def dictionary(self, node: list[Any]) -> dict[Any, Any]:
        items = self.items(node)
        return dict(zip(items, items, strict=True))

    def tensor(self, node: list[Any]) -> torch.Tensor:
        _, name, shape = node
        dtype, carrier = _DTYPES[name]
        tensor = torch.from_numpy(self._elements(carrier, shape))
        return tensor if tensor.dtype == dtype else tensor.view(dtype)

    def array(self, node: list[Any]) -> npt.NDArray[Any]:
        _, descr, shape = node
        return self._elements(_dtype(descr), shape)

    def _elements(self, dtype: np.dtype[Any], shape: list[int]) -> npt.NDArray[Any]:
        # torch.Size is a TypeError for what is not ints, which alone may be multiplied; a negative
        # length is for NumPy to find
        start = self._take(prod(torch.Size(shape)) * dtype.itemsize)
        return np.ndarray(shape, dtype, self._view, start)

    def content(self, node: list[Any]) -> bytes:
        _, size = node
        start = self._take(size)
        return bytes(self._view[start : start + size])


def _dtype(descr: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(_checked(descr))
    if dtype.itemsize == 0:  # NumPy makes it larger
        raise ValueError(f"its structure has the dtype {dtype}")
    return dtype


def _checked(descr: Any) -> Any:
    """A descr as it was before JSON made lists of its tuples."""
    if type(descr) is list:
        return [
            (name if type(name) is str else tuple(name), _checked(kind), *map(tuple, shape))
            for name, kind, *shape in descr
        ]
    if not _DESCR.fullmatch(descr):  # NumPy understands, and deprecates, much more
        raise ValueError(f"its structure has the dtype {descr!r}")
    return descr


_READERS: dict[str, Callable[[_Reader, list[Any]], Any]] = {
    "list": lambda reader, node: list(reader.items(node)),
    "tuple": lambda reader, node: tuple(reader.items(node)),
    "dict": _Reader.dictionary,
    "tensor": _Reader.tensor,
    "array": _Reader.array,
    "bytes": _Reader.content,
    "int": lambda reader, node: int(node[1], 16),
}
