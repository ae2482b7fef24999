import io
import os
import sys

import pytest
from cli_helpers import DAMAGES, FILL, Writer, assert_error, both, cli, fill, fill_mixed, state_of
from helpers import BOOK, FORKS, SIZE, bits, expected, leave_temp, names, sample_files, sample_of

from reuseloader import IndexEpoch, LMDBStore, ReuseDataset, ReusePolicy
from reuseloader.cli import prune
from reuseloader.record import fingerprint_digest
from reuseloader.store import DirectoryStore

pytestmark = pytest.mark.filterwarnings(FORKS)

POLICY = ReusePolicy(7, 3)
LOOK = {"directory": DirectoryStore.look, "lmdb": LMDBStore.look}


def indices(kind, path):
    """The indices that are stored."""
    store = LOOK[kind](path)
    found = [store.index_of(name) for name in store.names()]
    store.close()
    return sorted(index for index in found if index is not None)


@pytest.mark.parametrize("kind", FILL)
@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["--size", 3], [0, 1, 2]),
        (["--size", SIZE], [0, 1, 2, 3, 4]),
        (["--size", 0], []),
        (["--lifetime", 7], [0, 1, 2, 3, 4]),
        (["--lifetime", 4], []),
        (["--seed", 3], [0, 1, 2, 3, 4]),
        (["--seed", -3], []),
        (["--fingerprint", "mine"], [0, 1, 2, 3, 4]),
        (["--fingerprint", ""], []),
        (["--fingerprint", fingerprint_digest("mine").hex()], [0, 1, 2, 3, 4]),
        (["--fingerprint", fingerprint_digest("other").hex()], []),
        (["--damaged"], [0, 1, 2, 3, 4]),
        (["--damaged", "--size", 4, "--lifetime", 7, "--seed", 3], [0, 1, 2, 3]),
    ],
)
def test_only_what_meets_a_criterion_is_removed(argv, kept, kind, store, capsys):
    """Records beyond the size, or of another lifetime, seed or fingerprint go; the rest stays."""
    FILL[kind](store, POLICY, fingerprint="mine")
    result = cli(capsys, "prune", store, *argv, "--yes", "--json")
    assert (result.code, result.err) == (0, "")
    assert indices(kind, store) == kept
    facts = result.facts
    assert facts["samples"] == SIZE
    assert facts["removed"] == len(facts["due"]) == SIZE - len(kept)
    assert facts["removed_bytes"] == facts["due_bytes"]
    assert (facts["left"], facts["replaced"]) == ({}, 0)


@pytest.mark.parametrize("kind", FILL)
def test_reasons_are_counted(kind, store, capsys):
    """What would be removed is listed by reason, with counts and bytes, and a dry run does not."""
    fill_mixed(store, kind)
    before = indices(kind, store)
    code, text, facts = both(
        capsys, "prune", store, "--size", 4, "--fingerprint", "other", "--dry-run"
    )
    assert code == 0
    assert {entry["why"].split()[0] for entry in facts["due"].values()} == {"fingerprint", "index"}
    assert [entry["index"] for entry in facts["due"].values()] == [3, 4]
    assert "of 4 samples 2 to remove" in text
    assert "index from 4 on" in text
    assert "indices 4 to 4" in text
    assert facts["removed"] == 0
    assert indices(kind, store) == before == [0, 1, 3, 4]


@pytest.mark.leaves("strays")
@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_are_removed(name, store, capsys):
    """Damaged files go; what is no file, but stands in the place of one, is left and told."""
    fill(store)
    path = store / "00000002.pt"
    DAMAGES[name][0](path)
    result = cli(capsys, "prune", store, "--damaged", "--yes")
    no_file = name in ("directory", "dangling link", "pipe")
    assert result.code == int(no_file)
    assert os.path.lexists(path) == no_file
    assert ("00000002.pt" in result.out) == no_file
    assert len(sample_files(store)) == SIZE - 1 + no_file


