"""Index -> bytes: the only room that touches the disk."""

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from reuseloader.record import TRAILER_SIZE, Buffer, is_announced
from reuseloader.temps import is_temp, owner_lives, temp_beside

_LARGE = 2**26  # bytes from which on a file is not read before its trailer has been
BOOK = "reuseloader.json"
_SAMPLE = re.compile(r"(\d{8,})\.pt")


@runtime_checkable
class Store(Protocol):
    """Where records lie. Must be picklable and usable from threads and processes.

    A store only moves bytes; whether they are sound and of the right stamp is judged elsewhere. It
    may also offer ``tail(index, size) -> bytes | None``, the last bytes of a record, to answer
    quickly whether a sample is stored.
    """

    def read(self, index: int) -> Buffer | None:
        """The record of ``index``, or None if there is none; what is writable is the caller's."""

    def write(self, index: int, record: bytes) -> None:
        """Replace the record of ``index``, at once for every reader."""

    def close(self) -> None:
        """Release what the store holds open."""


@runtime_checkable
class Bookkeeper(Protocol):
    """A store that also remembers something from one run to the next."""

    path: str

    def read_book(self) -> dict[str, Any]:
        """What the last run left, or {}."""

    def write_book(self, book: dict[str, Any]) -> None:
        """Leave something for the next run, if that can be done; never an error."""


def absolute(path: Any) -> str:
    """The absolute path of a directory; TypeError or ValueError if ``path`` names none."""
    if not (isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str)):
        raise TypeError(f"path must be a str or a path, got {path!r}")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise ValueError(f"path must name a directory, got {path!r}")
    return os.path.abspath(path)


class DirectoryStore:
    """One file per index in a directory: ``00000123.pt``.

    The constructor makes the directory (mode 0700, if it is not there), proves that it can be
    written, and removes the temp files of processes that are gone. Copies that are pickled or
    forked do nothing of the kind, nor does `look`.

    Raises:
        OSError: the directory cannot be made or written; the message carries its path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = absolute(path)
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._remove_abandoned_temps()
            self._prove_writable()
        except OSError as error:
            reason = f"path cannot be used to store samples ({error.strerror})"
            raise OSError(error.errno, reason, self.path) from error

    @classmethod
    def look(cls, path: str | os.PathLike[str]) -> Self:
        """The store of a directory as it is: nothing is made, tried or removed.

        Raises:
            OSError: there is no such directory, or it cannot be read; the message carries its path.
        """
        store = cls.__new__(cls)
        store.path = absolute(path)
        os.scandir(store.path).close()
        return store

    def __repr__(self) -> str:
        return f"DirectoryStore({self.path!r})"

    def locate(self, index: int) -> str:
        """The path of an index's file."""
        return f"{self.path}/{index:08}.pt"

    def names(self) -> list[str]:
        """The names of all files, sorted."""
        return sorted(os.listdir(self.path))

    def index_of(self, name: str) -> int | None:
        """The index whose file has this name; None if it is the name of no sample."""
        match = _SAMPLE.fullmatch(name)
        if match is None or name != os.path.basename(self.locate(int(match[1]))):
            return None
        return int(match[1])

    def read(self, index: int) -> memoryview | None:
        """The whole file, or None if there is none; OSError if it cannot be read.

        A file much longer than any sample, perhaps one hole, is no reason to run out of memory: it
        is read if its trailer says that it is that long.
        """
        path = self.locate(index)
        file = _open(path)
        if file is None:
            return None
        try:
            size = _size_of_regular(file, path)
            if size > _LARGE and not is_announced(_read_tail(file, size, TRAILER_SIZE), size):
                raise OSError(errno.EFBIG, "too large for what its last bytes say", path)
            return _read_all(file, size)
        finally:
            os.close(file)

    def tail(self, index: int, size: int) -> bytes | None:
        """The last ``size`` bytes of the file (all of a shorter one), or None if there is none."""
        found = self.measure(index, size)
        return None if found is None else found[1]

    def measure(self, index: int, size: int) -> tuple[int, bytes] | None:
        """How many bytes the file has, and the last ``size`` of them; None if there is none."""
        path = self.locate(index)
        file = _open(path)
        if file is None:
            return None
        try:
            file_size = _size_of_regular(file, path)
            return file_size, _read_tail(file, file_size, size)
        finally:
            os.close(file)

    def write(self, index: int, record: Buffer) -> None:
        """Replace the file at once; OSError, and nothing left behind, if that fails."""
        self._write_file(f"{index:08}.pt", record)

    def remove(self, index: int, is_due: Callable[[], bool]) -> bool:
        """Remove the file if ``is_due()``, asked at the last moment, says so; return whether.

        OSError if it cannot be removed, or is no plain file: links are not followed.
        """
        path = self.locate(index)
        if not is_due():
            return False
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", path)
        os.unlink(path)
        return True

    def close(self) -> None:
        """Nothing is held open."""

    def _prove_writable(self) -> None:
        with temp_beside(self.locate(0)) as temp:
            _write_new(temp, b"")
            os.unlink(temp)

    def _write_file(self, name: str, data: Buffer) -> None:
        target = f"{self.path}/{name}"
        with temp_beside(target) as temp:
            _write_new(temp, data)
            os.replace(temp, target)

    def read_book(self) -> dict[str, Any]:
        """What the last run left in the bookkeeping file, or {}."""
        with suppress(OSError, ValueError, RecursionError):
            path = f"{self.path}/{BOOK}"
            file = _open(path)
            if file is not None:
                try:
                    size = min(_size_of_regular(file, path), _LARGE)
                    book = json.loads(bytes(_read_all(file, size)))
                finally:
                    os.close(file)
                if isinstance(book, dict):
                    return book
        return {}

    def write_book(self, book: dict[str, Any]) -> None:
        """Leave something for the next run; not on a full disk, of which the samples will tell."""
        if book != self.read_book():
            with suppress(OSError):
                self._write_file(BOOK, json.dumps(book, indent=1).encode())

    def _remove_abandoned_temps(self) -> None:
        with os.scandir(self.path) as entries:
            for entry in entries:
                if is_temp(entry.name) and entry.is_file(follow_symlinks=False):
                    with suppress(OSError):  # another start may be removing the same
                        if not owner_lives(entry.name, entry.stat(follow_symlinks=False)):
                            os.unlink(entry.path)


def _open(path: str) -> int | None:
    """A descriptor to read from, or None if there is no such file."""
    try:  # a pipe in the place of a file must not wait for a writer
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.islink(path):
            raise
        return None


def _size_of_regular(file: int, path: str) -> int:
    """The size of an open file in bytes; OSError if it is no plain file."""
    info = os.fstat(file)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return info.st_size


def _read_all(file: int, size: int) -> memoryview:
    # not a bytearray, whose zeros cost as much as reading does
    record = np.empty(size, np.uint8).data
    done = 0
    while done < size:  # one call, but beyond 2 GiB, and if the file is being cut
        count = os.readv(file, [record[done:]])
        if count == 0:
            break
        done += count
    return record[:done]


def _read_tail(file: int, file_size: int, size: int) -> bytes:
    return os.pread(file, size, max(0, file_size - size))


def _write_new(path: str, data: Buffer) -> None:
    """Write a file that is not there yet; OSError if it is."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)
