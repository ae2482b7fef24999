import copy
import os
import pickle
import random
import shutil
import stat

import pytest
from helpers import FOREVER, SIZE, Caught, forked, names, python, right, run_pass, sample_of

from reuseloader import IndexEpoch, LMDBStore, ReuseDataset, ReusePolicy
from reuseloader.audit import check
from reuseloader.lmdb_start import _REMOTE
from reuseloader.store import Bookkeeper, Store

FILES = ["boot_id", "data.mdb", "lock.mdb"]


def record(index, size):
    """Bytes that differ from index to index."""
    return bytes([index % 256]) * size


def descriptors(path):
    """How many files below ``path`` this process has open."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.path.exists(link) and str(path) in os.readlink(link) for link in links)


# --- bytes ----------------------------------------------------------------------------------------


def test_what_is_written_is_read(store):
    """A record is read back as it was written, replaced or not; one that is absent is None."""
    lmdb = LMDBStore(store)
    part = 2**16 - 16
    sizes = [80, 0, 150_000, 2, 600_000, part, 2 * part, part + 1, 2 * part - 1, 7 * part, 80]
    for index, size in [(0, 80), (2**40, part + 3), *((7, size) for size in sizes)]:
        content = random.Random(size).randbytes(size)
        lmdb.write(index, memoryview(content))
        assert bytes(lmdb.read(index)) == content
        for end in (1, 80, 2 * part, 10**6):
            assert lmdb.tail(index, end) == content[-end:]
    assert bytes(lmdb.read(0)) == random.Random(80).randbytes(80)
    assert lmdb.read(3) is None
    assert lmdb.tail(3, 10) is None
    assert names(store) == FILES
    assert stat.S_IMODE(store.stat().st_mode) == 0o700


def test_what_is_read_is_the_callers(store):
    """A record that was read can be written to, and outlives the store's next writes."""
    lmdb = LMDBStore(store)
    lmdb.write(0, record(5, 5000))
    mine = lmdb.read(0)
    for _ in range(5):
        lmdb.write(0, record(6, 5000))
    lmdb.close()
    assert bytes(mine) == record(5, 5000)
    mine[0] = 1
    assert bytes(lmdb.read(0)) == record(6, 5000)


def test_it_is_a_store_with_a_book(store):
    """It follows both protocols; what is written in the book is there in the next run."""
    lmdb = LMDBStore(store)
    assert isinstance(lmdb, Store)
    assert isinstance(lmdb, Bookkeeper)
    assert lmdb.read_book() == {}
    lmdb.write_book({"size": 3})
    lmdb.close()
    assert LMDBStore(store).read_book() == {"size": 3}


def test_it_grows_as_it_must(store):
    """The map grows for a record larger than itself, and for many of them."""
    lmdb = LMDBStore(store)
    for index in range(20):
        lmdb.write(index, record(index, 4_000_000))
    assert all(bytes(lmdb.read(index)) == record(index, 4_000_000) for index in range(20))
    lmdb.close()


# --- environments ---------------------------------------------------------------------------------


def test_stores_of_one_directory_share_it(store, tmp_path, monkeypatch):
    """Paths of all kinds, copies and pickles lead to one environment, closed by the last."""
    first = LMDBStore(store)
    alone = descriptors(store)
    (tmp_path / "link").symlink_to(store)
    monkeypatch.chdir(tmp_path)
    others = [LMDBStore(tmp_path / "link"), LMDBStore("store"), copy.copy(first)]
    others.append(pickle.loads(pickle.dumps(first)))
    for index, other in enumerate(others):
        other.write(index, record(index, 9))
    del other
    monkeypatch.chdir("/")
    assert os.path.isabs(others[1].path)
    assert all(bytes(first.read(index)) == record(index, 9) for index in range(4))
    assert descriptors(store) == alone > 0
    first.close()
    assert bytes(others.pop().read(3)) == record(3, 9)
    while others:
        others.pop().close()
    assert descriptors(store) == 0, "a store that is gone needs no closing"


def test_a_closed_store_opens_again(store):
    """Closing may be done twice; the next use opens the environment anew."""
    lmdb = LMDBStore(store)
    lmdb.write(1, b"one")
    lmdb.close()
    lmdb.close()
    assert descriptors(store) == 0
    assert bytes(lmdb.read(1)) == b"one"
    lmdb.close()


def test_two_directories_have_nothing_in_common(tmp_path):
    """Stores of two directories are two, also when one was made where another one was."""
    one, two = LMDBStore(tmp_path / "one"), LMDBStore(tmp_path / "two")
    one.write(0, b"one")
    assert two.read(0) is None
    shutil.rmtree(tmp_path / "one")
    again = LMDBStore(tmp_path / "one")
    assert again.read(0) is None
    assert bytes(one.read(0)) == b"one"


def test_its_repr_names_the_path(store):
    """Warnings show where it is."""
    assert repr(LMDBStore(store)) == f"LMDBStore({str(store)!r})"


# --- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("boot", ["", "5f1d3c0e-0000-4000-8000-000000000000\n"])
def test_another_boot_begins_anew(boot, store):
    """What was written before the system last started may be torn, and is not looked at."""
    lmdb = LMDBStore(store)
    lmdb.write(0, b"old")
    lmdb.close()
    now = (store / "boot_id").read_text()
    (store / "boot_id").write_text(boot)
    (store / "data.mdb").write_bytes(b"torn" * 5000)
    assert lmdb.read(0) is None
    assert (store / "boot_id").read_text() == now
    lmdb.write(0, b"new")
    lmdb.close()
    assert bytes(LMDBStore(store).read(0)) == b"new"
    assert names(store) == FILES


