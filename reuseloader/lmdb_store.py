"""Index -> bytes in one LMDB file, for those who have the `lmdb` package."""

import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from reuseloader.record import Buffer
from reuseloader.store import absolute

if TYPE_CHECKING:
    from lmdb import Transaction

    from reuseloader.lmdb_use import Use

_FILES = {"boot_id", "data.mdb", "lock.mdb"}
_BOOK = b"book"
_KEY = struct.Struct(">QI")  # of a part: index, number of the part; in this order in the file
# Bytes of a part; with LMDB's own 16 they fill pages. A value needs pages in a row: undivided,
# large samples of many sizes leave gaps between them that nothing fits.
_PART = 2**16 - 16
_STEP = 1000  # keys listed in one transaction, so that it keeps no pages from being used again
_SAMPLE = re.compile(r"\d{8,}")


class LMDBStore:
    """All samples in one LMDB file, in place of a file per sample; to pass as ``path``.

    Cheaper to write than files, and kind to file systems that are slow with many of them. Needs
    ``pip install reuseloader[lmdb]``. The directory (made with mode 0700, if it is not there) holds
    ``data.mdb``, ``lock.mdb`` and ``boot_id``. The file grows by itself, to a quarter or so more
    than the most that was stored at one time, and never shrinks. Usable from threads and processes,
    after any way to start them, and again after `close`.

    It is a cache: nothing is synced to disk. What was written before the system last started is
    thrown away, since a crash may have torn it (where there is no
    ``/proc/sys/kernel/random/boot_id``, every write is synced instead, which is slow).

    What LMDB cannot do, and a directory of files can:

    - Network and cluster file systems: refused where ``/proc/self/mounts`` tells. All processes
      must run on one host, and in one container unless they share their numbering of processes.
    - A file cut short by someone else while it is open kills the process that reads it (SIGBUS).
      Cut while nobody had it open, it is begun anew. Do not delete single files of an open store.
    - A sample that changed on the disk is found by its checksum, and built anew; where LMDB's own
      pages changed, LMDB mostly sees it, but may abort the process. Delete the directory then.
    - On macOS, a process killed while it writes may leave the lock taken; on Linux it does not.
    - A process that is stopped (SIGSTOP) while it writes makes every other writer wait.

    Args:
        path: a directory of this store's own.

    Raises:
        ImportError: there is no `lmdb`.
        OSError: the directory cannot be made, written or locked, lies on a network file system, or
            holds another ``data.mdb``; the message carries its path. In use, every error of LMDB's
            is an OSError too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = absolute(path)
        self._use = _use(self.path)
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._use.open()
        except OSError as error:
            reason = f"path cannot be used to store samples ({error.strerror})"
            raise OSError(error.errno, reason, self.path) from error

    @classmethod
    def look(cls, path: str | os.PathLike[str]) -> Self:
        """The store of a directory as it is, to read from: nothing is made, begun or removed.

        Only that somebody reads is noted in ``lock.mdb``, as LMDB must.

        Raises:
            OSError: there is none, it cannot be read, or the next run would begin it anew; the
                message carries its path.
        """
        store = cls.__new__(cls)
        store.path = absolute(path)
        store._use = _use(store.path, look=True)
        store._use.open()
        return store

    def __repr__(self) -> str:
        return f"LMDBStore({self.path!r})"

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.path = state["path"]
        self._use = _use(self.path)

    def read(self, index: int) -> memoryview | None:
        """A copy of the record of ``index``, or None if there is none; OSError if it fails."""
        return self._use.read(partial(_read, index))

    def tail(self, index: int, size: int) -> bytes | None:
        """The last ``size`` bytes of the record (all of a shorter one), or None."""
        found = self.measure(index, size)
        return None if found is None else found[1]

    def measure(self, index: int, size: int) -> tuple[int, bytes] | None:
        """How many bytes the record has, and the last ``size`` of them; None if there is none."""
        return self._use.read(partial(_measure, index, size))

    def write(self, index: int, record: Buffer) -> None:
        """Replace the record at once; OSError, and the old one is still there, if that fails."""
        self._use.write(partial(_write, index, memoryview(record)), len(record))

    def remove(self, index: int, is_due: Callable[[], bool]) -> bool:
        """Remove the record if ``is_due()``, asked while nobody can write, says so; return whether.

        OSError if that fails.
        """
        removed: list[int] = []
        self._use.write(partial(_remove, index, is_due, removed), 0)
        return bool(removed)

    def close(self) -> None:
        """Close the environment, unless another store of this process uses it."""
        self._use.end()

    def read_book(self) -> dict[str, Any]:
        """What the last run left, or {}."""
        with suppress(OSError, ValueError, RecursionError):
            book = json.loads(self._use.read(_read_book))
            if isinstance(book, dict):
                return book
        return {}

    def write_book(self, book: dict[str, Any]) -> None:
        """Leave something for the next run; not on a full disk, of which the samples will tell."""
        if book != self.read_book():
            text = json.dumps(book).encode()
            with suppress(OSError):
                self._use.write(partial(_write_book, text), len(text))

    def names(self) -> Iterator[str]:
        """The names of all that is there.

        A sample is named by its index, in 8 digits at least; a key that is no index by its bytes, a
        file that is none of the store's by its path.
        """
        last = b""
        while keys := self._use.read(partial(_keys_after, last)):
            yield from filter(None, map(_name, keys))
            last = keys[-1]
        for file in sorted({*os.listdir(self.path)} - _FILES):
            yield f"{self.path}/{file}"

    def index_of(self, name: str) -> int | None:
        """The index of a sample's name; None for any other name."""
        return int(name) if _SAMPLE.fullmatch(name) else None


