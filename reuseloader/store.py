"""Index -> bytes: the only room that touches the disk."""

import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, BinaryIO, Protocol, runtime_checkable

from reuseloader.process import host_id, is_running, start_time

_FOREIGN_HOST_GRACE = 24 * 3600  # seconds for which the temp file of another host may be in use
BOOK = "reuseloader.json"
_TEMP = re.compile(r"(?:\d{8,}\.pt|reuseloader\.json)\.([0-9a-f]{8})-(\d+)-(\d+)-\d+\.tmp")
_temp_numbers = count()


@runtime_checkable
class Store(Protocol):
    """Where records lie. Must be picklable and usable from threads and processes.

    A store only moves bytes; whether they are sound and of the right stamp is judged elsewhere. It
    may also offer ``tail(index, size) -> bytes | None``, the last bytes of a record, to answer
    quickly whether a sample is stored.
    """

    def read(self, index: int) -> bytes | None:
        """The record of ``index``, or None if there is none."""

    def write(self, index: int, record: bytes) -> None:
        """Replace the record of ``index``, at once for every reader."""

    def close(self) -> None:
        """Release what the store holds open."""


class DirectoryStore:
    """One file per index in a directory: ``00000123.pt``.

    The constructor makes the directory (mode 0700, if it is not there), proves that it can be
    written, and removes the temp files of processes that are gone. Copies that are pickled or
    forked do nothing of the kind.

    Raises:
        OSError: the directory cannot be made or written; the message carries its path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        if "\0" in self.path:
            raise ValueError(f"path must name a directory, got {path!r}")
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._remove_abandoned_temps()
            self._write_file("00000000.pt", b"", keep=False)
        except OSError as error:
            reason = f"path cannot be used to store samples ({error.strerror})"
            raise OSError(error.errno, reason, self.path) from error

    def __repr__(self) -> str:
        return f"DirectoryStore({self.path!r})"

    def locate(self, index: int) -> str:
        """The path of an index's file."""
        return f"{self.path}/{index:08}.pt"

    def read(self, index: int) -> bytes | None:
        """The whole file, or None if there is none; OSError if it cannot be read."""
        file = _open_regular(self.locate(index))
        if file is None:
            return None
        with file:
            return file.read()

    def tail(self, index: int, size: int) -> bytes | None:
        """The last ``size`` bytes of the file (all of a shorter one), or None if there is none."""
        file = _open_regular(self.locate(index))
        if file is None:
            return None
        with file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read()

    def write(self, index: int, record: bytes) -> None:
        """Replace the file at once; OSError, and nothing left behind, if that fails."""
        self._write_file(f"{index:08}.pt", record)

    def close(self) -> None:
        """Nothing is held open."""

    def _write_file(self, name: str, data: bytes, *, keep: bool = True) -> None:
        with _temp_beside(f"{self.path}/{name}") as temp:
            with open(temp, "xb") as file:
                file.write(data)
            if keep:
                os.replace(temp, f"{self.path}/{name}")

    def read_book(self) -> dict[str, Any]:
        """What the last run left beside the samples, or {}."""
        with suppress(OSError, ValueError, RecursionError):
            file = _open_regular(f"{self.path}/{BOOK}")
            if file is not None:
                with file:
                    book = json.loads(file.read())
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
                owner = _TEMP.fullmatch(entry.name)
                if owner and entry.is_file(follow_symlinks=False):
                    with suppress(OSError):  # another start may be removing the same
                        if not _owner_lives(owner, entry.stat(follow_symlinks=False)):
                            os.unlink(entry.path)


def is_temp(name: str) -> bool:
    """Whether a file of this name is one that a store was writing."""
    return _TEMP.fullmatch(name) is not None


def _open_regular(path: str) -> BinaryIO | None:
    """Open a file for reading, or return None if there is none; OSError if it is no plain file."""
    try:
        file = open(path, "rb", buffering=0, opener=_open_nonblocking)  # noqa: SIM115
    except FileNotFoundError:
        if os.path.islink(path):
            raise
        return None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def _open_nonblocking(path: str, flags: int) -> int:
    # a pipe in the place of a file must not wait for a writer
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


@contextmanager
def _temp_beside(target: str) -> Iterator[str]:
    """A name beside ``target`` that no other writer uses and that says whose it is.

    The file of that name is gone afterwards, whatever happened, unless it was moved away.
    """
    owner = f"{host_id()}-{os.getpid()}-{start_time(os.getpid())}"
    temp = f"{target}.{owner}-{next(_temp_numbers)}.tmp"
    try:
        yield temp
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temp)


def _owner_lives(owner: re.Match[str], info: os.stat_result) -> bool:
    host, pid, start = owner.groups()
    if host == host_id():
        return is_running(int(pid), int(start))
    return time.time() - info.st_mtime < _FOREIGN_HOST_GRACE
