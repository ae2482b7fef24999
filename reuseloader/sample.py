"""What holds of every sample, whatever its codec."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from reuseloader.raised import add_note


def require_cpu(sample: Any) -> None:
    """TypeError if a tensor anywhere in ``sample`` is not on the CPU."""
    for place, value in _arrays(sample):
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise TypeError(
                f"build must return tensors on the CPU, but {place} is on device "
                f"{str(value.device)!r}. Move it after loading, in the training loop"
            )


def own_copy(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy with memory of its own, of its own size; None if its type does not clone itself.

    It is a leaf of its graph, with ``requires_grad`` as it was, and has no attributes. Axes keep
    their order in memory, as far as each element has a place of its own there.
    """
    clone = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return clone if type(clone) is type(tensor) else None


def private(sample: Any) -> Any:
    """A deep copy of ``sample``, which shares no memory with it.

    A view of a big tensor costs its own size. A tensor is the leaf of its graph that it is when
    read back, with ``requires_grad`` as it was. What `copy.deepcopy` does not take (a lock, an open
    file) is its error, with a note on where it is.
    """
    try:
        return _private(sample)
    except Exception as error:
        place, value = smallest_failing(sample, _private)
        kind = type(value).__qualname__
        add_note(error, f"finish gets a copy of the sample; {place}, of type {kind}, has none")
        raise


def _private(sample: Any) -> Any:
    values = [value for _, value in _arrays(sample)]  # held here, as a memo goes by their ids
    memo: dict[int, Any] = {}
    for value in values:
        # deepcopy would copy all the memory that a tensor looks at a part of, refuse one with a
        # history, and keep an array's order of axes, which no stored array does
        if type(value) is np.ndarray and not value.dtype.hasobject:
            memo[id(value)] = value.copy(order="C")
        elif isinstance(value, torch.Tensor):
            clone = own_copy(value)
            if clone is not None:
                memo[id(value)] = clone
                clone.__dict__.update(copy.deepcopy(vars(value), memo))
    return copy.deepcopy(sample, memo)


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


def _arrays(sample: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor and array in a sample, with its place; it may share parts or contain itself."""
    todo = [("sample", sample)]
    seen = set()
    while todo:
        place, value = todo.pop()
        if isinstance(value, (torch.Tensor, np.ndarray)):
            yield place, value
        elif id(value) not in seen:
            seen.add(id(value))
            todo.extend(parts_of(place, value))
