import errno
import functools
import itertools
import os
import pickle
import resource

import pytest
from helpers import (
    BOOK,
    FOREVER,
    FORKS,
    ODD_ERRORS,
    SIZE,
    Caught,
    DictStore,
    Log,
    bits,
    expected,
    forked,
    names,
    odd_at_two,
    right,
    run_pass,
    sample_of,
    snapshot,
)

from reuseloader import IndexEpoch, ReuseDataset, ReusePolicy

pytestmark = pytest.mark.filterwarnings(FORKS)


def without_descriptors(folder, stored):
    """Fetch while no file can be opened; return the error's number, builds and changed files."""
    log, store = Log(folder), folder / "store"
    dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)
    if stored:
        run_pass(dataset, 0)
    before = snapshot(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    held = []
    try:
        while True:  # descriptors below the limit may be free
            held.append(os.dup(0))
    except OSError:
        pass
    try:
        dataset[IndexEpoch(0, 1)]
        answer = None, []
    except OSError as error:
        answer = error.errno, error.__notes__
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    unchanged = snapshot(store) == before
    with Caught() as caught:
        good = right(dataset, 1)
    return answer, unchanged, good, list(caught), log.take()


@pytest.mark.parametrize("stored", [True, False], ids=["hit", "miss"])
def test_too_many_open_files_is_no_damage(stored, tmp_path):
    """Without a free descriptor EMFILE is raised with the sample's path; nothing is rebuilt."""
    (number, notes), unchanged, good, caught, _ = forked(without_descriptors, tmp_path, stored)
    assert number == errno.EMFILE
    assert str(tmp_path / "store" / "00000000.pt") in "\n".join(notes)
    assert "index 0, epoch 1, generation 0" in "\n".join(notes)
    assert unchanged
    assert good
    assert caught == []


class Interrupted(BaseException):
    """Like GeneratorExit or trio's Cancelled: nobody's business but the caller's."""


PASSING = [MemoryError, KeyboardInterrupt, SystemExit, Interrupted]


class Trap:
    """Raises at its call number ``at``."""

    def __init__(self, function, error, at=0):
        self.function, self.error, self.left = function, error, at
        self.__qualname__ = "trap"

    def __call__(self, *args):
        self.left -= 1
        if self.left == -1:
            raise self.error
        return self.function(*args)


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("place", ["build", "save", "load", "finish", "read", "write"])
def test_what_is_no_damage_passes_through(place, error, store, log):
    """MemoryError, Ctrl-C and their like reach the caller from everywhere, and leave nothing."""
    path = DictStore() if place in ("read", "write") else store
    if path is not store:
        setattr(path, place, Trap(getattr(path, place), error, 2))
    functions = {
        "build": log.build,
        "save": pickle.dump,
        "load": pickle.load,
        "finish": lambda sample, key: sample,
    }
    if place in functions:
        functions[place] = Trap(functions[place], error, 2)
    dataset = ReuseDataset(functions.pop("build"), SIZE, path, FOREVER, **functions)
    with Caught() as caught:
        raised = 0
        for epoch, index in itertools.product(range(3), range(SIZE)):
            try:
                sample = dataset[IndexEpoch(index, epoch)]
            except error:
                raised += 1
            else:
                assert bits(sample) == expected(FOREVER, index, epoch)
        dataset.close()
    assert raised == 1
    assert not caught
    if path is store:
        assert names(store) == [*(f"{i:08}.pt" for i in range(SIZE)), BOOK]


@pytest.mark.parametrize("error", [*PASSING, OSError(errno.EIO, "I/O error"), ValueError])
def test_an_exception_between_writing_and_renaming_leaves_nothing(error, store, monkeypatch):
    """Whatever comes between the writing of a file and its renaming, no temporary file is left."""
    dataset = ReuseDataset(sample_of, SIZE, store, FOREVER)

    def interrupted(source, target):
        assert os.path.exists(source)
        raise error

    with monkeypatch.context() as patch, Caught():
        patch.setattr(os, "replace", interrupted)
        if error in PASSING:
            with pytest.raises(error):
                dataset[IndexEpoch(0, 0)]
        else:
            assert bits(dataset[IndexEpoch(0, 0)]) == expected(FOREVER, 0, 0)
    assert names(store) == [BOOK]
    assert right(dataset, 0)


@pytest.mark.parametrize("name", ["build", "save", "finish"])
def test_errors_of_the_users_functions_say_where(name, store):
    """An error in build, save or finish comes as it is, with index, epoch and generation."""

    def fail(*args):
        raise LookupError("mine")

    functions = {"build": sample_of, "save": None, "finish": None, name: fail}
    dataset = ReuseDataset(functions.pop("build"), 20, store, ReusePolicy(4), **functions)
    with pytest.raises(LookupError, match="mine") as caught:
        dataset[IndexEpoch(17, 11)]
    assert caught.value.__notes__ == [f"in {name} for index 17, epoch 11, generation 3"]


@pytest.mark.parametrize("error", ODD_ERRORS)
def test_an_error_of_an_odd_class_says_where_too(error, store):
    """However its class is made, the very error comes, with its place and its traceback."""
    dataset = ReuseDataset(functools.partial(odd_at_two, error=error), SIZE, store, FOREVER)
    for _ in range(2):
        with pytest.raises(type(ODD_ERRORS[error]())) as caught:
            dataset[2]
        assert caught.value.__notes__ == ["in build for index 2, epoch 0, generation 0"]
        assert caught.traceback[-1].name == "odd_at_two"
    assert names(store) == [BOOK]
