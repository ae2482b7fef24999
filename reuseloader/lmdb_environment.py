"""An open LMDB environment: transactions, a map that grows, readers that were killed."""

import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import lmdb

from reuseloader.lmdb_start import look_at_environment, open_environment

T = TypeVar("T")

_SPARE = 1.15  # a map of so many times the bytes in use should do, if nobody reads for long
_WAITS = 50  # times 1 ms that a writer waits for readers before it takes more than that


class ClosedError(Exception):
    """The environment was closed, here or by a fork, or does not work any more."""


class Environment:
    """An open environment.

    LMDB lets a process neither open one twice, nor move its map while a transaction is open, nor
    use it after a fork. So a process writes once at a time, and reads once at a time, which costs
    little under the GIL; and who holds both locks knows that no transaction is open.

    With ``look`` it is there to read from, and opening it changes nothing.
    """

    def __init__(self, path: str, *, look: bool = False) -> None:
        self.users: set[object] = set()
        self.is_broken = False  # and works again once it has been closed and opened
        self._writing = threading.Lock()
        self._reading = threading.Lock()  # the second to take of the two
        self._lmdb: lmdb.Environment | None
        self._lmdb, self._guard = look_at_environment(path) if look else open_environment(path)

    def _opened(self) -> lmdb.Environment:
        if self._lmdb is None or self.is_broken:
            raise ClosedError
        return self._lmdb

    def read(self, action: Callable[["lmdb.Transaction[memoryview]"], T]) -> T:
        """What ``action`` returns of a transaction."""
        while True:
            try:
                with self._reading, self._opened().begin(buffers=True) as transaction:
                    return action(transaction)
            except lmdb.MapResizedError:  # by another process
                self._resize(0)
            except lmdb.ReadersFullError:
                if not self._clear_readers():
                    raise

    def write(self, action: Callable[["lmdb.Transaction[bytes]"], None], size: int) -> None:
        """Commit what ``action`` does, which adds about ``size`` bytes, in a transaction."""
        waits = 0
        while True:
            try:
                with self._writing, self._opened().begin(write=True) as transaction:
                    action(transaction)
                    return
            except lmdb.MapResizedError:
                self._resize(0)
            except lmdb.MapFullError:
                self._clear_readers()
                if waits < _WAITS and self._has_room(size):
                    waits += 1
                    time.sleep(0.001)
                else:
                    self._grow(size)
            except lmdb.PanicError:  # a write of LMDB's own has failed
                self.is_broken = True
                raise

    def _clear_readers(self) -> int:
        """Forget readers that were killed, and what they could see; return how many."""
        with self._reading:
            return self._opened().reader_check()

    def _has_room(self, size: int) -> bool:
        """Whether pages enough are free, though readers may hold them or others lie between.

        The map is kept this tight so that the file does not grow by all that is written while some
        reader, of which there is always one, has lost its CPU.
        """
        with self._reading:
            environment = self._opened()
            stat = environment.stat()
            pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            needed = _SPARE * (pages * stat["psize"] + size)
            return environment.info()["map_size"] >= needed

    def _grow(self, size: int) -> None:
        with self._reading:
            old = self._opened().info()["map_size"]
        self._resize(_whole_pages(old + max(old // 16, size + 2**16)))

    def _resize(self, size: int) -> None:
        """Make the map so many bytes large, or, with 0, as large as another process has made it."""
        try:
            with self._writing, self._reading:
                self._opened().set_mapsize(size)
        except lmdb.MemoryError as error:
            self.is_broken = True
            reason = "no address space for a larger LMDB map (see `ulimit -v`)"
            raise OSError(errno.EFBIG, reason) from error

    def stop(self) -> None:
        """Let no transaction be open from here to `go`."""
        self._writing.acquire()
        self._reading.acquire()

    def go(self) -> None:
        """The end of what `stop` began."""
        self._reading.release()
        self._writing.release()

    def close(self) -> None:
        """Close it while it is stopped, perhaps in a child of the process that opened it."""
        if self._lmdb is not None:
            self._lmdb.close()
            os.close(self._guard)
            self._lmdb = None


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
