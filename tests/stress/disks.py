"""A small file system of the script's own, in mounts that nobody else sees."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

DISK = 8 * 2**20

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUSER = 0x20000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
_RDONLY, _REMOUNT, _REC, _PRIVATE = 1, 32, 0x4000, 0x40000  # MS_...


class NotAllowedError(Exception):
    """This machine does not let the script bring a scene about."""


def system_call(name: str, *args: Any) -> None:
    """A function of the C library that gives 0, or an error."""
    encoded = [os.fsencode(arg) if isinstance(arg, (str, Path)) else arg for arg in args]
    if getattr(_LIBC, name)(*encoded):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def own_mounts() -> None:
    """Give this process mounts of its own."""
    user, group = os.getuid(), os.getgid()
    system_call("unshare", _NEWNS if user == 0 else _NEWNS | _NEWUSER)
    if user != 0:  # root, but in these mounts alone
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    system_call("mount", "none", "/", None, ctypes.c_ulong(_REC | _PRIVATE), None)


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of its own; NotAllowedError where there can be none."""
    path.mkdir()
    try:
        own_mounts()
        system_call("mount", "tmpfs", path, "tmpfs", ctypes.c_ulong(0), f"size={DISK}")
    except OSError as error:
        raise NotAllowedError(str(error)) from error
    try:
        yield path
    finally:
        system_call("umount2", path, 2)  # MNT_DETACH


def read_only(path: Path, yes: bool) -> None:
    flags = _REMOUNT | (_RDONLY if yes else 0)
    system_call("mount", "tmpfs", path, "tmpfs", ctypes.c_ulong(flags), f"size={DISK}")


def fill(ballast: Path) -> None:
    """Leave no room; somebody else is writing too, so what is freed meanwhile is taken as well."""
    with open(ballast, "ab", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def free(ballast: Path) -> None:
    ballast.unlink()
