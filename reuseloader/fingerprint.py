"""A stable digest of what samples depend on: code, files, settings, versions."""

import copyreg
import dataclasses
import enum
import functools
import hashlib
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reuseloader.code_parts import (
    class_parts,
    code_parts,
    function_parts,
    is_installed,
    is_of_module,
    name_in_module,
    version_of,
)
from reuseloader.elements import as_array

_VERSION = "reuseloader fingerprint 1"
_SIZE = 16  # bytes of a digest
_CACHED = type(functools.cache(len))


def fingerprint_of(*things: Any) -> str:
    """A digest of what samples depend on, to be given as ``fingerprint``: 32 hexadecimal digits.

    The same in every process and run and on every machine, whatever the hash seed; another one as
    soon as one of the ``things`` changes. They may be:

    - None, bool, int, float, complex, str, bytes, lists, tuples, ranges, sets, mappings (in any
      order), enums, dataclasses, NumPy arrays and scalars, tensors: type and value. 1, True and 1.0
      differ, and so do ``"a"`` and ``b"a"``.
    - a `pathlib.Path`: of a file its name and content, of a directory the names and contents of all
      files in it, at any depth and without ``__pycache__``, but not where it lies. Everything is
      read: for a large directory give a list of names and sizes, or of its checksums.
    - a module: name and version, of an installed one; else its source files.
    - a function: its compiled code, defaults, closure, and the globals that it names, functions
      and classes among them, in its own module and others, and so on. Comments, docstrings,
      formatting and where it stands do not count; another minor version of Python compiles
      otherwise, and may give another digest. Partials, bound methods (with their instance), classes
      (with their methods) and other objects (class and state, as pickled) likewise.

    What comes from an installed package or from Python counts by name where code uses it: give the
    module itself (``fingerprint_of(build, numpy)``) to count its version. Not seen is what code
    reaches in other ways: by an import within a function, by `getattr`, through a file that it
    reads. A Path in a function or callable is taken as text: give the Path too if it matters.

    Raises:
        TypeError: something is none of this, such as a lock or an open file; the message says where
            it is. Give ``fingerprint_of`` what that depends on instead.
        OSError: a file cannot be read.
    """
    reader = _Reader()
    return _hash(
        _VERSION, *(reader.digest(f"things[{n}]", thing) for n, thing in enumerate(things))
    ).hex()


def _has_name_by_kind(value: Any) -> bool:
    """Whether its kind of object has a name; an instance of any class may have given itself one."""
    return hasattr(value, "__qualname__") and "__qualname__" not in getattr(value, "__dict__", {})


def _hash(kind: str, *parts: bytes | str) -> bytes:
    digest = hashlib.blake2b(digest_size=_SIZE)
    for part in (kind, *parts):
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


