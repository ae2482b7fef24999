"""Names of callables, the same in every process: in records, on disk and in messages."""

import functools
from collections.abc import Callable
from typing import Any


def full_name_of(function: Callable[..., Any]) -> str:
    """`name_of` with the module before it, a script's being ``__main__`` in its workers too."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{'__main__' if module == '__mp_main__' else module}.{name_of(function)}"


def name_of(function: Callable[..., Any]) -> str:
    """The qualified name of a function, of what a partial calls, or of a callable's class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__
