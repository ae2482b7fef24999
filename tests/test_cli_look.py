"""Looking at a store changes nothing, whoever uses it and whatever the rights are."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from cli_helpers import FILL, Writer, both, cli, fill, fill_lmdb, state_of
from helpers import FORKS, forked, leave_temp, names

from reuseloader import LMDBStore
from reuseloader.lmdb_start import BOOT, DATA, LOCK
from reuseloader.store import DirectoryStore

pytestmark = pytest.mark.filterwarnings(FORKS)

LOOKS = [["stat"], ["verify"], ["show", "1"], ["prune", "--size", "0", "--dry-run"]]


def look(capsys, store, command, *rest):
    return both(capsys, command, store, *rest)


@pytest.mark.leaves("strays")
@pytest.mark.parametrize("argv", LOOKS, ids=lambda argv: argv[0])
def test_nothing_is_changed(argv, store, capsys):
    """No file is made, removed or touched, not even what a start would remove."""
    fill(store)
    (store / "00000004.pt").unlink()
    leave_temp(store, index=4)
    (store / "notes.txt").write_text("a note")
    (store / "00000003.pt").write_bytes(b"damaged")
    before = state_of(store)
    look(capsys, store, *argv)
    assert state_of(store) == before


@pytest.mark.parametrize("argv", LOOKS, ids=lambda argv: argv[0])
def test_nothing_is_changed_in_lmdb(argv, store, capsys):
    """Only the lock file, in which readers sign in, is ever touched."""
    fill_lmdb(store)
    (files, _), content = state_of(store), (store / DATA).read_bytes()
    look(capsys, store, *argv)
    after, _ = state_of(store)
    for name in (DATA, BOOT):
        assert after[name] == files[name]
    assert sorted(after) == [BOOT, DATA, LOCK]
    assert (store / DATA).read_bytes() == content


@pytest.mark.parametrize("kind", FILL)
@pytest.mark.parametrize("argv", LOOKS, ids=lambda argv: argv[0])
def test_a_store_may_be_in_use(argv, kind, store, capsys):
    """While another process replaces all its samples again and again, all that is seen is sound."""
    with Writer(FILL[kind], store):
        for _ in range(5):
            code, _, _ = look(capsys, store, *argv)
            assert code == 0


@pytest.mark.parametrize("kind", FILL)
def test_a_run_may_start_and_go_on_beside_a_look(kind, store):
    """Who looks stops nobody from starting, writing and removing."""
    FILL[kind](store)
    looked = {"directory": DirectoryStore, "lmdb": LMDBStore}[kind].look(store)
    before = bytes(looked.read(0))
    forked(FILL[kind], store, fingerprint="another")
    after = bytes(looked.read(0))
    assert len(after) > 80
    assert after != before
    looked.close()


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, and what makes it read-only."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8M", "none", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield mount, lambda: subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.parametrize("kind", FILL)
def test_read_only_mounts_can_be_looked_at(kind, disk, capsys):
    """On a file system that cannot be written all looks work, and removing is refused."""
    mount, make_read_only = disk
    FILL[kind](mount / "store")
    make_read_only()
    for argv in LOOKS:
        code, _, _ = look(capsys, mount / "store", *argv)
        assert code == 0
    result = cli(capsys, "prune", mount / "store", "--size", "3", "--yes")
    assert result.code == {"directory": 1, "lmdb": 2}[kind]
    assert "Read-only file system" in result.out + result.err
    assert look(capsys, mount / "store", "stat")[2]["samples"] == 5


def codes_of_looks(path, user):
    if os.getuid() == 0:
        os.setuid(user)
    from reuseloader.cli.main import main

    return [main([argv[0], str(path), *argv[1:]]) for argv in LOOKS]


@pytest.fixture
def foreign():
    """A directory that is yet to be made, in one that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="reuseloader-test-"))
    folder.chmod(0o755)
    yield folder / "store"
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", FILL)
def test_read_only_directories_can_be_looked_at(kind, foreign):
    """Who may read but not write a store can look at it."""
    FILL[kind](foreign)
    for file in foreign.iterdir():
        file.chmod(0o444)
    foreign.chmod(0o555)
    assert forked(codes_of_looks, foreign, 65534) == [0, 0, 0, 0]
    foreign.chmod(0o755)


@pytest.mark.skipif(os.getuid() != 0, reason="two users are needed")
def test_lmdb_in_use_needs_the_right_to_sign_in(foreign, capfd):
    """Nobody reads pages of an LMDB store that its writer may be using for something new."""
    store = LMDBStore(foreign)
    fill(store)
    store.read(0)  # it is open
    foreign.chmod(0o755)
    assert forked(codes_of_looks, foreign, 65534) == [2, 2, 2, 2]
    assert "in use" in capfd.readouterr().err
    store.close()


def break_boot(store):
    (store / BOOT).write_bytes(b"another boot")


def without(name):
    return lambda store: (store / name).unlink()


def cut(store):
    with open(store / DATA, "r+b") as file:
        file.truncate(2 * 4096)


@pytest.mark.parametrize("damage", [break_boot, cut, without(BOOT), without(LOCK)])
def test_lmdb_that_a_run_would_begin_anew_is_an_error(damage, store, capsys):
    """What LMDBStore itself would throw away is not looked at, and not thrown away."""
    fill_lmdb(store)
    damage(store)
    before = state_of(store)
    for command, *rest in LOOKS:
        result = cli(capsys, command, store, *rest)
        assert result.code == 2
        assert "the next run begins it anew" in result.err
    assert names(store) == sorted(before[0])
    assert {**state_of(store)[0], LOCK: None} == {**before[0], LOCK: None}
