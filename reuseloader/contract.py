"""What samples of one dataset have in common, whatever their index: names, types, dtypes."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from reuseloader.difference import Difference, in_words, with_type

_SCALARS = (bool, int, float, complex, str, bytes)


def first_breach(one: Any, other: Any, place: str = "sample") -> Difference | None:
    """Where a sample is not of the kind of another one, or None.

    Must agree: the names in mappings; the length of tuples; types, where both are scalars, tensors,
    arrays, mappings, sequences or dataclasses; dtype and number of dimensions of tensors and
    arrays. May differ: the extent of every dimension; the length of lists, in which only tensors
    and arrays are compared; the length of strings; None and anything; other objects.
    """
    return next(_breaches(place, one, other), None)


def _breaches(place: str, one: Any, other: Any) -> Iterator[Difference]:
    kind, other_kind = _kind(one), _kind(other)
    if kind is None or other_kind is None:
        return
    if kind is not other_kind:
        yield Difference(place, with_type(one), with_type(other))
    elif kind in (torch.Tensor, np.ndarray):
        for name in ("dtype", "ndim"):
            found, other_found = _shown(one, name), _shown(other, name)
            if found != other_found:
                yield Difference(place, f"of {name} {found}", f"of {name} {other_found}")
    elif isinstance(one, Mapping):
        for name in [*one, *(name for name in other if name not in one)]:
            at = f"{place}[{name!r}]"
            if name in one and name in other:
                yield from _breaches(at, one[name], other[name])
            else:
                words = (in_words(it[name]) if name in it else "absent" for it in (one, other))
                yield Difference(at, *words)
    elif isinstance(one, tuple):
        if len(one) != len(other):
            yield Difference(place, f"of length {len(one)}", f"of length {len(other)}")
        for number, parts in enumerate(zip(one, other, strict=False)):
            yield from _breaches(f"{place}[{number}]", *parts)
    elif isinstance(one, list):
        for number, parts in enumerate(zip(one, other, strict=False)):
            if all(isinstance(part, (torch.Tensor, np.ndarray)) for part in parts):
                yield from _breaches(f"{place}[{number}]", *parts)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            values = (getattr(it, field.name, None) for it in (one, other))
            yield from _breaches(f"{place}.{field.name}", *values)


def _kind(value: Any) -> Any:
    """What must agree of the type; None if nothing must."""
    for kind in (torch.Tensor, np.ndarray, Mapping):
        if isinstance(value, kind):
            return kind
    if isinstance(value, (np.generic, list, tuple)) or dataclasses.is_dataclass(value):
        return type(value)
    return type(value) if type(value) in _SCALARS else None


def _shown(array: Any, name: str) -> str:
    """A dtype or number of dimensions; the length of strings is no matter."""
    found = getattr(array, name)
    text = isinstance(found, np.dtype) and found.kind in "USV" and found.names is None
    return found.kind if text else str(found)
