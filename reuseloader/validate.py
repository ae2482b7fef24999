"""Checks of arguments: each returns the plain value or raises one error that names the argument."""

import operator
from math import inf
from numbers import Real
from typing import Any, TypeVar

T = TypeVar("T")

MAX_INT = 2**63 - 1


def exact_int(name: str, value: Any) -> int:
    """Return any integer type (NumPy, torch) as an int; bool, float and str are a TypeError."""
    if type(value) is int:
        return value
    is_bool = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    if not is_bool:
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, got {value!r}")


def int_at_least(minimum: int, name: str, value: Any) -> int:
    """Return ``value`` as an int in [minimum, 2**63 - 1]."""
    number = value if type(value) is int else exact_int(name, value)
    if not minimum <= number <= MAX_INT:
        raise ValueError(f"{name} must be an int from {minimum} to 2**63 - 1, got {value!r}")
    return number


def instance(kind: type[T], name: str, value: Any) -> T:
    """Return ``value`` if it is an instance of ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")
    return value


def callable_or_none(name: str, value: Any) -> Any:
    """Return ``value`` if it can be called or is None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, got {value!r}")
    return value


def seconds(name: str, value: Any) -> float:
    """Return ``value`` as a finite number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    number = float(value)
    if not 0 < number < inf:
        raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    return number
