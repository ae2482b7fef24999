"""The files that a store is writing, each under a name that says whose it is."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from reuseloader.process import host_id, is_running, start_time

_FOREIGN_HOST_GRACE = 24 * 3600  # seconds for which the temp file of another host may be in use
_TEMP = re.compile(r"(?:\d{8,}\.pt|reuseloader\.json)\.([0-9a-f]{8})-(\d+)-(\d+)-\d+\.tmp")
_numbers = count()


@contextmanager
def temp_beside(target: str) -> Iterator[str]:
    """A name beside ``target`` that no other writer uses.

    The block makes a file of that name and moves it away; if it fails, the file is removed.
    """
    owner = f"{host_id()}-{os.getpid()}-{start_time(os.getpid())}"
    temp = f"{target}.{owner}-{next(_numbers)}.tmp"
    try:
        yield temp
    except BaseException:
        with suppress(OSError):  # it must not take the place of what went wrong
            os.unlink(temp)
        raise


def is_temp(name: str) -> bool:
    """Whether a file of this name is one that a store was writing."""
    return _TEMP.fullmatch(name) is not None


def owner_lives(name: str, info: os.stat_result) -> bool:
    """Whether the owner of a temporary file is alive, or perhaps alive on another host."""
    owner = _TEMP.fullmatch(name)
    if owner is None:
        raise ValueError(f"name must be that of a temporary file, got {name!r}")
    host, pid, start = owner.groups()
    if host == host_id():
        return is_running(int(pid), int(start))
    return time.time() - info.st_mtime < _FOREIGN_HOST_GRACE