def _use(path: str, *, look: bool = False) -> "Use":
    try:
        from reuseloader.lmdb_use import Use
    except ModuleNotFoundError as error:
        if error.name != "lmdb":
            raise
        reason = "LMDBStore needs the lmdb package: pip install reuseloader[lmdb]"
        raise ImportError(reason, name="lmdb") from error
    return Use(path, look=look)


# --- in a transaction -----------------------------------------------------------------------------


def _write(index: int, record: memoryview, transaction: "Transaction[bytes]") -> None:
    parts = range(0, len(record) + 1, _PART)  # the last one is short, and perhaps empty
    for number, start in enumerate(parts):
        transaction.put(_KEY.pack(index, number), record[start : start + _PART])
    number = len(parts)
    while transaction.delete(_KEY.pack(index, number)):  # of a longer record
        number += 1


def _parts(index: int, transaction: "Transaction[memoryview]") -> list[memoryview]:
    found: list[memoryview] = []
    cursor = transaction.cursor()
    if cursor.set_key(_KEY.pack(index, 0)):
        for part in cursor.iternext(keys=False):  # faster than to get one after the other
            found.append(part)
            if len(part) < _PART:
                break
    return found


def _read(index: int, transaction: "Transaction[memoryview]") -> memoryview | None:
    parts = _parts(index, transaction)
    if not parts:
        return None
    return memoryview(bytearray().join(parts))


def _measure(
    index: int, size: int, transaction: "Transaction[memoryview]"
) -> tuple[int, bytes] | None:
    parts = _parts(index, transaction)
    if not parts:
        return None
    end = b"".join(parts[-2 - size // _PART :])
    return sum(map(len, parts)), end[max(0, len(end) - size) :]


def _remove(
    index: int, is_due: Callable[[], bool], removed: list[int], transaction: "Transaction[bytes]"
) -> None:
    removed.clear()  # of an earlier attempt
    if is_due():  # which reads in a transaction of its own, and sees what this one does
        number = 0
        while transaction.delete(_KEY.pack(index, number)):
            number += 1
        removed.append(index)


def _read_book(transaction: "Transaction[memoryview]") -> bytes:
    return bytes(transaction.get(_BOOK, b""))


def _write_book(text: bytes, transaction: "Transaction[bytes]") -> None:
    transaction.put(_BOOK, text)


def _keys_after(last: bytes, transaction: "Transaction[memoryview]") -> list[bytes]:
    cursor = transaction.cursor()
    if not cursor.set_range(last + b"\0"):
        return []
    return [bytes(key) for key in islice(cursor.iternext(values=False), _STEP)]


def _name(key: bytes) -> str | None:
    if len(key) != _KEY.size:
        return None if key == _BOOK else repr(key)
    index, number = _KEY.unpack(key)
    return f"{index:08}" if number == 0 else None
