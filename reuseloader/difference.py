"""Where do two samples differ? Types, dtypes, shapes and bits, whatever a sample is made of.

NaN equals NaN; 0.0 and -0.0 differ, as their bits do. Strides, views and sharing inside a sample do
not count, as they do not survive reuse, nor does the order of a mapping's keys.
"""

import pickle
import reprlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from reuseloader.elements import as_array, first_differing
from reuseloader.names import full_name_of

_PLAIN = (bool, int, str, bytes, bytearray, type(None))
_PICKLE = "by what pickle stores of it"
_NAMED = (type, ModuleType, FunctionType, BuiltinFunctionType)


class Difference(NamedTuple):
    """The first place at which two samples differ, and what is there, in words."""

    place: str
    one: str
    other: str
    note: str = ""

    def between(self, one: str, other: str) -> str:
        """In a sentence, with words for where each of the two samples is from."""
        note = f" ({self.note})" if self.note else ""
        return f"{self.place} is {self.one} {one}, {self.other} {other}{note}"


def first_difference(one: Any, other: Any, place: str = "sample") -> Difference | None:
    """The first difference between two samples, or None. Raises nothing, however odd they are.

    Mappings, sequences, sets, dataclasses, tensors and arrays are compared by what they hold; an
    object that says by ``==`` that it is equal is; any other by what pickle would store of it. Two
    objects of one type that tell nothing of themselves count as equal.
    """
    try:
        return next(_Comparison().differences(place, one, other), None)
    except RecursionError:  # deeper than anything that can be stored
        return None


def in_words(value: Any) -> str:
    """A short repr of anything."""
    try:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            return f"a {_kind(value)} of dtype {value.dtype} and shape {tuple(value.shape)}"
        return _short.repr(value)
    except Exception:
        return f"a {_kind(value)}"


def with_type(value: Any) -> str:
    """`in_words`, with the name of the type if that does not say it."""
    words = in_words(value)
    name = f"a {_kind(value)}"
    return words if words.startswith(name) else f"{words}, {name},"


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def _kind(value: Any) -> str:
    return type(value).__qualname__


