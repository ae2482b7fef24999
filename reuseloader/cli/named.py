"""What is named on the command line, of the user's own code: ``module:name``."""

import os
import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from types import ModuleType
from typing import Any

from reuseloader.cli.outcome import CommandError, TheirError


def named(text: str) -> Callable[..., Any]:
    """The callable that ``module:name`` or ``path/to/file.py:name`` says; the name may have dots.

    A module is looked for in the current directory first, that of a file in the file's own. The
    directory stays the first of `sys.path`, from where worker processes can import it as well.

    Raises:
        CommandError: there is no such module, or nothing of that name in it that can be called.
        TheirError: importing the module raises.
    """
    place, _, name = text.rpartition(":")
    is_file = place.endswith(".py")
    if not place or not name or (place.startswith(".") and not is_file):
        raise CommandError(f"a function is named as MODULE:NAME, got {text!r}")
    module = _imported_file(place) if is_file else _imported(os.getcwd(), place)
    try:
        found: Any = reduce(getattr, name.split("."), module)
    except AttributeError as error:
        raise CommandError(f"{place} has no {name}") from error
    if callable(found):
        return found  # type: ignore[no-any-return]
    raise CommandError(f"{text} must be callable, got {found!r}")


def _imported_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise CommandError(f"there is no file {path}")
    path = os.path.realpath(path)
    directory, file = os.path.split(path)
    name = file.removesuffix(".py")
    module = _imported(directory, name)
    there = getattr(module, "__file__", None)
    if there is None or os.path.realpath(there) != path:
        raise CommandError(f"{path} has the name of another module, {name}: rename it")
    return module


def _imported(directory: str, name: str) -> ModuleType:
    if sys.path[0] != directory:
        sys.path.insert(0, directory)
    try:
        return import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            reason = f"there is no module {name} (looked in {directory} first)"
            raise CommandError(reason) from error
        raise TheirError(f"{name} could not be imported (see above)") from error
