"""What holds of every sample, whatever its codec."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

_DEEPEST = 100


def require_cpu(sample: Any) -> None:
    """TypeError if a tensor anywhere in ``sample`` is not on the CPU."""
    for place, tensor in _tensors(sample):
        if tensor.device.type != "cpu":
            raise TypeError(
                f"build must return tensors on the CPU, but {place} is on device "
                f"{str(tensor.device)!r}. Move it after loading, in the training loop"
            )


def smallest_failing(sample: Any, attempt: Callable[[Any], object]) -> str:
    """The place of the innermost part of ``sample`` for which ``attempt`` raises, as it does."""
    place, value = "sample", sample
    for _ in range(_DEEPEST):
        for part_place, part in _parts(place, value):
            try:
                attempt(part)
            except Exception:
                place, value = part_place, part
                break
        else:
            break
    return f"{place}, of type {type(value).__qualname__}"


def _tensors(sample: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in the sample, with its place; a sample may share parts or contain itself."""
    todo = [("sample", sample)]
    seen = set()
    while todo:
        place, value = todo.pop()
        if isinstance(value, torch.Tensor):
            yield place, value
        elif id(value) not in seen:
            seen.add(id(value))
            todo.extend(_parts(place, value))


def _parts(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a mapping, list, tuple, set or object holds, with its place in the sample."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield f"{place}[{name!r}]", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for number, item in enumerate(value):
            yield f"{place}[{number}]", item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):  # perhaps with slots
        for field in dataclasses.fields(value):
            yield f"{place}.{field.name}", getattr(value, field.name, None)
    elif not isinstance(value, (type, ModuleType, FunctionType)):
        for name, item in getattr(value, "__dict__", {}).items():
            yield f"{place}.{name}", item
