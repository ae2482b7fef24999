import io
import os
import pickle
import random
import stat
import threading
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from helpers import (
    BOOK,
    FOREVER,
    FORKS,
    SIZE,
    Caught,
    DictStore,
    assert_right,
    bits,
    expected,
    flat,
    index_of,
    names,
    other_build,
    right,
    run_pass,
    sample_files,
    sample_of,
    snapshot,
)

from reuseloader import IndexEpoch, ReuseDataLoader, ReuseDataset, ReusePolicy

pytestmark = pytest.mark.filterwarnings(FORKS)

BAD_PATHS = {
    "empty": ("", ValueError),
    "None": (None, TypeError),
    "number": (3, TypeError),
    "bytes": (b"store", TypeError),
    "list": (["store"], TypeError),
    "open file": (io.BytesIO(), TypeError),
    "class of a store": (DictStore, TypeError),
    "half a store": ({}, TypeError),
    "nul": ("a\0b", ValueError),
}


@pytest.mark.parametrize("case", BAD_PATHS)
def test_bad_paths_are_refused(case, tmp_path, monkeypatch):
    """What can be no directory and no store is one error that names path and shows the value."""
    monkeypatch.chdir(tmp_path)
    path, error = BAD_PATHS[case]
    with pytest.raises(error, match=r"^path must") as caught:
        ReuseDataset(index_of, 3, path, FOREVER)
    assert repr(path) in str(caught.value)
    assert names(tmp_path) == []


UNUSABLE = {
    "a file": lambda folder: (folder / "file").write_text("mine") and folder / "file",
    "below a file": lambda folder: (folder / "file").write_text("mine") and folder / "file" / "x",
    "a dangling link": lambda folder: (folder / "link").symlink_to("nowhere") or folder / "link",
    "too long": lambda folder: folder / ("x" * 300),
    "a device": lambda folder: Path("/dev/null"),
    "in /proc": lambda folder: Path("/proc/store"),
}


@pytest.mark.parametrize("lifetime", [1, 4])
@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_paths_are_refused_with_their_path(case, lifetime, tmp_path):
    """A path that cannot be a directory is an OSError with that path, whatever the lifetime."""
    path = UNUSABLE[case](tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(OSError, match="path") as caught:
        ReuseDataset(index_of, 3, path, ReusePolicy(lifetime))
    assert str(path) in str(caught.value)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["store", "a b/ü/c", "trailing/", "./y", "-", "a%00b{}"])
def test_any_path_will_do(name, tmp_path, log):
    """A directory is made with all above it, as str or Path, whatever its name is."""
    for number, path in enumerate((f"{tmp_path}/{name}", tmp_path / "second" / name)):
        with ReuseDataset(log.build, SIZE, path, FOREVER) as dataset:
            assert right(dataset, 0)
            assert len(log.take()) == SIZE
            assert right(dataset, 1)
        assert log.take() == [], number
        assert len(sample_files(path)) == SIZE


def test_a_relative_path_is_that_of_the_start(tmp_path, monkeypatch, log):
    """A relative path means the working directory at construction, also after a change of it."""
    monkeypatch.chdir(tmp_path)
    dataset = ReuseDataset(log.build, SIZE, "store", FOREVER)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert right(dataset, 0)
    copy = pickle.loads(pickle.dumps(dataset))
    log.take()
    assert right(copy, 1)
    assert log.take() == []
    assert names(elsewhere) == []
    assert len(sample_files(tmp_path / "store")) == SIZE


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_new_directory_is_private(umask, store):
    """A directory that is made is for its owner alone: stored pickles run code."""
    before = os.umask(umask)
    try:
        ReuseDataset(index_of, 3, store, FOREVER)
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.stat().st_mode) == 0o700


def test_a_directory_that_is_there_keeps_its_mode(store):
    """The rights of an existing directory are the user's business."""
    store.mkdir(mode=0o750)
    ReuseDataset(index_of, 3, store, FOREVER)
    assert stat.S_IMODE(store.stat().st_mode) == 0o750


@pytest.mark.parametrize("index", [0, 7, 12_345_678, 99_999_999, 100_000_000, 2**40])
def test_file_names_have_eight_digits_at_least(index, store):
    """The file of an index is its number with eight digits or more and .pt."""
    dataset = ReuseDataset(sample_of, 2**41, store, FOREVER)
    sample = dataset[IndexEpoch(index, 0)]
    assert bits(sample) == expected(FOREVER, index, 0)
    assert sample_files(store) == [f"{index:08d}.pt"]


@pytest.mark.parametrize("lifetime", [2, 3, 10**9])
def test_there_are_never_more_files_than_indices(lifetime, store):
    """Passes leave one file an index and one for the books, however many passes there are."""
    dataset = ReuseDataset(sample_of, SIZE, store, ReusePolicy(lifetime))
    for epoch in range(2 * min(lifetime, 3) + 1):
        assert right(dataset, epoch)
        assert set(names(store)) <= {BOOK, *(f"{i:08}.pt" for i in range(SIZE))}
    dataset.close()
    assert names(store) == [*(f"{i:08}.pt" for i in range(SIZE)), BOOK]


