import errno
import functools
import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from helpers import (
    FOREVER,
    FORKS,
    SIZE,
    Caught,
    Log,
    big_sample,
    bits,
    flat,
    forked,
    index_of,
    right,
    run_pass,
    sample_files,
    temps,
)

from reuseloader import ReuseDataLoader, ReuseDataset

pytestmark = pytest.mark.filterwarnings(FORKS)


@pytest.fixture
def open_to_all():
    """A directory that every user may enter and write."""
    path = Path(tempfile.mkdtemp(prefix="reuseloader-test-"))
    path.chmod(0o777)
    yield path
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path)


def as_ordinary_user(function, *args):
    """``function(*args)`` in a forked process of a user whom file modes bind."""
    if os.getuid() == 0:
        try:
            return forked(_without_rights, function, *args)
        except NotImplementedError:
            pytest.skip("this root may not become another user")
    return forked(function, *args)


def _without_rights(function, *args):
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    return function(*args)


def use_unreadable(folder, how):
    log, store = Log(folder), folder / "store"
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    run_pass(dataset, 0)
    log.take()
    path = store / "00000002.pt"
    path.chmod(0o200 if how == "write only" else 0)
    with Caught() as caught:
        good = right(dataset, 1) and right(dataset, 2)
        dataset.close()
    return good, log.indices(), list(caught), str(path)


@pytest.mark.parametrize("how", ["write only", "nothing"])
def test_an_unreadable_file_is_built_anew(how, open_to_all):
    """A file without read permission costs one build and one warning that names it."""
    good, built, caught, path = as_ordinary_user(use_unreadable, open_to_all, how)
    assert good
    assert built == [2]
    assert len(caught) == 1
    assert path in caught[0]
    assert "Permission denied" in caught[0]


def lose_permission(folder):
    log, store = Log(folder), folder / "store"
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    assert right(dataset, 0)
    log.take()
    answers = []
    with Caught() as caught:
        store.chmod(0o500)
        assert right(dataset, 1)
        answers.append(log.indices())  # a hit only reads
        store.chmod(0o700)
        (store / "00000002.pt").unlink()
        (store / "00000003.pt").unlink()
        store.chmod(0o500)
        for epoch in (2, 3):
            assert right(dataset, epoch)
            answers.append(log.indices())
        store.chmod(0o700)
        for epoch in (4, 5):
            assert right(dataset, epoch)
            answers.append(log.indices())
        dataset.close()
    assert temps(store) == []
    return answers, list(caught)


def test_permission_lost_while_running_costs_builds_alone(open_to_all):
    """In a directory turned read-only hits are read, builds delivered; later it stores again."""
    answers, caught = as_ordinary_user(lose_permission, open_to_all)
    assert answers == [[], [2, 3], [2, 3], [2, 3], []]
    assert len(caught) == 1
    assert str(open_to_all / "store" / "00000002.pt") in caught[0]
    assert "Permission denied" in caught[0]


def refused(path):
    try:
        ReuseDataset(index_of, 3, path, FOREVER)
    except OSError as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize("mode", [0o500, 0o300, 0o400, 0])
def test_a_directory_without_rights_is_refused_at_once(mode, open_to_all):
    """A directory that cannot be listed, entered or written fails at construction with its path."""
    store = open_to_all / "store"
    store.mkdir()
    if os.getuid() == 0:
        os.chown(store, 65534, 65534)
    store.chmod(mode)
    name, text = as_ordinary_user(refused, store)
    assert name == "PermissionError"
    assert str(store) in text
    assert "path" in text


def test_a_directory_in_one_without_rights_is_refused_at_once(open_to_all):
    """A directory that cannot be made fails at construction with its path."""
    open_to_all.chmod(0o755)
    if os.getuid() != 0:
        open_to_all.chmod(0o555)
    name, text = as_ordinary_user(refused, open_to_all / "store")
    assert name == "PermissionError"
    assert str(open_to_all / "store") in text


