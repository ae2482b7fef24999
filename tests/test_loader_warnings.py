"""What a ReuseDataLoader says when its store fails: once, at the end of a pass, for all workers."""

import copy
import functools
import shutil
from multiprocessing import get_context

import pytest
from helpers import (
    FORKS,
    Caught,
    Log,
    assert_right,
    bits,
    expected,
    fails,
    flat,
    python,
    sample_files,
    sample_of,
)

from reuseloader import ReuseDataLoader, ReuseDataset, ReusePolicy, ReuseWarning

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE = 8
FOREVER = ReusePolicy(10**9, 5)
WORKERS = {
    "none": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "persistent": {
        "num_workers": 2,
        "multiprocessing_context": "fork",
        "persistent_workers": True,
    },
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
}


def loader_of(path, build=sample_of, **options):
    options = {"lifetime": 10**9, "seed": 5, "collate_fn": list, **options}
    return ReuseDataLoader(build, SIZE, path, **options)


def spoil(store, count):
    """Damage so many of the stored files."""
    for name in sample_files(store)[:count]:
        (store / name).write_bytes(b"rubbish")


def cannot(*args):
    raise OSError(5, "the disk is sulking")


class Sulking:
    """A store that cannot be written, and read only sometimes."""

    def __init__(self, readable=False):
        self.readable = readable

    def __repr__(self):
        return "Sulking()"

    def read(self, index):
        return None if self.readable else cannot()

    def write(self, index, record):
        cannot()

    def close(self):
        pass


@pytest.mark.parametrize("workers", WORKERS)
def test_damage_is_said_once_at_the_end_of_the_pass(workers, store):
    """One warning at the pass's end has the number of cases, the first path and the reason."""
    with loader_of(store) as loader:
        flat(loader)
    spoil(store, 3)
    loader = loader_of(store, **WORKERS[workers])
    with Caught() as caught:
        samples = flat(loader)
    assert_right(samples, FOREVER, 0)
    assert len(samples) == SIZE
    assert len(caught) == 1
    said = caught[0].replace(str(store), "STORE")
    assert "3" in said
    assert any(f"STORE/{index:08}.pt" in said for index in range(3))
    assert "trailer" in said
    spoil(store, 5)
    with Caught() as caught:
        for _ in range(2):
            assert_right(flat(loader), FOREVER, 0)
        loader.close()
    assert caught == []


@pytest.mark.leaves("damage")
@pytest.mark.parametrize("end", ["break", "close", "with", "error"])
@pytest.mark.parametrize("workers", ["none", "fork"])
def test_damage_is_said_however_the_pass_ends(workers, end, store):
    """A pass broken off, closed or ended by an error says what it has met."""
    with loader_of(store) as loader:
        flat(loader)
    spoil(store, SIZE)
    loader = loader_of(store, batch_size=2, **WORKERS[workers])
    with Caught() as caught:
        iterator = iter(loader)
        next(iterator)
        if end == "break":
            del iterator
        elif end == "close":
            loader.close()
        elif end == "with":
            with loader:
                pass
        else:
            with fails(KeyError):
                fail_within(loader)
    assert len(caught) == 1
    assert str(store) in caught[0]


def fail_within(loader):
    for _ in loader:
        raise KeyError


@pytest.mark.parametrize("workers", ["none", "fork"])
def test_each_kind_of_trouble_is_said_once(workers):
    """A store that can neither be read nor written is two warnings, in three passes."""
    loader = loader_of(Sulking(), **WORKERS[workers])
    with Caught() as caught:
        for _ in range(3):
            assert_right(flat(loader), FOREVER, 0)
        loader.close()
    assert len(caught) == 2
    assert all("sulking" in text and "Sulking()" in text for text in caught)
    assert len({text.split(",")[0] for text in caught}) == 2


@pytest.mark.parametrize("workers", ["none", "fork"])
def test_a_load_that_always_fails_does_not_go_unnoticed(workers, store, log):
    """If nothing stored can ever be read the first pass that finds out says so, with the reason."""
    loader = loader_of(store, log.build, load=cannot, **WORKERS[workers])
    counts = []
    for _ in range(4):
        with Caught() as caught:
            assert_right(flat(loader), FOREVER, 0)
        counts.append(len(caught))
        assert len(log.take()) == SIZE
        if caught:
            assert f"{SIZE}" in caught[0]
            assert "the disk is sulking" in caught[0]
    assert counts == [0, 1, 0, 0]


@pytest.mark.parametrize("lifetime", [1, 2, 3, 10**9])
def test_nothing_is_said_without_trouble(lifetime, store):
    """Passes, breaks, restarts and expired samples are no trouble."""
    with Caught() as caught:
        for _ in range(2):
            with loader_of(store, lifetime=lifetime, num_workers=1) as loader:
                for _ in range(4):
                    flat(loader)
                next(iter(loader))
    assert caught == []