def test_a_hit_only_reads(store):
    """A pass of hits changes no inode, no size and no modification time."""
    with ReuseDataset(sample_of, SIZE, store, FOREVER) as dataset:
        assert right(dataset, 0)
        before = snapshot(store)
        for epoch in (1, 2, 10**6):
            assert right(dataset, epoch)
    with ReuseDataset(sample_of, SIZE, store, FOREVER) as dataset:
        assert right(dataset, 3)
    assert snapshot(store) == before


def test_the_last_use_writes_nothing(store):
    """A generation that begins at its last use is not written, and a file is not rewritten."""
    dataset = ReuseDataset(sample_of, 4, store, ReusePolicy(4))
    dataset[IndexEpoch(3, 0)]
    assert sample_files(store) == []
    dataset[IndexEpoch(0, 0)]
    before = snapshot(store)
    dataset[IndexEpoch(0, 3)]
    dataset[IndexEpoch(0, 7)]  # a use of the next generation, but the last
    assert snapshot(store) == before


@pytest.mark.parametrize("workers", [0, 2])
def test_without_reuse_the_directory_stays_empty(workers, store):
    """With lifetime 1 the directory is made and nothing whatever is put in it."""
    loader = ReuseDataLoader(
        sample_of,
        SIZE,
        store,
        lifetime=1,
        collate_fn=list,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    for epoch in range(3):
        assert_right(flat(loader), ReusePolicy(1), epoch)
        assert names(store) == []
    loader.close()
    assert names(store) == []


@pytest.mark.leaves("damage")
def test_without_reuse_nothing_stored_is_touched(store):
    """A run of lifetime 1 neither reads nor changes what another left in the directory."""
    with ReuseDataset(sample_of, SIZE, store, FOREVER) as dataset:
        run_pass(dataset, 0)
    (store / "00000001.pt").write_bytes(b"rubbish")
    before = snapshot(store)
    with ReuseDataset(other_build, SIZE + 1, store, ReusePolicy(1)) as dataset:
        assert run_pass(dataset, 0) == list(range(SIZE + 1))
    assert snapshot(store) == before


def crowd(store, seed, epochs, threads):
    """Fetch few indices in several threads in a random order; return what was wrong."""
    dataset = ReuseDataset(sample_of, SIZE, store, ReusePolicy(2, 1))
    wrong = []

    def work(number):
        draw = random.Random(f"{seed} {number}")
        for _ in range(60):
            index, epoch = draw.randrange(SIZE), draw.randrange(epochs)
            sample = dataset[IndexEpoch(index, epoch)]
            if bits(sample) != expected(dataset.policy, index, epoch):
                wrong.append((index, epoch, sample))

    with Caught() as caught:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        dataset.close()
    return wrong, list(caught)


def answer_when_told(gate, queue, *args):
    gate.wait()
    queue.put(crowd(*args))


@pytest.mark.parametrize(("processes", "threads"), [(6, 1), (1, 8), (4, 3)])
def test_many_at_once_in_one_directory(processes, threads, store):
    """Processes and threads that build, store and read the same indices at once are all right."""
    context = get_context("fork")
    gate, queue = context.Barrier(processes), context.Queue()
    children = [
        context.Process(target=answer_when_told, args=(gate, queue, store, n, 6, threads))
        for n in range(processes)
    ]
    for child in children:
        child.start()
    answers = [queue.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    assert answers == [([], [])] * processes
    assert set(names(store)) <= {BOOK, *(f"{i:08}.pt" for i in range(SIZE))}


def test_two_runs_with_different_settings_share_a_directory(store):
    """Runs that overwrite each other's files in turn never get each other's samples."""
    runs = [
        ReuseDataset(sample_of, SIZE, store, ReusePolicy(lifetime, seed), fingerprint=fingerprint)
        for lifetime, seed, fingerprint in ((3, 0, ""), (3, 1, ""), (4, 0, ""), (3, 0, "x"))
    ]
    for epoch in range(5):
        for dataset in runs:
            assert right(dataset, epoch)


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.leaves("a pipe")
def test_passes_open_no_descriptors(store):
    """Hits, misses, damage and samples kept by the consumer leave no descriptor open."""

    def many_tensors(key):
        return [torch.full((3,), key.seed % 100) for _ in range(50)]

    dataset = ReuseDataset(many_tensors, SIZE, store, ReusePolicy(2))
    kept = [run_pass(dataset, 0)]
    before = open_descriptors()
    with Caught():
        for epoch in range(1, 6):
            (store / "00000001.pt").unlink(missing_ok=True)
            (store / "00000001.pt").mkdir()
            (store / "00000002.pt").unlink(missing_ok=True)
            os.mkfifo(store / "00000002.pt")
            kept.append(run_pass(dataset, epoch))
            (store / "00000001.pt").rmdir()
            assert open_descriptors() == before
