import os

import pytest
from helpers import (
    FOREVER,
    FORKS,
    SIZE,
    Caught,
    leave_temp,
    overwrite,
    right,
    run_pass,
    sample_of,
    snapshot,
)

from reuseloader import ReuseDataset
from reuseloader.audit import check
from reuseloader.store import DirectoryStore

pytestmark = pytest.mark.filterwarnings(FORKS)


@pytest.fixture
def full(store):
    """A store that holds all samples of a pass."""
    dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
    run_pass(dataset, 0)
    return DirectoryStore(store)


def test_a_store_after_passes_is_clean(full, store):
    """A store that was only used has as many samples as indices, all sound, and nothing else."""
    found = check(full, size=SIZE)
    assert found.clean
    assert (found.samples, found.damaged, found.temps, found.strays) == (SIZE, {}, [], [])
    assert found.bytes == sum(path.stat().st_size for path in store.glob("*.pt"))


def test_an_empty_store_is_clean(store):
    """A directory without samples is clean."""
    found = check(DirectoryStore(store))
    assert found.clean
    assert (found.samples, found.bytes) == (0, 0)


@pytest.mark.leaves("damage")
@pytest.mark.parametrize(
    "damage",
    [
        overwrite(lambda b: b""),
        overwrite(lambda b: b[:-1]),
        overwrite(lambda b: b + b"\0"),
        overwrite(lambda b: bytes(len(b))),
        overwrite(lambda b: b[:100] + b"?" + b[101:]),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("nowhere")),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
)
def test_every_damage_is_found_and_left_as_it_is(damage, full, store):
    """A damaged file is named with a reason; looking changes nothing and unpickles nothing."""
    damage(store / "00000002.pt")
    before = snapshot(store)
    found = check(full)
    assert not found.clean
    assert list(found.damaged) == ["00000002.pt"]
    assert found.damaged["00000002.pt"]
    assert found.samples == SIZE
    assert snapshot(store) == before


@pytest.mark.leaves("strays")
def test_temps_and_strays_are_named(full, store):
    """Temporary files are told from what ReuseLoader did not make, and both are named."""
    (store / "00000000.pt").unlink()
    temp = leave_temp(store, index=0)
    for name in ("notes.txt", "x.tmp", "0000001.pt", "000000001.pt", "-0000001.pt"):
        (store / name).write_text(name)
    found = check(full)
    assert not found.clean
    assert found.temps == [temp.name]
    assert found.strays == ["-0000001.pt", "000000001.pt", "0000001.pt", "notes.txt", "x.tmp"]
    assert found.samples == SIZE - 1


@pytest.mark.parametrize(
    ("size", "strays"), [(None, 0), (SIZE + 1, 0), (SIZE, 0), (3, 2), (0, SIZE)]
)
def test_samples_beyond_the_size_are_strays(size, strays, full):
    """With a size, sound samples of indices beyond it are strays."""
    found = check(full, size=size)
    assert (len(found.strays), found.samples) == (strays, SIZE - strays)
    assert found.clean == (strays == 0)


def test_what_was_damaged_is_clean_after_a_pass(full, store):
    """A pass repairs what the audit found."""
    (store / "00000001.pt").write_bytes(b"rubbish")
    assert not check(full).clean
    with Caught(), ReuseDataset(sample_of, SIZE, store, FOREVER) as dataset:
        assert right(dataset, 1)
    assert check(full, size=SIZE).clean