class _Comparison:
    """One walk through two samples side by side."""

    def __init__(self) -> None:
        # pairs met before: a sample may contain itself. Kept alive, so that no id comes again
        self._met: dict[tuple[int, int], tuple[Any, Any]] = {}

    def differences(self, place: str, one: Any, other: Any) -> Iterator[Difference]:
        if one is other or (id(one), id(other)) in self._met:
            return
        if type(one) is not type(other):
            yield Difference(place, with_type(one), with_type(other))
            return
        self._met[id(one), id(other)] = one, other
        try:
            yield from self._within(place, one, other)
        except RecursionError:
            raise
        except Exception:  # of a class of the user's, or a kind of tensor that cannot be opened
            if len({_pickled(one), _pickled(other)}) == 2:
                yield Difference(place, in_words(one), in_words(other), _PICKLE)

    def _within(self, place: str, one: Any, other: Any) -> Iterator[Difference]:
        if isinstance(one, torch.Tensor):
            yield from self._tensors(place, one, other)
        elif isinstance(one, (np.ndarray, np.generic)):
            yield from self._arrays(place, np.asanyarray(one), np.asanyarray(other))
        elif type(one) in _PLAIN:
            if one != other:
                yield Difference(place, in_words(one), in_words(other))
        elif type(one) in (float, complex):
            yield from _elements(place, np.array(one), np.array(other))
        elif isinstance(one, Mapping):
            yield from self._mappings(place, one, other)
        elif isinstance(one, (list, tuple, deque)):
            yield from self._sequences(place, one, other)
        elif isinstance(one, Set):
            yield from self._sets(place, one, other)
        else:
            yield from self._objects(place, one, other)

    def _tensors(self, place: str, one: torch.Tensor, other: torch.Tensor) -> Iterator[Difference]:
        for name in ("dtype", "layout", "is_nested", "is_quantized"):
            yield from _attribute(place, name, getattr(one, name), getattr(other, name))
        if one.is_nested:
            yield from self._sequences(place, one.unbind(), other.unbind())
        else:
            yield from _attribute(place, "shape", tuple(one.shape), tuple(other.shape))
            yield from _elements(place, as_array(one), as_array(other), one.dtype)
        yield from self._attributes(place, vars(one), vars(other))

    def _arrays(
        self, place: str, one: npt.NDArray[Any], other: npt.NDArray[Any]
    ) -> Iterator[Difference]:
        yield from _attribute(place, "dtype", one.dtype, other.dtype)
        yield from _attribute(place, "shape", one.shape, other.shape)
        if isinstance(one, np.ma.MaskedArray):
            masks = np.ma.getmaskarray(one), np.ma.getmaskarray(other)
            yield from self.differences(f"{place}.mask", *masks)
            one, other = np.ma.filled(one, 0), np.ma.filled(other, 0)  # what it hides is nothing
        if one.dtype.names is not None:
            for name in one.dtype.names:
                yield from self._arrays(f"{place}[{name!r}]", one[name], other[name])
        elif one.dtype.kind in "OT":  # Python objects, or strings that lie elsewhere
            for index in np.ndindex(one.shape):
                yield from self.differences(_at(place, index), one[index], other[index])
        else:
            yield from _elements(place, one, other)

    def _mappings(
        self, place: str, one: Mapping[Any, Any], other: Mapping[Any, Any]
    ) -> Iterator[Difference]:
        for name, value in one.items():
            if name not in other:
                yield Difference(f"{place}[{name!r}]", in_words(value), "absent")
            else:
                yield from self.differences(f"{place}[{name!r}]", value, other[name])
        for name, value in other.items():
            if name not in one:
                yield Difference(f"{place}[{name!r}]", "absent", in_words(value))

    def _sequences(self, place: str, one: Sequence[Any], other: Sequence[Any]) -> Any:
        for number, (part, other_part) in enumerate(zip(one, other)):  # noqa: B905  # see below
            yield from self.differences(f"{place}[{number}]", part, other_part)
        yield from _attribute(place, "length", len(one), len(other))

    def _sets(self, place: str, one: Set[Any], other: Set[Any]) -> Iterator[Difference]:
        mine, others = list(one - other), list(other - one)
        for item in mine:  # tensors and the like, of which a copy is no equal
            same = (n for n, it in enumerate(others) if first_difference(item, it) is None)
            number = next(same, None)
            if number is None:
                break
            del others[number]
        else:
            if not others:
                return
        yield Difference(place, f"with {in_words(one - other)}", f"with {in_words(other - one)}")

    def _attributes(
        self, place: str, one: Mapping[str, Any], other: Mapping[str, Any]
    ) -> Iterator[Difference]:
        for name in sorted({*one, *other}, key=str):
            if name in one and name in other:
                yield from self.differences(f"{place}.{name}", one[name], other[name])
            else:
                found = (in_words(it[name]) if name in it else "absent" for it in (one, other))
                yield Difference(f"{place}.{name}", *found)

    def _objects(self, place: str, one: Any, other: Any) -> Iterator[Difference]:
        if isinstance(one, _NAMED):
            yield from _attribute(place, "name", _full_name(one), _full_name(other))
            return
        equal = _says_equal(one, other)
        if equal:
            return
        try:
            reduced, other_reduced = _reduced(one), _reduced(other)
        except Exception:  # it cannot be pickled; it may still have attributes
            parts = [getattr(it, "__dict__", {}) for it in (one, other)]
            found = next(self._attributes(place, parts[0], parts[1]), None)
            if found is not None:
                yield found
            elif equal is False:
                yield Difference(place, in_words(one), in_words(other))
            return
        attributes, rest = reduced
        other_attributes, other_rest = other_reduced
        yield from self._attributes(place, attributes, other_attributes)
        if next(self.differences(place, rest, other_rest), None) is not None:
            yield Difference(place, in_words(one), in_words(other), _PICKLE)


def _full_name(value: Any) -> str:
    return value.__name__ if isinstance(value, ModuleType) else full_name_of(value)


def _attribute(place: str, name: str, one: Any, other: Any) -> Iterator[Difference]:
    if one != other:
        yield Difference(place, f"of {name} {one}", f"of {name} {other}")


def _says_equal(one: Any, other: Any) -> bool | None:
    """What the ``==`` of its own says, if it has one that gives an answer."""
    if getattr(type(one), "__eq__", None) is object.__eq__:
        return None
    try:
        answer = one == other
    except Exception:
        return None
    return answer if isinstance(answer, bool) else None


def _reduced(value: Any) -> tuple[Mapping[str, Any], Any]:
    """What pickle stores of an object: its attributes by name, and the rest."""
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return {}, reduced
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    attributes: dict[str, Any] = {}
    rest = []
    for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(part, dict) and all(isinstance(name, str) for name in part):
            attributes |= part  # of __dict__, or of slots
        else:
            rest.append(part)
    return attributes, (
        function,
        arguments,
        rest,
        None if items is None else list(items),
        None if pairs is None else dict(pairs),
    )


def _pickled(value: Any) -> bytes:
    """What pickle makes of it, or nothing."""
    try:
        return pickle.dumps(value)
    except Exception:
        return b""


def _elements(
    place: str,
    one: npt.NDArray[Any],
    other: npt.NDArray[Any],
    dtype: torch.dtype | None = None,
) -> Iterator[Difference]:
    """Compare arrays of one dtype and shape; ``dtype`` if they hold the elements of tensors."""
    found = first_differing(one, other, dtype)
    if found is None:
        return
    notes = []
    if found.value == found.other_value:
        notes.append("equal in value, not in bits")
    if one.size > 1:
        notes.append(f"{found.total} of {one.size} elements differ")
    values = in_words(found.value), in_words(found.other_value)
    yield Difference(_at(place, found.at), *values, "; ".join(notes))


def _at(place: str, index: tuple[int, ...]) -> str:
    return f"{place}[{', '.join(map(str, index))}]" if index else place