@pytest.mark.parametrize("gone", ["data.mdb", "lock.mdb", "boot_id"])
def test_a_file_that_is_gone_begins_anew_also_while_it_is_used(gone, store):
    """Who opens it then shares nothing with those who have the old files, and both go on."""
    lmdb = LMDBStore(store)
    lmdb.write(0, b"old")
    (store / gone).unlink()
    assert forked(lmdb.read, 0) is None
    forked(lmdb.write, 0, b"new")
    assert bytes(lmdb.read(0)) == b"old"
    lmdb.close()
    assert bytes(lmdb.read(0)) == b"new"


@pytest.mark.parametrize("left", [0, 8192, 300_000])
def test_a_file_cut_short_begins_anew(left, store):
    """Nothing beyond the end of the file is read, which would be the end of the process."""
    lmdb = LMDBStore(store)
    lmdb.write(0, record(1, 500_000))
    lmdb.close()
    os.truncate(store / "data.mdb", left)
    assert lmdb.read(0) is None
    lmdb.write(0, b"new")
    assert bytes(lmdb.read(0)) == b"new"


@pytest.mark.parametrize("content", ["x" * 9000, "x" * 4096, "x"])
def test_another_programs_file_is_refused(content, store):
    """A data.mdb that is not LMDB's is an error with the path, and is left alone."""
    LMDBStore(store).close()
    (store / "data.mdb").write_text(content)
    with pytest.raises(OSError, match="not an LMDB file") as caught:
        LMDBStore(store)
    assert caught.value.filename == str(store)
    assert (store / "data.mdb").read_text() == content


def test_a_file_in_its_place_is_refused(tmp_path):
    """A path that is a file, or below one, is an error with the path."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="path cannot be used to store samples") as caught:
            LMDBStore(path)
        assert caught.value.filename == str(path)


def test_a_path_must_be_one(store):
    """NUL in a path is a ValueError."""
    with pytest.raises(ValueError, match="path must name a directory"):
        LMDBStore("a\0b")


def test_network_file_systems_are_refused(store, monkeypatch):
    """A path on a file system that LMDB cannot work on is an error with both names."""
    monkeypatch.setattr("reuseloader.lmdb_start._file_system", lambda path: "nfs4")
    with pytest.raises(OSError, match="network file systems, here nfs4") as caught:
        LMDBStore(store)
    assert caught.value.filename == str(store)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "fuse.sshfs"])
def test_file_systems_of_other_hosts_are_known(kind):
    """These are the names that Linux gives to them."""
    assert _REMOTE.fullmatch(kind)


@pytest.mark.parametrize("kind", ["", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuseblk"])
def test_file_systems_of_this_host_are_no_others(kind):
    """Nothing is refused that works."""
    assert not _REMOTE.fullmatch(kind)


WITHOUT = """
import sys
sys.modules["lmdb"] = None
import reuseloader
try:
    reuseloader.LMDBStore("store")
except ImportError as error:
    print(error)
"""


def test_without_lmdb_it_says_what_to_install(tmp_path):
    """Only making a store needs the lmdb package, and says so."""
    result = python(WITHOUT, cwd=tmp_path)
    assert "pip install reuseloader[lmdb]" in result.stdout, result.stderr
    assert names(tmp_path) == []


# --- samples --------------------------------------------------------------------------------------


def test_an_audit_knows_what_is_in_it(store):
    """Samples, bytes, samples beyond the size and foreign files are named."""
    with ReuseDataset(sample_of, SIZE, LMDBStore(store), FOREVER) as dataset:
        assert right(dataset, 0)
    lmdb = LMDBStore(store)
    found = check(lmdb, SIZE)
    assert found.clean
    assert found.samples == SIZE
    assert found.bytes == sum(len(lmdb.read(index)) for index in range(SIZE))
    (store / "notes.txt").write_text("")
    found = check(lmdb, 3)
    assert found.strays == ["00000003", "00000004", str(store / "notes.txt")]
    for index in range(2500):
        lmdb.write(index, b"")
    assert len(check(lmdb).damaged) == 2500


def texts(key):
    """A sample that is easy to find in a file."""
    return f"the sample of index {key.index}"


def test_a_flipped_byte_is_a_miss(store):
    """A sample that changed in the file is built anew, with one warning that names it."""
    dataset = ReuseDataset(texts, SIZE, LMDBStore(store), FOREVER)
    samples = run_pass(dataset, 0)
    dataset.close()
    content = (store / "data.mdb").read_bytes()
    (store / "data.mdb").write_bytes(content.replace(b"of index 2", b"of index 3"))
    with Caught() as caught:
        assert run_pass(dataset, 1) == samples
        dataset.close()
    assert len(caught) == 1
    assert f"LMDBStore({str(store)!r}), index 2: the checksum" in caught[0]
    assert check(LMDBStore(store)).clean


def test_lifetime_one_stores_nothing(store):
    """Without reuse the file stays as it was made."""
    dataset = ReuseDataset(sample_of, SIZE, LMDBStore(store), ReusePolicy(1))
    run_pass(dataset, 0)
    assert (check(LMDBStore(store)).samples, LMDBStore(store).read_book()) == (0, {})
    assert dataset[IndexEpoch(0, 1)]["index"] == 0


@pytest.mark.parametrize("path", [None, 3, b"x", "", "a\0b"])
def test_a_path_that_is_none_is_refused(path):
    """One error that names the argument and shows the value, as for a directory."""
    with pytest.raises((TypeError, ValueError), match=r"^path must ") as caught:
        LMDBStore(path)
    assert repr(path) in str(caught.value)
