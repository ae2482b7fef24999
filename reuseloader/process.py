"""Which process wrote a file, and does it still run? pids alone are used again."""

import os
import socket
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path


@lru_cache(maxsize=1)
def host_id() -> str:
    """8 hex digits for this host and, in a container, for its own numbering of processes."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        namespace = ""
    return blake2b(f"{socket.gethostname()} {namespace}".encode(), digest_size=4).hexdigest()


@lru_cache(maxsize=64)
def start_time(pid: int) -> int:
    """When a process of this host began, in ticks since boot; 0 where that cannot be told."""
    return _state_and_start(pid)[1]


def _forget() -> None:
    host_id.cache_clear()
    start_time.cache_clear()


# a child may have the pid of a process of old, or be the first of another namespace
os.register_at_fork(after_in_child=_forget)


def is_running(pid: int, start: int) -> bool:
    """Whether the process ``pid`` that began at ``start`` is still alive on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # alive, of another user
        pass
    state, now = _state_and_start(pid)
    return state not in ("Z", "X") and (start == now or 0 in (start, now))


def _state_and_start(pid: int) -> tuple[str, int]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", 0
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], int(fields[19])
