"""What holds of every sample, whatever its codec."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def require_cpu(sample: Any) -> None:
    """TypeError if a tensor in (nested) containers of ``sample`` is not on the CPU.

    Looks into mappings, lists, tuples, sets and dataclasses.
    """
    for place, tensor in _tensors(sample, "sample"):
        if tensor.device.type != "cpu":
            raise TypeError(
                f"build must return tensors on the CPU, but {place} is on device "
                f"{str(tensor.device)!r}. Move it after loading, in the training loop"
            )


def _tensors(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _tensors(item, f"{place}[{name!r}]")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{place}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name, None), f"{place}.{field.name}")
