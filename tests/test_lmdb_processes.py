"""LMDBStore under everything that processes do: start, fork, run into limits, get killed."""

import functools
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from helpers import (
    FORKS,
    START_METHODS,
    Caught,
    Log,
    append,
    big_sample,
    bits,
    due,
    fails,
    forked,
    names,
)

from reuseloader import IndexEpoch, LMDBStore, ReuseDataset, ReusePolicy
from reuseloader.audit import check
from reuseloader.lmdb_environment import acquire
from reuseloader.record import Stamp, read_stamp, seal

pytestmark = pytest.mark.filterwarnings(FORKS)

STAMP = Stamp(codec=0, generation=0, seed=0, lifetime=2, fingerprint=bytes(16))
INDICES = 6


def a_record(rng):
    """A sound record of 2 to 100 kB."""
    return seal(rng.randbytes(rng.randrange(2_000, 100_000)), STAMP)


def use(lmdb, seed, rounds):
    """Write and read few indices; whatever is read is sound."""
    rng = random.Random(seed)
    for _ in range(rounds):
        index = rng.randrange(INDICES)
        lmdb.write(index, a_record(rng))
        read_stamp(lmdb.read(rng.choice([index, index])))


def use_in_threads(lmdb, seed, rounds):
    """`use` in 8 threads; the errors of all."""
    errors = []

    def run(number):
        try:
            use(lmdb, seed * 8 + number, rounds)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def joined(processes):
    """The exit codes of processes that were started."""
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


@pytest.mark.parametrize("method", START_METHODS)
def test_threads_and_processes_at_once(method, store):
    """8 threads in each of 3 processes, and here, write and read the same few samples."""
    lmdb = LMDBStore(store)
    lmdb.write(0, a_record(random.Random(0)))
    context = get_context(method)
    processes = [context.Process(target=use_in_threads, args=(lmdb, i, 15)) for i in range(3)]
    for process in processes:
        process.start()
    use_in_threads(lmdb, 3, 15)
    assert joined(processes) == [0] * 3
    found = check(lmdb, INDICES)
    assert found.clean
    assert found.samples == INDICES


def start_once(path, index, barrier):
    barrier.wait()
    lmdb = LMDBStore(path)
    lmdb.write(index, seal(b"", STAMP))
    barrier.wait()
    assert all(lmdb.read(other) is not None for other in range(barrier.parties))


@pytest.mark.parametrize("before", ["nothing", "another boot"])
def test_processes_that_start_at_once_begin_one_file(before, store):
    """However many find that there is no file yet, or an old one, all go on with one new file."""
    for _ in range(5):
        if before == "another boot":
            LMDBStore(store).close()
            (store / "boot_id").write_text("another")
        context = get_context("fork")
        barrier = context.Barrier(4)
        processes = [context.Process(target=start_once, args=(store, i, barrier)) for i in range(4)]
        for process in processes:
            process.start()
        assert joined(processes) == [0] * 4
        shutil.rmtree(store)


def test_a_fork_while_threads_write_harms_nobody(store):
    """A process forked at any moment has an environment of its own, and the parent keeps its."""
    lmdb = LMDBStore(store)
    stop = threading.Event()
    errors = []

    def run(seed):
        try:
            while not stop.is_set():
                use(lmdb, seed, 1)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    context = get_context("fork")
    for seed in range(20):
        process = context.Process(target=use, args=(lmdb, seed, 3))
        process.start()
        assert joined([process]) == [0]
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert check(lmdb, INDICES).clean


def test_a_child_of_a_child_works(store):
    """Forks of forks use the store as their parents do."""
    lmdb = LMDBStore(store)
    forked(forked, use, lmdb, 0, 3)
    assert check(lmdb, INDICES).clean


def use_for_ever(lmdb, seed, ready):
    ready.send(True)
    use(lmdb, seed, 10**9)


def test_killed_processes_leave_no_trace(store):
    """Writers and readers killed at any moment neither hold a lock, nor damage anything."""
    lmdb = LMDBStore(store)
    rng = random.Random(os.getpid())
    context = get_context("fork")
    for seed in range(30):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=use_for_ever, args=(lmdb, seed, sender))
        process.start()
        receiver.recv()
        for _ in range(rng.randrange(20)):
            use(lmdb, seed, 1)
        os.kill(process.pid, signal.SIGKILL)
        assert joined([process]) == [-signal.SIGKILL]
        use(lmdb, seed, 3)
    assert check(lmdb, INDICES).clean
    assert names(store) == ["boot_id", "data.mdb", "lock.mdb"]


def die_reading(lmdb):
    """Be killed in the midst of a transaction that reads."""
    lmdb._use.read(lambda transaction: os.kill(os.getpid(), signal.SIGKILL))


def test_a_killed_reader_pins_nothing(store):
    """What a reader that is gone could see is used again, and so is its place in the table."""
    lmdb = LMDBStore(store)
    for index in range(50):
        lmdb.write(index, bytes(100_000))
    process = get_context("fork").Process(target=die_reading, args=(lmdb,))
    process.start()
    assert joined([process]) == [-signal.SIGKILL]
    for index in range(1000):
        lmdb.write(index % 50, bytes(100_000))
    assert (store / "data.mdb").stat().st_size < 1.5 * 50 * 100_000


def fill_the_table(lmdb):
    """Hold all places of the table of readers, and be killed."""
    environment = acquire(lmdb.path, object())
    held = []
    with suppress(Exception):
        while True:
            held.append(environment._lmdb.begin())
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_readers_do_not_fill_the_table(store):
    """However many readers were killed, others find a place."""
    lmdb = LMDBStore(store)
    lmdb.write(0, b"zero")
    process = get_context("fork").Process(target=fill_the_table, args=(lmdb,))
    process.start()
    assert joined([process]) == [-signal.SIGKILL]
    assert bytes(lmdb.read(0)) == b"zero"


def start_for_ever(path, ready):
    while True:
        lmdb = LMDBStore(path)
        lmdb.write(0, seal(b"", STAMP))
        lmdb.close()
        with suppress(OSError):
            os.unlink(path / "boot_id")
        if ready is not None:
            ready.send(True)
            ready = None


def test_starts_may_be_killed(store):
    """A process killed while it begins the file leaves it so that the next one can."""
    rng = random.Random(os.getpid())
    context = get_context("fork")
    for _ in range(30):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=start_for_ever, args=(store, sender))
        process.start()
        receiver.recv()
        for _ in range(rng.randrange(2000)):
            rng.random()
        os.kill(process.pid, signal.SIGKILL)
        assert joined([process]) == [-signal.SIGKILL]
        lmdb = LMDBStore(store)
        lmdb.write(0, seal(b"", STAMP))
        assert check(lmdb, 1).clean
        lmdb.close()


# --- full disks -----------------------------------------------------------------------------------

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
    LMDBStore(disk / "store").write(0, seal(b"", STAMP))


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
