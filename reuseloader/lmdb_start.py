"""Before an LMDB environment is opened: may it lie here, is it of this boot, is it whole?"""

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import lmdb

DATA, LOCK, BOOT = "data.mdb", "lock.mdb", "boot_id"
_LOCK_SIZE = 2**18  # bytes; 4094 readers at one moment, of 64 bytes each
_FIRST_MAP = 2**20  # bytes; LMDB takes more for a file that is longer
_REMOTE = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs\w*|pvfs2|orangefs|ocfs2|gfs2|ncpfs|coda"
    r"|fuse\.(sshfs|ceph|glusterfs|lustre|s3fs|gcsfuse|goofys|rclone|davfs2?|juicefs|smbnetfs)"
)


def open_environment(path: str) -> tuple[lmdb.Environment, int]:
    """The environment of a directory, and a descriptor that tells others that it is in use.

    All processes come by here, one at a time. What a crash of the system may have torn, since
    nothing is synced, is found by the boot it was written in, and begun anew. Where boots cannot be
    told apart, all is synced instead. A file without its lock file, or the other way round, is
    begun anew as well: two processes must not have one without the other in common.
    """
    return _guarded(_open_alone_or_shared, path)


def look_at_environment(path: str) -> tuple[lmdb.Environment, int]:
    """The same to read from: nothing is begun, mended or thrown away; OSError if that were due.

    Readers sign in in the lock file, so that no writer uses the pages that they read for something
    new. Who has no right to sign in can read only what nobody has open.
    """
    return _guarded(_open_to_look, path)


def _guarded(
    begin: Callable[[str, int], lmdb.Environment], path: str
) -> tuple[lmdb.Environment, int]:
    _refuse_remote(path)
    guard = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return begin(path, guard), guard
    except BaseException:
        os.close(guard)
        raise


def _open_to_look(path: str, guard: int) -> lmdb.Environment:
    if not os.path.exists(f"{path}/{BOOT}"):
        _refuse_stale(path)
    with _marker(path, os.O_RDONLY, fcntl.LOCK_SH) as marker:
        if not _is_valid(path, marker):
            _refuse_stale(path)
        may_sign_in = os.access(f"{path}/{LOCK}", os.W_OK)
        if not may_sign_in and not _is_alone(guard):
            reason = "it is in use, and its lock file cannot be written"
            raise OSError(errno.EBUSY, reason, path)
        fcntl.flock(guard, fcntl.LOCK_UN)
        environment = lmdb.open(path, readonly=True, create=False, lock=may_sign_in)
        if _is_cut(environment, path):
            environment.close()
            _refuse_stale(path)
        return environment


def _refuse_stale(path: str) -> NoReturn:
    reason = "torn, or from before the system last started: the next run begins it anew"
    raise OSError(errno.ESTALE, reason, path)


def _open_alone_or_shared(path: str, guard: int) -> lmdb.Environment:
    with _marker(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as marker:
        alone = _is_alone(guard)
        boot = _boot_id()
        same_boot = _is_of_boot(marker)
        if not _is_valid(path, marker):
            _remove(path)
        environment = _open(path, sync=not boot)
        if alone and _is_cut(environment, path):
            environment.close()
            _remove(path)
            environment = _open(path, sync=not boot)
        if not same_boot:
            os.ftruncate(marker, 0)
            os.pwrite(marker, boot, 0)
        fcntl.flock(guard, fcntl.LOCK_SH)
        return environment


def _refuse_remote(path: str) -> None:
    kind = _file_system(os.path.realpath(path))
    if _REMOTE.fullmatch(kind):
        reason = f"LMDB does not work on network file systems, here {kind}, files in it do"
        raise OSError(errno.ENOTSUP, reason, path)


def _file_system(path: str) -> str:
    """The type of the file system a real path lies on; "" where that cannot be told."""
    kind, best = "", ""
    with suppress(OSError):  # not Linux
        for line in Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines():
            place, its_kind = line.split(" ")[1:3]
            place = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), place)
            inside = path == place or path.startswith(place.rstrip("/") + "/")
            if inside and len(place) >= len(best):  # of two on one place, the later one is seen
                kind, best = its_kind, place
    return kind


@contextmanager
def _marker(path: str, flags: int, lock: int) -> Iterator[int]:
    """The file that says in which boot the data was begun, while no other process has it."""
    marker = os.open(f"{path}/{BOOT}", flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(marker, lock)
        yield marker
    finally:
        os.close(marker)


def _is_alone(guard: int) -> bool:
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_valid(path: str, marker: int) -> bool:
    """Whether what lies here is of this boot and has both its files."""
    return _is_of_boot(marker) and all(os.path.exists(f"{path}/{name}") for name in (DATA, LOCK))


def _is_of_boot(marker: int) -> bool:
    return os.pread(marker, 100, 0) == _boot_id()


def _boot_id() -> bytes:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:  # not Linux
        return b""


def _remove(path: str) -> None:
    for name in (DATA, LOCK):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}/{name}")


def _open(path: str, *, sync: bool) -> lmdb.Environment:
    _allocate_lock(f"{path}/{LOCK}")
    environment = lmdb.open(
        path, map_size=_FIRST_MAP, mode=0o666, create=False, sync=sync, metasync=sync
    )
    environment.reader_check()
    return environment


def _allocate_lock(path: str) -> None:
    """Give the lock file its blocks: LMDB maps it, and a hole on a full disk is a SIGBUS."""
    with open(path, "ab") as file:
        file.write(bytes(max(0, _LOCK_SIZE - file.tell())))


def _is_cut(environment: lmdb.Environment, path: str) -> bool:
    """Whether the data file is shorter than it says: reading beyond its end is a SIGBUS."""
    end = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    return os.path.getsize(f"{path}/{DATA}") < end
