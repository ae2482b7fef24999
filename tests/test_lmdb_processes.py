"""LMDBStore under all that processes do: start, fork, share it with threads, get killed."""

import os
import random
import shutil
import signal
import threading
from contextlib import suppress
from multiprocessing import get_context

import pytest
from helpers import (
    FORKS,
    START_METHODS,
    forked,
    names,
)
from lmdb import ReadersFullError

from reuseloader import LMDBStore
from reuseloader.audit import check
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


def read_for_ever(lmdb, ready):
    ready.send(True)
    rng = random.Random(0)
    while True:
        lmdb.read(rng.randrange(200))


@pytest.mark.parametrize("draw", ["uniform", "heavy tail"])
def test_the_file_stays_near_the_size_of_the_samples(draw, store):
    """After 20 generations of 2 to 600 kB it has 1.5 times the samples' bytes, though some read."""
    rng = random.Random(0)
    lmdb = LMDBStore(store)
    context = get_context("fork")
    processes = []
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        processes.append(context.Process(target=read_for_ever, args=(lmdb, sender)))
        processes[-1].start()
        receiver.recv()
    sizes, most = {}, 0
    for number in range(20 * 200):
        share = rng.random()
        size = 2_000 * 300**share if draw == "heavy tail" else 2_000 + 598_000 * share
        sizes[number % 200] = int(size)
        lmdb.write(number % 200, bytes(int(size)))
        most = max(most, sum(sizes.values()))
    for process in processes:
        process.kill()
        process.join()
    assert (store / "data.mdb").stat().st_size <= 1.5 * most


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
    lmdb.read(0)
    held = []
    with suppress(ReadersFullError):
        while True:
            held.append(lmdb._use._environment._lmdb.begin())
    assert len(held) > 4000
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
        for _ in range(rng.randrange(2000)):  # a moment that differs from round to round
            rng.random()
        os.kill(process.pid, signal.SIGKILL)
        assert joined([process]) == [-signal.SIGKILL]
        lmdb = LMDBStore(store)
        lmdb.write(0, seal(b"", STAMP))
        assert check(lmdb, 1).clean
        lmdb.close()
