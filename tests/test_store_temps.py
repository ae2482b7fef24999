import ctypes
import os
import pickle
import sys
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
from helpers import (
    BOOK,
    FOREVER,
    FORKS,
    SIZE,
    Caught,
    bits,
    die_before_renaming,
    expected,
    forked,
    leave_temp,
    names,
    right,
    sample_of,
    snapshot,
    temps,
)

from reuseloader import IndexEpoch, ReuseDataset

_NEWPID, _NEWUSER = 0x20000000, 0x10000000  # CLONE_...

pytestmark = pytest.mark.filterwarnings(FORKS)


def test_temps_of_killed_processes_are_removed_at_the_next_start(store):
    """What a kill leaves between writing and renaming is gone after the next start, 20 times."""
    for round_ in range(20):
        if round_ % 2:
            leave_temp(store, index=round_ % SIZE)
        else:  # not waited for: the process may not even have ended quite
            process = get_context("fork").Process(target=die_before_renaming, args=(store,))
            process.start()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert len(temps(store)) == 1
        dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
        assert temps(store) == []
    assert right(dataset, 0)
    assert names(store) == [*(f"{i:08}.pt" for i in range(SIZE)), BOOK]


def start_when_told(gate, path):
    gate.wait()
    ReuseDataset(sample_of, SIZE, path, FOREVER)


