"""What a sample is made of: the kind, shape and range of each of its parts."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reuseloader.cli.words import shown
from reuseloader.sample import parts_of
from reuseloader.text import table

_LONGEST = 60  # characters of a value that are shown
_DEEPEST = 20  # levels that are walked into
_MOST_PARTS = 1000


def parts_in(sample: Any) -> list[dict[str, Any]]:
    """One dict for each part of a sample, from the outermost on: place, type and what it holds."""
    found: list[dict[str, Any]] = []
    for part in _walk("sample", sample, _DEEPEST):
        if len(found) == _MOST_PARTS:
            found.append({"place": "...", "type": f"more than {_MOST_PARTS} parts"})
            break
        found.append(part)
    return found


def part_lines(parts: list[dict[str, Any]]) -> list[str]:
    """The same for people."""
    return table([(shown(part["place"]), _content(part)) for part in parts], "<<")


def _walk(place: str, value: Any, levels: int) -> Iterator[dict[str, Any]]:
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        kind = "tensor" if type(value) is torch.Tensor else kind
        dtype = str(value.dtype).removeprefix("torch.")
        numbers = _plain(value)
        yield _numeric(place, kind, dtype, tuple(value.shape), numbers)
    elif isinstance(value, np.ndarray):
        numbers = value if value.dtype.kind in "biuf" else None
        yield _numeric(place, "array", str(value.dtype), value.shape, numbers)
    elif isinstance(value, (bool, int, float, type(None))):
        yield {"place": place, "type": kind, "value": _number(value)}
    elif isinstance(value, str):
        yield {"place": place, "type": kind, "length": len(value), "value": value[:_LONGEST]}
    elif isinstance(value, bytes):
        yield {"place": place, "type": kind, "length": len(value)}
    else:
        part: dict[str, Any] = {"place": place, "type": kind}
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            part["length"] = len(value)
        yield part
        if levels:
            for inner_place, inner in parts_of(place, value):
                yield from _walk(inner_place, inner, levels - 1)


def _plain(tensor: torch.Tensor) -> npt.NDArray[Any] | None:
    """A tensor's numbers as an array; None where it has none to compare."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_complex():
        return None
    tensor = tensor.detach().resolve_neg()
    if tensor.is_floating_point():  # some of these NumPy does not have
        tensor = tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):  # quantized, of another device, ...
        return None


def _numeric(
    place: str, kind: str, dtype: str, shape: tuple[int, ...], numbers: npt.NDArray[Any] | None
) -> dict[str, Any]:
    part: dict[str, Any] = {"place": place, "type": kind, "dtype": dtype, "shape": list(shape)}
    if numbers is None or numbers.size == 0:
        return part
    if numbers.dtype.kind == "f":
        finite = np.isfinite(numbers)
        if not finite.all():
            part["not_finite"] = int(numbers.size - finite.sum())
            numbers = numbers[finite]
    if numbers.size:
        with np.errstate(all="ignore"):
            mean = numbers.mean(dtype=np.float64)
        part |= {
            "min": _number(numbers.min().item()),
            "max": _number(numbers.max().item()),
            "mean": _number(float(mean)),
        }
    return part


def _number(value: Any) -> Any:
    """What JSON can carry."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _content(part: dict[str, Any]) -> str:
    words = [part["type"]]
    if "dtype" in part:
        words.append(f"{part['dtype']} {part['shape']}")
    if "length" in part:
        words.append(f"of {part['length']:,}")
    if "value" in part and part["type"] != "NoneType":
        value = part["value"]
        cut = "..." if part.get("length", 0) > _LONGEST else ""
        words.append(f"{value!r}{cut}" if part["type"] == "str" else _short(value))
    words += [f"{name} {_short(part[name])}" for name in ("min", "max", "mean") if name in part]
    if "not_finite" in part:
        words.append(f"({part['not_finite']:,} not finite)")
    return "  ".join(words)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