def test_loaders_warn_each_for_itself(tmp_path):
    """Two loaders on two directories are two warnings, each with its own path."""
    stores = [tmp_path / name for name in ("train", "val")]
    loaders = [loader_of(store) for store in stores]
    with Caught() as caught:
        for loader, store in zip(loaders, stores, strict=True):
            flat(loader)
            spoil(store, 1)
        for loader in loaders:
            flat(loader)
    assert len(caught) == 2
    for text, store in zip(caught, stores, strict=True):
        assert str(store) in text


def test_a_warning_is_a_user_warning(store):
    """The category is ReuseWarning, a UserWarning, so that filters can name it."""
    assert issubclass(ReuseWarning, UserWarning)
    loader = loader_of(store)
    flat(loader)
    spoil(store, 1)
    with pytest.warns(ReuseWarning, match="00000000.pt"):
        flat(loader)


def damaged_pass(loader, pipe):
    with Caught() as caught:
        good = [bits(s) == expected(FOREVER, s["index"], 0) for s in flat(loader)]
        loader.close()
    pipe.send((good, list(caught)))


@pytest.mark.parametrize("workers", ["none", "fork", "persistent"])
def test_a_rank_that_was_handed_the_loader_warns(workers, store):
    """A process that runs the passes of an inherited loader says what they have met."""
    loader = loader_of(store)
    flat(loader)
    spoil(store, 2)
    loader = loader_of(store, **WORKERS[workers])
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=damaged_pass, args=(loader, there))
    child.start()
    there.close()
    good, caught = here.recv()
    child.join()
    assert good == [True] * SIZE
    assert len(caught) == 1


def test_a_copy_warns_for_itself(store):
    """A dataset's copy says what it meets, whatever the original has said."""
    dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
    list(dataset)
    for one in (dataset, copy.deepcopy(dataset)):
        spoil(store, 1)
        with Caught() as caught:
            list(one)
        assert len(caught) == 1


STRICT = """
import copy, sys
from pathlib import Path
from helpers import FOREVER, assert_right, flat, right, sample_of
from reuseloader import ReuseDataLoader, ReuseDataset

if __name__ == "__main__":
    store = Path(sys.argv[1])

    def spoil():
        for path in store.glob("*.pt"):
            path.write_bytes(b"rubbish")

    def passes(**options):
        loader = ReuseDataLoader(sample_of, 5, store, lifetime=10**9, seed=3, collate_fn=list,
                                 **options)
        for _ in range(3):
            samples = flat(loader)
            assert len(samples) == 5
            assert_right(samples, loader.policy, 0)
            spoil()
        for _ in loader:
            break
        samples = flat(loader)
        assert len(samples) == 5
        assert_right(samples, loader.policy, 0)
        iterator = iter(loader)
        next(iterator)
        del iterator
        loader.close()

    passes()
    passes(num_workers=2, multiprocessing_context="fork")
    passes(num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    spoil()
    with ReuseDataset(sample_of, 5, store, FOREVER) as dataset:
        for epoch in range(3):
            dataset.set_epoch(epoch)
            assert right(dataset, epoch)
            spoil()
    print("right")
"""


@pytest.mark.leaves("damage")
@pytest.mark.parametrize("flags", [("-W", "error"), ("-W", "error::UserWarning")])
def test_warnings_as_errors_do_not_break_delivery(flags, store):
    """Under ``python -W error`` damaged files cost no sample, no pass and no exit code."""
    forks = ("-W", "ignore:This process:DeprecationWarning") if flags[1] == "error" else ()
    result = python(STRICT, store, flags=(*flags, *forks))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "right"
    assert "Exception ignored" not in result.stderr
    assert "Traceback" not in result.stderr
    assert "00000000.pt" in result.stderr  # said all the same


def test_a_directory_that_vanishes_is_said_once(store, log):
    """A store lost between passes is one warning of what could not be stored, and no error."""
    loader = loader_of(store, log.build)
    flat(loader)
    shutil.rmtree(store)
    with Caught() as caught:
        for _ in range(2):
            assert_right(flat(loader), FOREVER, 0)
        loader.close()
    assert len(caught) <= 1


def test_the_log_is_shared_by_workers(tmp_path):
    """The oracle of these tests itself: lines of several workers do not mix."""
    log = Log(tmp_path)
    build = functools.partial(log.build)
    flat(loader_of(tmp_path / "store", build, lifetime=1, **WORKERS["fork"]))
    assert log.indices() == list(range(SIZE))
