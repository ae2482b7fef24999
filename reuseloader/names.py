"""Names of callables, the same in every process: in records, on disk and in messages."""

import functools
from collections.abc import Callable
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """The qualified name of a function, of what a partial calls, or of a callable's class.

    Without the module: a script's is ``__main__`` here and ``__mp_main__`` in its workers.
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__
