"""What holds of every sample, whatever its codec."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch


def require_cpu(sample: Any) -> None:
    """TypeError if a tensor anywhere in ``sample`` is not on the CPU."""
    for place, tensor in _tensors(sample):
        if tensor.device.type != "cpu":
            raise TypeError(
                f"build must return tensors on the CPU, but {place} is on device "
                f"{str(tensor.device)!r}. Move it after loading, in the training loop"
            )


Parts = Callable[[str, Any], Iterator[tuple[str, Any]]]


def parts_of(place: str, value: Any) -> Iterator[tuple[str, Any]]:
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


def smallest_failing(
    sample: Any, attempt: Callable[[Any], object], parts: Parts = parts_of
) -> tuple[str, Any]:
    """The place and value of the innermost part for which ``attempt`` raises, as for ``sample``."""
    place, value = "sample", sample
    seen: set[int] = set()
    while id(value) not in seen:  # as it is in a sample that contains itself
        seen.add(id(value))
        for part_place, part in parts(place, value):
            try:
                attempt(part)
            except Exception:
                if id(part) not in seen:
                    place, value = part_place, part
                break
    return place, value


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
            todo.extend(parts_of(place, value))
