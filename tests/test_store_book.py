import functools
import os
import re
from multiprocessing import get_context

import pytest
from helpers import (
    BOOK,
    FOREVER,
    FORKS,
    SIZE,
    Caught,
    index_of,
    other_build,
    right,
    run_pass,
    sample_of,
    temps,
)

from reuseloader import ReuseDataset, ReusePolicy, ReuseWarning

pytestmark = pytest.mark.filterwarnings(FORKS)


def start(store, build=sample_of, size=SIZE, fingerprint="", lifetime=4, seed=0):
    """What is said at a start, and how often."""
    with (
        Caught() as caught,
        ReuseDataset(build, size, store, ReusePolicy(lifetime, seed), fingerprint=fingerprint),
    ):
        pass
    return caught


@pytest.mark.parametrize(
    "change", [{"size": SIZE + 1}, {"size": SIZE - 1}, {"build": index_of}, {"size": 0}]
)
def test_another_size_or_build_is_said_once(change, store):
    """Another size or build under one fingerprint is one warning with both, and what to do."""
    assert start(store) == []
    assert start(store) == []
    caught = start(store, **change)
    assert len(caught) == 1
    assert str(store) in caught[0]
    now = {"size": SIZE, "build": sample_of, **change}
    said = caught[0].replace(str(store), "")
    both = rf"\b{SIZE}\b.*sample_of.*\b{now['size']}\b.*{now['build'].__name__}"
    assert re.search(both, said), "before and now"
    assert "directory of its own" in said
    assert "fingerprint" in said
    assert start(store, **change) == []
    assert len(start(store)) == 1
    assert start(store) == []


def test_another_fingerprint_explains_another_build(store):
    """With another fingerprint a change of size or build is as it should be, and back again."""
    for fingerprint in ("a", "b", "a", ""):
        size = SIZE + len(fingerprint) + (fingerprint == "b")
        assert start(store, fingerprint=fingerprint, size=size) == []
        assert start(store, fingerprint=fingerprint, size=size) == []


def test_other_policies_share_in_silence(store):
    """Another lifetime or seed is nothing to warn of; neither are partials of one function."""
    assert start(store) == []
    assert start(store, lifetime=7) == []
    assert start(store, seed=1) == []
    assert start(store, build=functools.partial(sample_of)) == []


def test_a_change_of_build_is_said_and_a_change_of_fingerprint_helps(store):
    """What the warning says is so: the old samples are used, until the fingerprint changes."""
    start(store)
    with ReuseDataset(sample_of, SIZE, store, FOREVER) as dataset:
        run_pass(dataset, 0)
    with (
        pytest.warns(ReuseWarning, match="other_build"),
        ReuseDataset(other_build, SIZE, store, FOREVER) as dataset,
    ):
        assert right(dataset, 1)
    with ReuseDataset(other_build, SIZE, store, FOREVER, fingerprint="new") as dataset:
        assert run_pass(dataset, 1) == list(range(SIZE))


@pytest.mark.parametrize("sizes", [(5, 8, 3, 8), (3, 0, 3)])
def test_a_change_of_size_keeps_what_is_stored(sizes, store, log):
    """Growing or shrinking reuses the samples that are there and never reads those beyond."""
    seen = 0
    for size in sizes:
        with Caught(), ReuseDataset(log.build, size, store, FOREVER) as dataset:
            assert right(dataset, 1)
            with pytest.raises(IndexError):
                dataset[size]
        assert log.indices() == list(range(seen, size))
        seen = max(seen, size)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"3", b'"text"', b"\xff\xfe", b"\0" * 50, b"9" * 5000),
        *(b"[" * 10**6, b'{"fingerprint": 3, "size": [], "build": {}}', b'{"size": 5}'),
    ],
    ids=lambda content: repr(content[:8]),
)
def test_damaged_books_are_begun_anew(content, store):
    """A book that cannot be read is no reason to stop or to warn; the next start has one again."""
    start(store)
    (store / BOOK).write_bytes(content)
    assert start(store, size=9) == []
    assert start(store, size=9) == []
    assert len(start(store)) == 1


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)])
def test_something_else_in_place_of_the_book_is_harmless(make, store, log):
    """A directory, a pipe or a link where the book belongs stops neither the start nor a pass."""
    store.mkdir()
    make(store / BOOK)
    child = get_context("fork").Process(target=start_and_run, args=(store,))
    child.start()
    child.join(30)
    alive = child.is_alive()
    child.kill()
    child.join()
    assert not alive
    assert child.exitcode == 0
    assert temps(store) == []


def start_and_run(store):
    with Caught(), ReuseDataset(sample_of, SIZE, store, FOREVER) as dataset:
        assert right(dataset, 0)
