"""What decides what a function or class does, in parts that can be compared between processes."""

import dataclasses
import dis
import functools
import inspect
import platform
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

_HAS_DOCSTRING = 0x4000000  # a flag of code since Python 3.14
_ABSENT = object()


@functools.cache
def _library_folders() -> frozenset[Path]:
    """Where Python and packages are installed."""
    paths = sysconfig.get_paths()  # reads a file, at the first call
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(Path(paths[name]).resolve() for name in names)


def is_installed(value: Any) -> bool:
    """Whether a function, class or module is Python's or of an installed package, not one's own."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if name is None or module is None or name in ("__main__", "__mp_main__"):
        return False
    if name.partition(".")[0] == "reuseloader":
        return True
    file = getattr(module, "__file__", None)
    if file is None:  # built in; a folder without an __init__.py is somebody's own
        return not hasattr(module, "__path__")
    folders = Path(file).resolve().parents
    return not _library_folders().isdisjoint(folders) or any(
        it.name == "dist-packages" for it in folders
    )


def is_of_module(method: Any) -> bool:
    """Whether a bound method is a function of an installed module, as `random.uniform` is.

    Its object is then the module's own, whose state is no part of anybody's code.
    """
    module = sys.modules.get(type(method.__self__).__module__)
    return is_installed(module) and getattr(module, method.__name__, None) == method


def name_in_module(value: Any) -> str:
    """The name of a function or class, with that of its module."""
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"


def version_of(place: str, module: ModuleType) -> str:
    """The version of an installed module, or of Python for its own; TypeError if it has none."""
    top = module.__name__.partition(".")[0]
    if top in sys.stdlib_module_names:
        return platform.python_version()
    for owner in (module, sys.modules.get(top)):
        version = getattr(owner, "__version__", None)
        if version is not None:
            return str(version)
    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        raise TypeError(f"fingerprint_of finds no version of {place}, {module!r}") from None


def code_parts(code: CodeType) -> Iterator[tuple[str, Any]]:
    """What compiled code does, without names of locals, line numbers and docstring."""
    constants = list(code.co_consts)
    if _has_docstring(code):
        constants[0] = None
    arguments = code.co_argcount + code.co_kwonlyargcount
    yield "bytes", code.co_code
    yield "constants", constants
    yield "names", code.co_names
    yield "arguments", code.co_varnames[:arguments]
    yield "counts", (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    yield "flags", code.co_flags & ~_HAS_DOCSTRING
    yield "cells", len(code.co_cellvars)
    yield "exceptions", code.co_exceptiontable


def _has_docstring(code: CodeType) -> bool:
    if sys.version_info >= (3, 14):
        return bool(code.co_flags & _HAS_DOCSTRING)
    is_def = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    return bool(is_def and code.co_consts and isinstance(code.co_consts[0], str))


def function_parts(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The code of a function and everything that it was given or names."""
    yield "__code__", function.__code__
    yield "__defaults__", function.__defaults__
    yield "__kwdefaults__", function.__kwdefaults__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield f"__closure__.{name}", content
    for name, value in sorted(_globals_of(function).items()):
        yield f"__globals__.{name}", value
    for name, value in sorted(vars(function).items()):
        if not name.startswith("__"):
            yield name, value


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """The globals that a function names; of a module of one's own, what it takes from there."""
    found = {}
    todo = [function.__code__]
    for code in todo:
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        instructions = iter(dis.get_instructions(code))
        following = next(instructions, None)
        while following is not None:
            instruction, following = following, next(instructions, None)
            if instruction.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
                continue
            name = instruction.argval
            value = function.__globals__.get(name, _ABSENT)
            while (
                isinstance(value, ModuleType)
                and not is_installed(value)
                and following is not None
                and following.opname in ("LOAD_ATTR", "LOAD_METHOD")
            ):
                name = f"{name}.{following.argval}"
                value = getattr(value, following.argval, _ABSENT)
                following = next(instructions, None)
            if value is not _ABSENT:
                found[name] = value
    return found


def class_parts(owner: type) -> Iterator[tuple[str, Any]]:
    """The bases, methods and attributes of a class."""
    yield "__bases__", owner.__bases__
    for name, value in sorted(vars(owner).items()):
        is_method = isinstance(value, (FunctionType, staticmethod, classmethod, property))
        special = name.startswith("__") and name.endswith("__")
        if special and (not is_method or name.startswith("__annotate")):
            continue  # Python's own notes about the class
        if name == "_abc_impl" or isinstance(value, (MemberDescriptorType, GetSetDescriptorType)):
            continue
        made = special and isinstance(value, FunctionType) and value.__code__.co_filename[:1] == "<"
        if made and dataclasses.is_dataclass(owner):
            continue
        yield name, value
