"""What stores offer to those who look after them: a look, sizes and ends, removal."""

import os
import random

import pytest
from helpers import FOREVER, SIZE, leave_temp, names, run_pass, sample_of, snapshot

from reuseloader import LMDBStore, ReuseDataset
from reuseloader.audit import check
from reuseloader.record import DamagedError, announced_stamp, read_stamp
from reuseloader.store import DirectoryStore
from reuseloader.temps import owner_lives

STORES = [DirectoryStore, LMDBStore]
PART = 2**16 - 16  # of an LMDBStore's records


def fill(store):
    with ReuseDataset(sample_of, SIZE, store, FOREVER) as dataset:
        run_pass(dataset, 0)


@pytest.mark.parametrize("kind", STORES)
def test_a_look_makes_nothing(kind, tmp_path):
    """What is no store is an error with its path, and stays as it is."""
    (tmp_path / "file").write_text("a file")
    (tmp_path / "empty").mkdir()
    for name in ("missing", "file"):
        with pytest.raises(OSError, match=name) as caught:
            kind.look(tmp_path / name)
        assert caught.value.filename == str(tmp_path / name)
    with pytest.raises((TypeError, ValueError), match=r"^path must "):
        kind.look("")
    assert names(tmp_path) == ["empty", "file"]
    assert names(tmp_path / "empty") == []


@pytest.mark.leaves("a temp file")
def test_a_look_removes_nothing(store):
    """What a start would remove is still there after a look, which sees all samples."""
    fill(DirectoryStore(store))
    (store / "00000004.pt").unlink()
    temp = leave_temp(store, index=4)
    before = snapshot(store)
    found = check(DirectoryStore.look(store))
    assert (found.samples, found.temps) == (SIZE - 1, [temp.name])
    assert snapshot(store) == before


@pytest.mark.parametrize("kind", STORES)
def test_a_look_sees_what_is_written(kind, store):
    """A store that is looked at is read as ever; the path is made absolute."""
    fill(kind(store))
    looked = kind.look(os.path.relpath(store))
    assert looked.path == str(store)
    assert check(looked, SIZE).clean
    assert looked.read_book()["size"] == SIZE
    looked.close()
    assert looked.read(SIZE) is None  # it may be used again
    looked.close()


def test_a_look_at_lmdb_cannot_write(store):
    """Its environment is open to read from alone; the store itself works after it."""
    LMDBStore(store).close()
    looked = LMDBStore.look(store)
    with pytest.raises(OSError, match="Permission denied"):
        looked.write(0, b"record")
    looked.close()
    LMDBStore(store).write(0, b"record")


@pytest.mark.leaves("what no run would write")
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("size", [0, 1, 79, 80, 81, PART - 1, PART, PART + 3, 3 * PART])
def test_records_are_measured(size, kind, store):
    """The size of a record is told with its last bytes; of none, None."""
    content = random.Random(size).randbytes(size)
    records = kind(store)
    records.write(3, content)
    assert records.measure(3, 80) == (size, content[-80:])
    assert records.tail(3, 80) == content[-80:]
    assert records.measure(4, 80) is None


@pytest.mark.parametrize("kind", STORES)
def test_records_are_removed_if_they_are_due(kind, store):
    """A record goes if it is still due, which may be found by reading; the others stay."""
    records = kind(store)
    for index in range(3):
        records.write(index, bytes([index]) * (2 * PART))
    assert not records.remove(1, lambda: False)
    assert not records.remove(1, lambda: records.read(1)[0] == 0)
    assert records.measure(1, 1) == (2 * PART, b"\1")
    assert records.remove(1, lambda: records.read(1)[0] == 1)
    assert records.read(1) is None
    assert [records.index_of(name) for name in records.names()] == [0, 2]
    assert records.remove(0, lambda: True)
    assert records.remove(2, lambda: True)
    assert list(records.names()) == []


@pytest.mark.parametrize("kind", STORES)
def test_a_removal_that_fails_removes_nothing(kind, store):
    """What goes wrong while the question is answered comes out, and the record is still there."""
    records = kind(store)
    records.write(0, b"record")
    with pytest.raises(ZeroDivisionError):
        records.remove(0, lambda: 1 // 0)
    assert bytes(records.read(0)) == b"record"
    assert records.remove(0, lambda: True)


def test_only_plain_files_are_removed(store, tmp_path):
    """A link, directory or pipe in the place of a sample is an error and stays."""
    records = DirectoryStore(store)
    outside = tmp_path / "outside"
    outside.write_text("outside")
    for make in (os.mkdir, os.mkfifo, lambda path: os.symlink(outside, path)):
        make(records.locate(0))
        with pytest.raises(OSError, match="not a plain file"):
            records.remove(0, lambda: True)
        path = store / "00000000.pt"
        path.rmdir() if path.is_dir() else path.unlink()
    assert outside.read_text() == "outside"
    with pytest.raises(FileNotFoundError):
        records.remove(0, lambda: True)


def test_a_trailer_tells_its_stamp_and_size(store):
    """The stamp is known by the end of a record and its size, and not for another size."""
    fill(DirectoryStore(store))
    record = bytes(DirectoryStore(store).read(0))
    assert announced_stamp(record[-80:], len(record)) == read_stamp(record)
    for size in (len(record) + 1, len(record) - 1, 80, 0):
        with pytest.raises(DamagedError, match="bytes of payload"):
            announced_stamp(record[-80:], size)
    with pytest.raises(DamagedError, match="trailer"):
        announced_stamp(record[-79:], len(record))


def test_only_temporary_files_have_owners(tmp_path):
    """Whose a file is cannot be asked of another name."""
    with pytest.raises(ValueError, match=r"'x\.tmp'"):
        owner_lives("x.tmp", os.stat(tmp_path))
