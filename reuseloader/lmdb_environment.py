"""One LMDB environment per process and directory, for all the stores on it."""

import errno
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import lmdb

from reuseloader.lmdb_start import open_environment
from reuseloader.record import Buffer

T = TypeVar("T")

_SPARE = 1.15  # a map of so many times the bytes in use should do, if nobody reads for long
_WAITS = 50  # times 1 ms that a writer waits for readers before it takes more than that


class ClosedError(Exception):
    """The environment was closed, or has been left behind by a fork."""


class Environment:
    """An open environment.

    LMDB lets a process neither open one twice, nor move its map while a transaction is open, nor
    use it after a fork. So a process writes once at a time, and reads once at a time, which costs
    little under the GIL; and who holds both locks knows that no transaction is open.
    """

    def __init__(self, path: str) -> None:
        self.users: set[object] = set()
        self._writing = threading.Lock()
        self._reading = threading.Lock()  # the second to take of the two
        self._lmdb: lmdb.Environment | None
        self._lmdb, self._guard = open_environment(path)

    @property
    def is_closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self._lmdb is None

    def _opened(self) -> lmdb.Environment:
        if self._lmdb is None:
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

    def write(self, key: bytes, value: Buffer) -> None:
        """Put a value, however large the map must be for it."""
        waits = 0
        while True:
            try:
                with self._writing, self._opened().begin(write=True) as transaction:
                    transaction.put(key, value)
                    return
            except lmdb.MapResizedError:
                self._resize(0)
            except lmdb.MapFullError:
                self._clear_readers()
                if waits < _WAITS and self._has_room(len(value)):
                    waits += 1
                    time.sleep(0.001)
                else:
                    self._grow(len(value))
            except lmdb.PanicError:  # a write of LMDB's own failed; it works again once reopened
                discard(self)
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
            discard(self)
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


# --- the environments of this process -------------------------------------------------------------

_lock = threading.Lock()  # taken before the locks of any environment
_environments: dict[tuple[int, int], Environment] = {}  # by device and inode of the directory
_released: deque[object] = deque()  # users whose release is due


def acquire(path: str, user: object) -> Environment:
    """The environment of a directory, however it is called, opened if it is not; for ``user``."""
    try:
        with _lock:
            info = os.stat(path)
            key = info.st_dev, info.st_ino
            environment = _environments.get(key)
            if environment is None:
                environment = _environments[key] = Environment(path)
            environment.users.add(user)
            return environment
    finally:
        _sweep()


def release(user: object) -> None:
    """Close what only ``user`` had open. May be called at any moment, as garbage is collected."""
    _released.append(user)
    _sweep()


def discard(environment: Environment) -> None:
    """Close an environment that no longer works; its users open it anew."""
    with _lock:
        _drop(environment)
    _sweep()


def _sweep() -> None:
    # who finds the lock taken leaves the work to its holder, perhaps the same thread
    while _released and _lock.acquire(blocking=False):
        try:
            with suppress(IndexError):
                user = _released.popleft()
                for environment in tuple(_environments.values()):
                    environment.users.discard(user)
                    if not environment.users:
                        _drop(environment)
        finally:
            _lock.release()


def _drop(environment: Environment) -> None:
    for key, other in tuple(_environments.items()):
        if other is environment:
            del _environments[key]
    environment.stop()
    environment.close()
    environment.go()


def _before_fork() -> None:
    _lock.acquire()
    for environment in _environments.values():
        environment.stop()


def _after_fork_in_parent() -> None:
    for environment in _environments.values():
        environment.go()
    _lock.release()
    _sweep()


def _after_fork_in_child() -> None:
    # closing takes the child's copies of descriptors and maps, and nothing of the parent's
    for environment in _environments.values():
        environment.close()
        environment.go()
    _environments.clear()
    _lock.release()
    _sweep()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


class Use:
    """One store's use of its directory's environment, which is open from the first call to `end`.

    Errors of lmdb's come out as OSErrors, with the path.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._user = object()
        self._environment: Environment | None = None
        weakref.finalize(self, release, self._user)

    def open(self) -> None:
        """Open it now."""
        self._run(lambda environment: None)

    def read(self, action: Callable[["lmdb.Transaction[memoryview]"], T]) -> T:
        """What ``action`` returns; the views that its transaction gives end with it."""
        return self._run(lambda environment: environment.read(action))

    def write(self, key: bytes, value: Buffer) -> None:
        """Put a value in the place of another, in a transaction of its own."""
        self._run(lambda environment: environment.write(key, value))

    def _run(self, action: Callable[[Environment], T]) -> T:
        while True:
            try:
                environment = self._environment
                if environment is None or environment.is_closed:
                    environment = self._environment = acquire(self._path, self._user)
                return action(environment)
            except ClosedError:
                continue
            except lmdb.Error as error:
                raise _os_error(error, self._path) from error

    def end(self) -> None:
        """Close the environment unless others use it. It may be used again."""
        self._environment = None
        release(self._user)


def _os_error(error: lmdb.Error, path: str) -> OSError:
    """The same as an OSError, with LMDB's own codes, all negative, under EIO."""
    if error.code <= 0:
        return OSError(errno.EIO, str(error), path)
    reason = os.strerror(error.code)
    if error.code == errno.EIO:  # what LMDB makes of a write that was cut short
        reason += " (perhaps the disk is full)"
    return OSError(error.code, reason, path)