def test_many_starts_at_once_clean_together(store):
    """Starts that find the same abandoned files at the same moment do not trip over each other."""
    dead = leave_temp(store)
    for number in range(200):
        (store / f"{dead.name.removesuffix('.tmp')}{number}.tmp").write_bytes(b"")
    context = get_context("fork")
    gate = context.Barrier(4)
    children = [context.Process(target=start_when_told, args=(gate, store)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert temps(store) == []


def owner_of(temp):
    """Host, pid, start and number in the name of a temporary file."""
    return temp.name.split(".")[2].split("-")


def write_slowly(build, path, pipe):
    """Store a sample, but wait for a word between writing and renaming its file."""
    replace = os.replace
    dataset = ReuseDataset(build, SIZE, path, FOREVER)

    def wait_and_replace(source, target):
        pipe.send(source)
        pipe.recv()
        replace(source, target)

    os.replace = wait_and_replace
    with Caught() as caught:
        sample = dataset[IndexEpoch(0, 0)]
    pipe.send((bits(sample) == expected(FOREVER, 0, 0), list(caught)))


def write_in_a_container(build, path, pipe):
    """`write_slowly` as the first process of a numbering of its own."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(_NEWPID if user == 0 else _NEWPID | _NEWUSER):
        pipe.send(None)
        return
    if user != 0:  # so that what it writes stays this user's
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    pid = os.fork()
    if pid == 0:
        write_slowly(build, path, pipe)
        os._exit(0)
    os.waitpid(pid, 0)


@contextmanager
def writing(target, *args):
    """A live process between writing and renaming; gives its temp file and what ends the wait."""
    here, there = get_context("fork").Pipe()
    process = get_context("fork").Process(target=target, args=(*args, there))
    process.start()
    there.close()

    def go_on():
        here.send("go on")
        answer = here.recv()
        process.join()
        return answer

    temp = here.recv()
    try:
        yield temp and Path(temp), go_on
    finally:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                child.kill()
        process.kill()
        process.join()


@pytest.fixture
def slow_writer(store, log):
    with writing(write_slowly, log.build, store) as (temp, go_on):
        yield temp, go_on


def test_temps_of_live_processes_are_kept(slow_writer, store, log):
    """A start beside a process that is about to rename its file does not disturb it."""
    temp, go_on = slow_writer
    for _ in range(3):
        dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    assert temps(store) == [temp.name]
    assert go_on() == (True, [])
    assert names(store) == ["00000000.pt", BOOK]
    assert right(dataset, 1)
    assert log.indices() == list(range(SIZE))  # index 0 by the other process


@pytest.mark.skipif(sys.platform != "linux", reason="numberings of processes: Linux")
def test_temps_of_containers_are_those_of_another_host(store):
    """A process of another numbering is not mistaken for the one of its pid here, alive or dead."""
    ReuseDataset(sample_of, SIZE, store, FOREVER)  # which process this is, is known here by now
    with writing(write_in_a_container, sample_of, store) as (temp, go_on):
        if temp is None:
            pytest.skip("no right to make a namespace")
        here = leave_temp(store, index=1)
        assert owner_of(temp)[0] != owner_of(here)[0]
        assert owner_of(temp)[1] == "1"
        dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
        assert temps(store) == [temp.name]  # pid 1 of here began at another time
        assert go_on() == (True, [])
    assert names(store) == ["00000000.pt", BOOK]
    assert right(dataset, 1)


def test_a_process_outlives_the_loss_of_its_temp(slow_writer, store):
    """A process whose temp file was taken away delivers its sample and warns."""
    temp, go_on = slow_writer
    temp.unlink()
    good, caught = go_on()
    assert good
    assert len(caught) == 1
    assert names(store) == [BOOK]


def test_pids_used_again_do_not_keep_temps(store):
    """A temp file of a live pid is removed all the same if that process began at another time."""
    dead = leave_temp(store)
    name = dead.name
    for start in ("1", "12345678"):
        owner = name.split(".")[2].split("-")
        owner[1:3] = str(os.getpid()), start
        (store / ".".join([*name.split(".")[:2], "-".join(owner), "tmp"])).write_bytes(b"")
    ReuseDataset(sample_of, SIZE, store, FOREVER)
    assert temps(store) == []


@pytest.mark.leaves("a temp file")
@pytest.mark.parametrize(("hours", "kept"), [(0, True), (23, True), (25, False), (24 * 365, False)])
def test_temps_of_other_hosts_are_kept_for_a_day(hours, kept, store):
    """Whether another host's process lives nobody knows: its temp file has a day."""
    dead = leave_temp(store)
    first, second, owner, end = dead.name.split(".")
    host = "0" * 8 if owner[:8] != "0" * 8 else "1" * 8
    foreign = dead.with_name(".".join([first, second, host + owner[8:], end]))
    dead.rename(foreign)
    then = foreign.stat().st_mtime - hours * 3600
    os.utime(foreign, (then, then))
    ReuseDataset(sample_of, SIZE, store, FOREVER)
    assert temps(store) == ([foreign.name] if kept else [])


@pytest.mark.leaves("a temp file")
def test_only_a_start_cleans(store):
    """Neither copies, nor workers, nor passes remove temp files: only who constructs does."""
    dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
    temp = leave_temp(store)
    for copy in (pickle.loads(pickle.dumps(dataset)), dataset):
        assert right(copy, 0)
        assert forked(right, copy, 1)
        copy.close()
    assert temps(store) == [temp.name]


@pytest.mark.leaves("strays")
def test_nothing_foreign_is_touched(store, tmp_path):
    """Files, links and directories that are not ours survive starts and passes unchanged."""
    dead = leave_temp(store)
    outside = tmp_path / "outside.tmp"
    outside.write_text("outside")
    dead.with_name(dead.name.replace("00000000", "00000001")).symlink_to(outside)
    dead.with_name(dead.name.replace("00000000", "00000002")).mkdir()
    foreign = ["notes.txt", "x.tmp", "00000001.pt.tmp", "model.pt", ".hidden.tmp", "0000001.pt"]
    foreign += ["00000001.pt.bak", "00000099.pt", f"a{dead.name}", f"{dead.name}x", "-0000001.pt"]
    for name in foreign:
        (store / name).write_text(name)
    Path(os.fsdecode(os.fsencode(store) + b"/\xff.tmp")).write_text("not UTF-8")
    before = snapshot(store)
    del before[dead.name]
    for _ in range(2):
        with ReuseDataset(sample_of, SIZE, store, FOREVER) as dataset:
            assert right(dataset, 0)
            assert right(dataset, 1)
    after = snapshot(store)
    assert {name: after.get(name) for name in before if name != BOOK} == {
        name: before[name] for name in before if name != BOOK
    }
    assert set(after) - set(before) == {f"{i:08}.pt" for i in range(SIZE)}
    assert outside.read_text() == "outside"


def test_a_link_in_place_of_a_file_is_replaced_not_followed(store, tmp_path):
    """Storing over a symbolic link replaces the link and leaves alone what it points to."""
    outside = tmp_path / "outside.txt"
    outside.write_text("outside")
    dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
    (store / "00000001.pt").symlink_to(outside)
    with Caught() as caught:
        assert right(dataset, 0)
    assert len(caught) == 1
    assert outside.read_text() == "outside"
    assert not (store / "00000001.pt").is_symlink()
