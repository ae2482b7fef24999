"""LMDBStore where there is no room, no right, or no address left."""

import functools
import mmap
import os
import resource
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from helpers import (
    FORKS,
    Caught,
    Log,
    append,
    big_sample,
    bits,
    due,
    fails,
    forked,
)

from reuseloader import IndexEpoch, LMDBStore, ReuseDataset, ReusePolicy
from reuseloader.audit import check

pytestmark = pytest.mark.filterwarnings(FORKS)

POLICY = ReusePolicy(3, 1)
MANY = 40  # of 40 kB each


def logged_big(key, log):
    """`big_sample`, noted in the file ``log``."""
    append(log, f"{key.index} {key.epoch} {key.generation} {key.seed}\n")
    return big_sample(key)


def begin(folder, store):
    log = Log(folder)
    build = functools.partial(logged_big, log=str(log.path))
    return log, ReuseDataset(build, MANY, LMDBStore(store), POLICY)


def assert_right_pass(dataset, epoch):
    for index in range(MANY):
        wanted = big_sample(dataset.policy.key(index, epoch).first)
        assert bits(dataset[IndexEpoch(index, epoch)]) == bits(wanted)


def assert_stores_again(log, dataset, epoch):
    """After a pass without trouble only what is due is built."""
    assert_right_pass(dataset, epoch)
    log.take()
    assert_right_pass(dataset, epoch + 1)
    assert log.indices() == due(POLICY, epoch + 1, MANY)
    dataset.close()
    found = check(dataset._fetcher.store, MANY)
    assert found.clean


def run_into_the_limit(folder):
    log, dataset = begin(folder, folder / "store")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Caught() as caught:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
        for epoch in range(4):
            assert_right_pass(dataset, epoch)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert_stores_again(log, dataset, 4)
    return list(caught)


def test_a_file_that_may_not_grow_costs_builds_alone(tmp_path):
    """At a limit of the process's, samples are delivered unsaved; later they are saved again."""
    caught = forked(run_into_the_limit, tmp_path)
    assert len(caught) == 1
    assert "samples could not be stored" in caught[0]
    assert f"LMDBStore({str(tmp_path / 'store')!r}), index " in caught[0]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8M", "none", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(path):
    with open(path, "ab", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def run_on_a_full_disk(folder, disk):
    log, dataset = begin(folder, disk / "store")
    with Caught() as caught:
        for epoch in range(0, 8, 2):
            assert_right_pass(dataset, epoch)
            fill(disk / "ballast")
            assert_right_pass(dataset, epoch + 1)
            (disk / "ballast").unlink()
        assert_stores_again(log, dataset, 8)
    return list(caught)


def test_a_full_disk_costs_builds_alone(small_disk, tmp_path):
    """A disk that fills up again and again is no SIGBUS, and no sample is wrong."""
    forked(run_on_a_full_disk, tmp_path, small_disk)


def start_on_a_full_disk(disk):
    fill(disk / "ballast")
    with fails(OSError, "path cannot be used to store samples"):
        LMDBStore(disk / "store")
    (disk / "ballast").unlink()
    LMDBStore(disk / "store").write(0, b"")


def test_a_start_on_a_full_disk_is_an_error(small_disk):
    """Where there is no room for an empty store, the constructor says so."""
    forked(start_on_a_full_disk, small_disk)


def run_out_of_addresses(store):
    lmdb = LMDBStore(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**26, hard))
    with fails(OSError, "no address space"):
        for index in range(200):
            lmdb.write(index, bytes(10**6))
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    lmdb.write(index, bytes(10**6))
    assert index > 10
    assert all(len(lmdb.read(before)) == 10**6 for before in range(index + 1))


def test_a_limit_of_addresses_is_an_error(store):
    """Where the map may not grow, the write fails; the store goes on with what it has."""
    forked(run_out_of_addresses, store)


# --- places that may not be written ---------------------------------------------------------------


@pytest.fixture
def open_to_all():
    """A directory that every user may enter and write."""
    path = Path(tempfile.mkdtemp(prefix="reuseloader-test-"))
    path.chmod(0o777)
    yield path
    (path / "store").chmod(0o700)
    shutil.rmtree(path)


def refused(path, match):
    with fails(OSError, match) as caught:
        LMDBStore(path)
    assert caught.value.filename == str(path)


def refused_as_nobody(path):
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    refused(path, "Permission denied")


def test_a_directory_without_permission_is_refused(open_to_all):
    """One that may not be written, or not entered, is an error with its path."""
    store = open_to_all / "store"
    store.mkdir()
    for mode in (0o555, 0o000):
        store.chmod(mode)
        forked(refused_as_nobody, store)


def test_a_read_only_file_system_is_refused(small_disk):
    """One that may not be written any more is an error with the path, whatever lies there."""
    LMDBStore(small_disk / "store").close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for name in ("store", "new"):
        refused(small_disk / name, "Read-only file system")
