"""Sample <-> bytes, with torch's own format or a save/load pair of the user's."""

import io
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import torch

from reuseloader.errors import ReuseError
from reuseloader.names import full_name_of, name_of
from reuseloader.raised import add_note
from reuseloader.record import Buffer, codec_id
from reuseloader.sample import own_copy, private, require_cpu, smallest_failing

Save = Callable[[Any, BinaryIO], object]
Load = Callable[[BinaryIO], Any]


def torch_save(sample: Any, file: BinaryIO) -> None:
    """`torch.save`, but arrays go as tensors, and a view of a big one costs its own size."""
    try:
        _compact_save(sample, file)
    except Exception as error:
        place, value = smallest_failing(sample, _compact_save)
        add_note(error, f"torch.save fails at {place}, of type {type(value).__qualname__}")
        raise


def _compact_save(sample: Any, file: BinaryIO | None = None) -> None:
    torch.save(sample, file or io.BytesIO(), pickle_module=_CompactPickle)


def torch_load(file: BinaryIO) -> Any:
    """`torch.load` of any object; runs code that a hostile file names."""
    try:
        return torch.load(file, weights_only=False)
    except pickle.UnpicklingError as error:
        forced = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "")
        if forced.lower() in ("1", "y", "yes", "true"):
            raise ReuseError(
                "TORCH_FORCE_WEIGHTS_ONLY_LOAD is set, and torch.load then refuses this sample. "
                "Unset it, or pass save and load functions that need no pickle"
            ) from error
        raise


class _CompactPickler(pickle.Pickler):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._storages: set[int] = set()  # addresses of those that are stored as they are

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            require_cpu(obj)
            return self._reduced_tensor(obj)
        if type(obj) is np.ndarray:
            return _reduced_array(obj)
        return NotImplemented

    def _reduced_tensor(self, tensor: torch.Tensor) -> Any:
        # torch would store all the memory that a tensor looks at a part of, and give back tensors
        # and elements that share memory, which no copy for finish has
        if tensor.layout != torch.strided or tensor.is_nested:
            return NotImplemented
        address = tensor.untyped_storage().data_ptr()
        if address in self._storages or not _fills_its_storage(tensor):
            copy = own_copy(tensor)
            if copy is not None:
                copy.__dict__.update(vars(tensor))
                return copy.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]
        self._storages.add(address)
        return NotImplemented


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    """Whether each byte of its storage belongs to exactly one of its elements."""
    size = tensor.numel() * tensor.element_size()
    dense = torch.empty_like(tensor, device="meta").stride()  # what a copy would have
    return tensor.untyped_storage().nbytes() == size and tensor.stride() == dense


def _reduced_array(array: npt.NDArray[Any]) -> Any:
    # torch.save pickles by protocol 2, which writes an array as text and forgets its byte order
    if not array.dtype.isnative:
        return as_dtype, (array.astype(array.dtype.newbyteorder("=")), array.dtype)
    if array.dtype in _TENSOR_DTYPES:
        if not (array.flags.c_contiguous and array.flags.writeable):
            array = array.copy(order="C")
        return array_of, (torch.from_numpy(array),)
    return NotImplemented


_TENSOR_DTYPES = frozenset(
    map(np.dtype, ["?", "i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"])
)


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The NumPy array that was stored as this tensor. Stored files name this function."""
    return tensor.numpy()


def as_dtype(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array in its own byte order. Stored files name this function."""
    return array.astype(dtype)


class _CompactPickle:
    """What `torch.save` asks of its ``pickle_module``."""

    Pickler = _CompactPickler


class _Payload(io.BytesIO):
    """A file whose content outlives a `save` that closes it."""

    def close(self) -> None:
        self.flush()


class Codec(Protocol):
    """Sample <-> payload."""

    @property
    def id(self) -> int:
        """The number of this codec in a trailer: what another one wrote is not read."""

    @property
    def parts(self) -> dict[str, Any]:
        """What must go along to a worker process, by the name of its argument."""

    def encode(self, sample: Any) -> bytes:
        """The payload of a sample."""

    def decode(self, payload: Buffer) -> Any:
        """The sample of a payload, whose memory it may take over if that is writable."""

    def copy(self, sample: Any) -> Any:
        """A deep copy of a sample: laid out in memory, and shared within, as if decoded."""


@dataclass(frozen=True)
class FileCodec:
    """A save/load pair: ``save(sample, file)``, ``load(file)`` with binary file objects.

    The name of ``save`` is part of every record: what another one wrote is not read.
    """

    save: Save = torch_save
    load: Load = torch_load

    @property
    def id(self) -> int:
        """The number of this codec in a trailer."""
        return codec_id(full_name_of(self.save))

    @property
    def parts(self) -> dict[str, Any]:
        """What must go along to a worker process, by the name of its argument."""
        return {"save": self.save, "load": self.load}

    def encode(self, sample: Any) -> bytes:
        """What ``save`` wrote; ReuseError if that is nothing."""
        file = _Payload()
        self.save(sample, file)
        payload = file.getvalue()
        if not payload:
            raise ReuseError(
                f"save must write the sample to the binary file it is given; "
                f"{name_of(self.save)} wrote nothing"
            )
        return payload

    def decode(self, payload: Buffer) -> Any:
        """What ``load`` makes of exactly the bytes that ``save`` wrote."""
        return self.load(io.BytesIO(payload))

    def copy(self, sample: Any) -> Any:
        """A deep copy, as `torch_save` and `torch_load` would give it back."""
        return private(sample)