class _Reader:
    """One walk through some things. What contains itself is told by how far up it is."""

    def __init__(self) -> None:
        self._path: list[int] = []  # ids of what lies around the present thing
        self._known: dict[int, tuple[Any, bytes]] = {}  # of functions and classes, kept alive
        self._code = 0  # in how many functions and callables the present thing lies

    def digest(self, place: str, value: Any) -> bytes:
        """The digest of anything; TypeError with its place if it is not understood."""
        kind = type(value)
        if value is None or kind in (bool, EllipsisType):
            return _hash("constant", repr(value))
        if kind is int:
            return _hash("int", hex(value))
        if kind is float:
            return _hash("float", value.hex())
        if kind is complex:
            return _hash("complex", value.real.hex(), value.imag.hex())
        if kind in (str, bytes, bytearray):
            return _hash(kind.__name__, value)
        if isinstance(value, Path):
            return _hash("path", str(value)) if self._code else _path_digest(place, value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._path:
            return _hash("around", hex(len(self._path) - self._path.index(id(value))))
        in_code = isinstance(value, (type, FunctionType, CodeType)) or callable(value)
        self._path.append(id(value))
        self._code += in_code
        try:
            found = self._composed(place, value)
        finally:
            self._path.pop()
            self._code -= in_code
        if isinstance(value, (type, FunctionType)):
            self._known[id(value)] = value, found
        return found

    def _composed(self, place: str, value: Any) -> bytes:
        """The digest of what has parts."""
        kind = type(value)
        if kind in (list, tuple):
            return _hash(kind.__name__, *self._items(place, value))
        if isinstance(value, Mapping):
            return _hash("mapping", self._reference(place, kind), self._pairs(place, value))
        if isinstance(value, Set):
            items = sorted(self.digest(f"an item of {place}", it) for it in value)
            return _hash("set", self._reference(place, kind), *items)
        if isinstance(value, enum.Enum):
            content = self.digest(f"{place}.value", value.value)
            return _hash("enum", kind.__qualname__, str(value.name), content)
        if isinstance(value, torch.Tensor):
            return self._tensor(place, value)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(place, value)
        if isinstance(value, np.dtype):
            return _hash("dtype", str(value))
        if isinstance(value, ModuleType):
            return self._module(place, value)
        if isinstance(value, CodeType):
            return _hash("code", self._parts(place, code_parts(value)))
        if isinstance(value, (type, FunctionType)):
            return self._code_of(place, value)
        return self._object(place, value)

    def _items(self, place: str, values: Iterable[Any]) -> list[bytes]:
        return [self.digest(f"{place}[{number}]", it) for number, it in enumerate(values)]

    def _pairs(self, place: str, values: Mapping[Any, Any]) -> bytes:
        pairs = (
            self.digest(f"a key of {place}", name) + self.digest(f"{place}[{name!r}]", it)
            for name, it in values.items()
        )
        return _hash("pairs", *sorted(pairs))

    def _parts(self, place: str, parts: Iterable[tuple[str, Any]]) -> bytes:
        """The digest of named parts of code or of an object."""
        return _hash(
            "parts",
            *(_hash(name, self._reference(f"{place}.{name}", it)) for name, it in parts),
        )

    def _reference(self, place: str, value: Any) -> bytes:
        """The digest of what code uses: what is installed counts by name, so do all modules."""
        if isinstance(value, ModuleType):
            return _hash("module", value.__name__)
        return self.digest(place, value)

    def _code_of(self, place: str, value: Any) -> bytes:
        """The digest of a function or class."""
        if is_installed(value):
            return _hash("installed", name_in_module(value))
        if isinstance(value, FunctionType):
            return _hash("function", self._parts(place, function_parts(value)))
        if issubclass(value, enum.Enum):
            members = [(name, member.value) for name, member in value.__members__.items()]
            return _hash("enums", value.__qualname__, self._parts(place, members))
        return _hash("class", value.__qualname__, self._parts(place, class_parts(value)))

    def _object(self, place: str, value: Any) -> bytes:
        """The digest of an instance, or of something built in."""
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords, vars(value))
            return _hash("partial", *self._items(place, parts))
        if isinstance(value, (MethodType, BuiltinFunctionType, MethodWrapperType)):
            owner = value.__self__
            if owner is None or isinstance(owner, ModuleType) or is_of_module(value):
                return _hash("installed", name_in_module(value))
            name = getattr(value, "__func__", value.__name__)
            return _hash("method", *self._items(place, (name, owner)))
        if isinstance(value, (staticmethod, classmethod)):
            return _hash(type(value).__name__, self.digest(place, value.__func__))
        if isinstance(value, property):
            return _hash("property", *self._items(place, (value.fget, value.fset, value.fdel)))
        if isinstance(value, functools.cached_property):
            return _hash("cached_property", self.digest(place, value.func))
        if _has_name_by_kind(value) and is_installed(value):  # a function written in C
            return _hash("installed", name_in_module(value))
        kind = self._reference(place, type(value))
        if dataclasses.is_dataclass(value):
            fields = ((it.name, getattr(value, it.name)) for it in dataclasses.fields(value))
            return _hash("dataclass", kind, self._parts(place, fields))
        if isinstance(value, _CACHED):
            return _hash("wrapper", kind, self.digest(place, value.__wrapped__))
        return _hash("object", kind, *self._reduced(place, value))

    def _reduced(self, place: str, value: Any) -> list[bytes]:
        """What pickle stores of an object."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            raise TypeError(
                f"fingerprint_of does not understand {place}, a {name_in_module(type(value))}. "
                f"Give it what that depends on instead"
            ) from error
        if isinstance(reduced, str):
            return [_hash("name", reduced)]
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        found = [self._reference(place, function), *self._items(place, arguments)]
        for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
            if isinstance(part, dict) and all(isinstance(name, str) for name in part):
                found.append(self._parts(place, sorted(part.items())))  # of __dict__, or of slots
            else:
                found.append(self.digest(place, part))
        found += self._items(place, items or ())
        return [*found, self._pairs(place, dict(pairs or ()))]

    def _tensor(self, place: str, value: torch.Tensor) -> bytes:
        kind = self._reference(place, type(value))
        try:
            elements = as_array(value.cpu())
        except Exception as error:
            raise TypeError(f"fingerprint_of cannot read the elements of {place}") from error
        return _hash("tensor", kind, str(value.dtype), *self._elements(place, elements))

    def _array(self, place: str, value: npt.NDArray[Any] | np.generic) -> bytes:
        kind = self._reference(place, type(value))
        if isinstance(value, np.ma.MaskedArray):
            mask = self.digest(f"{place}.mask", np.ma.getmaskarray(value))
            return _hash("masked", mask, *self._elements(place, np.ma.filled(value, 0)))
        return _hash("array", kind, *self._elements(place, np.asarray(value)))

    def _elements(self, place: str, array: npt.NDArray[Any]) -> list[bytes]:
        shape = self.digest(place, array.shape)
        if array.dtype.names is not None:
            fields = ((name, array[name]) for name in array.dtype.names)
            return [shape, self._parts(place, fields)]
        if array.dtype.kind in "OT":  # Python objects, or strings that lie elsewhere
            return [shape, *self._items(place, array.ravel().tolist())]
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return [shape, _hash("elements", str(array.dtype), little.tobytes())]

    def _module(self, place: str, module: ModuleType) -> bytes:
        if is_installed(module):
            return _hash("module", module.__name__, version_of(place, module))
        folders = [Path(folder) for folder in getattr(module, "__path__", ())]
        files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
        files = files or [Path(name) for name in (getattr(module, "__file__", None),) if name]
        if not files:
            raise TypeError(f"fingerprint_of finds no version and no source of {place}, {module!r}")
        return _hash("source", module.__name__, *(_path_digest(place, path) for path in files))


def _path_digest(place: str, path: Path, around: tuple[Path, ...] = ()) -> bytes:
    """The digest of a file's name and content, or of the names and contents of a directory."""
    if path.is_file():
        with path.open("rb") as file:
            content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_SIZE))
        return _hash("file", path.name, content.digest())
    if not path.exists():
        raise FileNotFoundError(f"{place} is the path of nothing that is there: {path}")
    real = path.resolve()
    if not path.is_dir() or real in around:
        raise TypeError(f"fingerprint_of needs a file or a directory as {place}, got {path}")
    parts = (
        _hash("entry", entry.name, _path_digest(place, entry, (*around, real)))
        for entry in sorted(path.iterdir())
        if entry.name != "__pycache__"
    )
    return _hash("directory", *parts)
