"""Sample <-> bytes, with torch's own format or a save/load pair of the user's."""

import io
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from reuseloader.errors import ReuseError
from reuseloader.names import name_of
from reuseloader.record import codec_id
from reuseloader.sample import require_cpu, smallest_failing

Save = Callable[[Any, BinaryIO], object]
Load = Callable[[BinaryIO], Any]


def torch_save(sample: Any, file: BinaryIO) -> None:
    """`torch.save`, but a view of a big tensor costs the size of the view."""
    torch.save(sample, file, pickle_module=_CompactPickle)


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
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            require_cpu(obj)
            if type(obj) is torch.Tensor and obj.layout == torch.strided:
                size = obj.numel() * obj.element_size()
                if obj.untyped_storage().nbytes() > size:
                    copy = obj.detach().clone().requires_grad_(obj.requires_grad)
                    return copy.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]
        return NotImplemented


class _CompactPickle:
    """What `torch.save` asks of its ``pickle_module``."""

    Pickler = _CompactPickler


class _Payload(io.BytesIO):
    """A file whose content outlives a `save` that closes it."""

    def close(self) -> None:
        self.flush()


@dataclass(frozen=True)
class Codec:
    """A save/load pair: ``save(sample, file)``, ``load(file)`` with binary file objects.

    The name of ``save`` is part of every record: what another one wrote is not read.
    """

    save: Save = torch_save
    load: Load = torch_load

    @property
    def id(self) -> int:
        """The number of this codec in a trailer."""
        return codec_id(name_of(self.save))

    def encode(self, sample: Any) -> bytes:
        """What ``save`` wrote; ReuseError if that is nothing."""
        try:
            payload = self._saved(sample)
        except Exception as error:
            error.add_note(f"save fails at {smallest_failing(sample, self._saved)}")
            raise
        if not payload:
            raise ReuseError(
                f"save must write the sample to the binary file it is given; "
                f"{name_of(self.save)} wrote nothing"
            )
        return payload

    def _saved(self, sample: Any) -> bytes:
        file = _Payload()
        self.save(sample, file)
        return file.getvalue()

    def decode(self, payload: memoryview) -> Any:
        """What ``load`` makes of exactly the bytes that ``save`` wrote."""
        return self.load(io.BytesIO(payload))
