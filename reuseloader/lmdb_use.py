"""One LMDB environment per process and directory, for all the stores on it."""

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

import lmdb

from reuseloader.lmdb_environment import ClosedError, Environment

P = ParamSpec("P")
T = TypeVar("T")


class Use:
    """One store's use of its directory's environment, which is open from the first call to `end`.

    With ``look``, only to read. Errors of lmdb's come out as OSErrors, with the path.
    """

    def __init__(self, path: str, *, look: bool = False) -> None:
        self._path = path
        self._look = look
        self._user = object()
        self._environment: Environment | None = None
        weakref.finalize(self, _release, self._user)

    def open(self) -> None:
        """Open it now."""
        self._run(_nothing)

    def read(self, action: Callable[["lmdb.Transaction[memoryview]"], T]) -> T:
        """What ``action`` returns; the views that its transaction gives end with it."""
        return self._run(Environment.read, action)

    def write(self, action: Callable[["lmdb.Transaction[bytes]"], None], size: int) -> None:
        """Commit what ``action`` does, perhaps in a second attempt; it adds ``size`` bytes."""
        self._run(Environment.write, action, size)

    def _run(
        self, method: Callable[Concatenate[Environment, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        while True:
            try:
                environment = self._environment
                if environment is None:
                    environment = self._environment = _acquire(
                        self._path, self._user, look=self._look
                    )
                return method(environment, *args, **kwargs)
            except ClosedError:
                self._environment = None
            except lmdb.Error as error:
                raise _os_error(error, self._path) from error

    def end(self) -> None:
        """Close the environment unless others use it. It may be used again."""
        self._environment = None
        _release(self._user)


def _nothing(environment: Environment) -> None:
    pass


def _os_error(error: lmdb.Error, path: str) -> OSError:
    """The same as an OSError, with LMDB's own codes, all negative, under EIO."""
    if error.code <= 0:
        return OSError(errno.EIO, str(error), path)
    reason = os.strerror(error.code)
    if error.code == errno.EIO:  # what LMDB makes of a write that was cut short
        reason += " (perhaps the disk is full)"
    return OSError(error.code, reason, path)


# --- the environments of this process -------------------------------------------------------------

_lock = threading.Lock()  # taken before the locks of any environment
# by device and inode of the directory, and whether it is to read from alone
_environments: dict[tuple[int, int, bool], Environment] = {}
_released: deque[object] = deque()  # users whose release is due


def _acquire(path: str, user: object, *, look: bool) -> Environment:
    """The environment of a directory, however it is called, opened if it is not; for ``user``."""
    try:
        with _lock:
            info = os.stat(path)
            key = info.st_dev, info.st_ino, look
            environment = _environments.get(key)
            if environment is not None and environment.is_broken:
                _drop(environment)
                environment = None
            if environment is None:
                environment = _environments[key] = Environment(path, look=look)
            environment.users.add(user)
            return environment
    finally:
        _sweep()


def _release(user: object) -> None:
    """Close what only ``user`` had open. May be called at any moment, as garbage is collected."""
    _released.append(user)
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