def test_damage_in_lmdb_is_removed(store, capsys):
    """So is a damaged record in LMDB, whatever its length."""
    lmdb = LMDBStore(store)
    fill(lmdb)
    lmdb.write(1, bytes(10))
    lmdb.write(2, bytes(300_000))
    lmdb.close()
    result = cli(capsys, "prune", store, "--damaged", "--yes")
    assert result.code == 0
    assert "keeps its size" in result.out
    assert indices("lmdb", store) == [0, 3, 4]


@pytest.mark.leaves("strays")
def test_nothing_else_is_touched(store, tmp_path, capsys):
    """Strays, temporary files, links and what they point to, and the book stay as they are."""
    fill(store)
    (store / "00000004.pt").unlink()
    leave_temp(store, index=4)
    outside = tmp_path / "outside.pt"
    (store / "00000003.pt").rename(outside)
    (store / "00000003.pt").symlink_to(outside)
    for name in ("notes.txt", "0000001.pt", "00000001.pt.bak", "x.tmp"):
        (store / name).write_text(name)
    before = state_of(store)[0]
    result = cli(capsys, "prune", store, "--size", 0, "--damaged", "--yes", "--json")
    assert result.code == 1
    assert result.facts["left"] == {"00000003.pt": "not a plain file"}
    gone = {f"{index:08}.pt" for index in range(3)}
    assert state_of(store)[0] == {n: info for n, info in before.items() if n not in gone}
    assert outside.exists()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "kept"), [("y\n", 2), ("YES\n", 2), ("n\n", 5), ("", 5)])
def test_it_asks_first(answer, kept, store, capsys, monkeypatch):
    """On a terminal it lists and asks, and takes nothing but a yes for one."""
    fill(store)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    result = cli(capsys, "prune", store, "--size", 2)
    assert result.code == 0
    assert "of 5 samples 3 to remove" in result.err
    assert result.err.endswith("remove 3 records? [y/N] ")
    assert ("nothing removed" in result.out) == (kept == 5)
    assert len(sample_files(store)) == kept
    assert BOOK in names(store)


def test_it_does_not_ask_in_vain(store, capsys, monkeypatch):
    """Where there is nothing to remove, or nobody to ask, there is no question."""
    fill(store)
    before = state_of(store)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert_error(cli(capsys, "prune", store, "--size", 2), "--yes", "--dry-run")
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert cli(capsys, "prune", store, "--size", SIZE).err == ""
    assert state_of(store) == before


@pytest.mark.parametrize("kind", FILL)
def test_what_is_replaced_meanwhile_stays(kind, store, capsys, monkeypatch):
    """A record written between the listing and its removal is judged anew, one that is gone too."""
    FILL[kind](store, POLICY, fingerprint="old")
    remove = prune._remove

    def replace_and_remove(args, due):
        FILL[kind](store, POLICY, size=2, fingerprint="new")
        other = {"directory": DirectoryStore, "lmdb": LMDBStore}[kind](store)
        assert other.remove(4, lambda: True)
        other.close()
        remove(args, due)

    monkeypatch.setattr(prune, "_remove", replace_and_remove)
    result = cli(capsys, "prune", store, "--fingerprint", "new", "--yes", "--json")
    assert result.code == 0
    assert (result.facts["removed"], result.facts["replaced"]) == (2, 3)
    assert indices(kind, store) == [0, 1]


@pytest.mark.parametrize("kind", FILL)
def test_a_run_beside_it_goes_on(kind, store, capsys):
    """While another process writes, samples are removed, and the next pass has them all again."""
    with Writer(FILL[kind], store):
        for _ in range(5):
            result = cli(capsys, "prune", store, "--size", 2, "--damaged", "--yes")
            assert (result.code, result.err) == (0, "")
    path = LMDBStore(store) if kind == "lmdb" else store
    with ReuseDataset(sample_of, SIZE, path, POLICY) as dataset:
        for index in range(SIZE):
            assert bits(dataset[IndexEpoch(index, 1)]) == expected(POLICY, index, 1)