def run_into_the_limit(folder):
    """Passes in which files may not grow beyond a limit, and passes after it was lifted."""
    log, store = Log(folder), folder / "store"
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    answers = []
    with Caught() as caught:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
        for epoch in (0, 1):
            assert right(dataset, epoch)
            answers.append((log.indices(), sample_files(store), temps(store)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        for epoch in (2, 3):
            assert right(dataset, epoch)
            answers.append((log.indices(), len(sample_files(store)), temps(store)))
        dataset.close()
    return answers, list(caught)


def test_samples_that_cannot_be_written_are_delivered(tmp_path):
    """Where files cannot grow samples are delivered unsaved, nothing is left; later it stores."""
    answers, caught = forked(run_into_the_limit, tmp_path)
    everything = list(range(SIZE))
    assert answers == [(everything, [], [])] * 2 + [(everything, SIZE, []), ([], SIZE, [])]
    assert len(caught) == 1
    assert str(tmp_path / "store" / "00000000.pt") in caught[0]
    assert os.strerror(errno.EFBIG) in caught[0]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def big_logged(key, log):
    Log(Path(log).parent).build(key)
    return big_sample(key)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_costs_builds_alone(workers, small_disk, tmp_path):
    """On a full disk what fits is reused, the rest delivered; freed space is used at once."""
    log = Log(tmp_path)
    size = 12  # of 40 kB each
    loader = ReuseDataLoader(
        functools.partial(big_logged, log=str(log.path)),
        size,
        small_disk / "store",
        lifetime=10**9,
        seed=3,
        collate_fn=list,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    whole = [bits(big_sample(FOREVER.key(i, 0))) for i in range(size)]
    with Caught() as caught:
        assert [bits(sample) for sample in flat(loader)] == whole
        stored = sample_files(small_disk / "store")
        assert 0 < len(stored) < size
        assert temps(small_disk / "store") == []
        log.take()
        assert [bits(sample) for sample in flat(loader)] == whole
        kept = [int(name.removesuffix(".pt")) for name in stored]
        assert log.indices() == [i for i in range(size) if i not in kept]
        subprocess.run(
            ["mount", "-o", "remount,size=2m", str(small_disk)], check=True, capture_output=True
        )
        assert [bits(sample) for sample in flat(loader)] == whole
        log.take()
        assert [bits(sample) for sample in flat(loader)] == whole
        assert log.take() == []
    assert len(caught) == 1
    assert str(small_disk / "store") in caught[0]
    assert os.strerror(errno.ENOSPC) in caught[0]


def test_a_disk_that_turns_read_only_costs_builds_alone(small_disk, tmp_path):
    """A file system mounted read-only meanwhile still gives hits; builds are delivered unsaved."""
    log, store = Log(tmp_path), small_disk / "store"
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    run_pass(dataset, 0)
    (store / "00000001.pt").unlink()
    log.take()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, capture_output=True)
    with Caught() as caught:
        assert right(dataset, 1)
        dataset.close()
    assert log.indices() == [1]
    assert len(caught) == 1
    assert os.strerror(errno.EROFS) in caught[0]
    with pytest.raises(OSError, match="path") as refusal:
        ReuseDataset(log.build, SIZE, store, FOREVER)
    assert refusal.value.errno == errno.EROFS
    assert str(store) in str(refusal.value)


def test_a_directory_deleted_while_running_costs_builds_alone(store, log):
    """Without its directory a pass delivers all samples, unsaved; with it back, it stores again."""
    dataset = ReuseDataset(log.build, SIZE, store, FOREVER)
    run_pass(dataset, 0)
    log.take()
    shutil.rmtree(store)
    everything = list(range(SIZE))
    with Caught() as caught:
        assert right(dataset, 1)
        assert log.indices() == everything
        store.mkdir(exist_ok=True)
        assert right(dataset, 2)
        log.take()
        assert right(dataset, 3)
        assert log.indices() == []
        dataset.close()
    assert len(caught) == 1
    assert str(store / "00000000.pt") in caught[0]
    assert os.strerror(errno.ENOENT) in caught[0]
