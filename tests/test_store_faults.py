"""Errors of a disk that no test can bring about for real: the system calls give them here."""

import errno
import os

import pytest
from helpers import (
    FOREVER,
    FORKS,
    SIZE,
    Caught,
    assert_right,
    bits,
    expected,
    flat,
    names,
    sample_files,
    sample_of,
    temps,
)

from reuseloader import IndexEpoch, ReuseDataLoader, ReuseDataset
from reuseloader.audit import check
from reuseloader.store import DirectoryStore

pytestmark = pytest.mark.filterwarnings(FORKS)

WORKERS = {
    "none": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
}
FAULTS = ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "ESTALE", "EIO", "EFBIG", "ENOENT"]
EXHAUSTION = ["EMFILE", "ENFILE", "ENOMEM"]


class Disk:
    """A disk with a fault: the calls of one step fail, as far as they concern files of samples."""

    def __init__(self, monkeypatch):
        self.patch = monkeypatch

    def fail(self, step, error):
        getattr(self, step)(error)

    def create(self, error):
        self._fail_to_open(".tmp", error)

    def write(self, error):
        """Half of a temp file is written, and then no more."""
        real = os.write

        def write_(file, data):
            if not _is_temp(file):
                return real(file, data)
            if os.fstat(file).st_size:
                _raise(error)
            return real(file, data[: len(data) // 2])

        self.patch.setattr(os, "write", write_)

    def close(self, error):
        real = os.close

        def close_(file):
            fails = _is_temp(file)
            real(file)
            if fails:
                _raise(error)

        self.patch.setattr(os, "close", close_)

    def rename(self, error):
        self.patch.setattr(os, "replace", lambda source, target: _raise(error))

    def open(self, error):
        self._fail_to_open(".pt", error)

    def _fail_to_open(self, ending, error):
        real = os.open

        def open_(path, *args, **kwargs):
            if str(path).endswith(ending):
                _raise(error)
            return real(path, *args, **kwargs)

        self.patch.setattr(os, "open", open_)

    def read(self, error):
        self.patch.setattr(os, "readv", lambda file, buffers: _raise(error))


def _is_temp(file):
    return os.readlink(f"/proc/self/fd/{file}").endswith(".tmp")


def _raise(error):
    if isinstance(error, int):
        raise OSError(error, os.strerror(error))
    raise error


def loader_of(build, store, workers):
    return ReuseDataLoader(
        build, SIZE, store, lifetime=10**9, seed=3, collate_fn=list, **WORKERS[workers]
    )


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("step", ["create", "write", "close", "rename"])
@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_stored_is_delivered(name, step, workers, store, monkeypatch):
    """Whatever a write fails of, at whatever step, costs builds and one warning while it lasts."""
    number = getattr(errno, name)
    whole = [bits(sample_of(FOREVER.key(i, 0))) for i in range(SIZE)]
    with Caught() as caught, loader_of(sample_of, store, workers) as loader:
        with monkeypatch.context() as patch:
            Disk(patch).fail(step, number)
            for _ in range(2):
                assert [bits(sample) for sample in flat(loader)] == whole
                assert sample_files(store) == temps(store) == []
        assert [bits(sample) for sample in flat(loader)] == whole
        assert len(sample_files(store)) == SIZE
    assert len(caught) == 1
    assert f"{SIZE} samples could not be stored" in caught[0]
    assert os.strerror(number) in caught[0]
    assert f"{store}/0000000" in caught[0]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("step", ["open", "read"])
@pytest.mark.parametrize("name", ["EACCES", "ESTALE", "EIO"])
def test_what_cannot_be_read_is_built_anew(name, step, workers, store, log, monkeypatch):
    """Whatever a read fails of costs builds and one warning while it lasts."""
    number = getattr(errno, name)
    with Caught() as caught, loader_of(log.build, store, workers) as loader:
        flat(loader)
        log.take()
        with monkeypatch.context() as patch:
            Disk(patch).fail(step, number)
            for epoch in (1, 2):
                assert_right(flat(loader), FOREVER, epoch)
                assert log.indices() == list(range(SIZE))
        assert_right(flat(loader), FOREVER, 3)
        assert log.take() == []
    assert len(caught) == 1
    assert f"{SIZE} stored samples could not be read" in caught[0]
    assert os.strerror(number) in caught[0]
    assert f"{store}/0000000" in caught[0]


@pytest.mark.parametrize("step", ["create", "write", "rename", "open", "read"])
@pytest.mark.parametrize("name", EXHAUSTION)
def test_a_process_without_means_is_an_error(name, step, store, log, monkeypatch):
    """Trouble of the process is no trouble of a file: it is raised, says where, leaves nothing."""
    number = getattr(errno, name)
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    dataset[IndexEpoch(0, 0)]
    before = names(store)
    log.take()
    index = 0 if step in ("open", "read") else 1
    with monkeypatch.context() as patch:
        Disk(patch).fail(step, number)
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            dataset[IndexEpoch(index, 2)]
    assert caught.value.errno == number
    assert f"index {index}, epoch 2" in "\n".join(caught.value.__notes__)
    assert str(store / f"{index:08}.pt") in "\n".join(caught.value.__notes__)
    assert log.indices() == [1] * index
    assert names(store) == before
    assert_right([dataset[IndexEpoch(index, 2)]], FOREVER, 2)


def test_an_interrupt_is_not_lost_in_a_failing_clean_up(store, monkeypatch):
    """Ctrl-C just before a rename, on a disk that refuses everything, still reaches the caller."""
    dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)

    def refuse(path):
        raise OSError(errno.EROFS, "read-only")

    with monkeypatch.context() as patch:
        Disk(patch).fail("rename", KeyboardInterrupt())
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(KeyboardInterrupt):
            dataset[IndexEpoch(0, 0)]
    (left,) = temps(store)
    (store / left).unlink()
    assert bits(dataset[IndexEpoch(0, 0)]) == expected(FOREVER, 0, 0)
    assert check(DirectoryStore(store)).clean
