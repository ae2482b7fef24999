"""Which epoch a pass of ReuseDataLoader has, and what it says of it."""

import copy
import json
import pickle
from multiprocessing import get_context

import cloudpickle
import numpy as np
import pytest
import torch
from helpers import (
    FORKS,
    append,
    assert_right,
    bits,
    children,
    expected,
    flat,
    sample_of,
    with_present,
)

from reuseloader import ReuseDataLoader, ReusePolicy

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE = 8
POLICY = ReusePolicy(3, 5)
WORKERS = {
    "none": {},
    "workers": {"num_workers": 2, "multiprocessing_context": "fork"},
    "persistent": {
        "num_workers": 2,
        "multiprocessing_context": "fork",
        "persistent_workers": True,
    },
}


def loader_of(path, **options):
    options = {"lifetime": 3, "seed": 5, "shuffle": True, "batch_size": 2, **options}
    return ReuseDataLoader(sample_of, SIZE, path, finish=with_present, collate_fn=list, **options)


def epochs_of(batches):
    """The epoch of each batch; a batch of two epochs is an error."""
    found = [{sample["present"][0] for sample in batch} for batch in batches]
    assert all(len(epochs) == 1 for epochs in found), "a batch mixes epochs"
    return [epochs.pop() for epochs in found]


def assert_whole(batches, epoch):
    """The batches are the whole pass of ``epoch``, in its order, bit for bit."""
    samples = flat(batches)
    assert [s["index"] for s in samples] == POLICY.order(np.arange(SIZE), epoch, SIZE).tolist()
    for sample in samples:
        key = POLICY.key(sample["index"], epoch)
        assert sample["present"] == (epoch, key.use, key.use_seed)
        base = {name: value for name, value in sample.items() if name not in ("present", "pid")}
        assert bits(base) == expected(POLICY, key.index, epoch)


@pytest.fixture(params=WORKERS)
def loader(request, store):
    with loader_of(store, **WORKERS[request.param]) as loader:
        yield loader


@pytest.fixture(params=["none", "workers"])
def plural(request, store):
    """A loader that may have several iterators at once."""
    with loader_of(store, **WORKERS[request.param]) as loader:
        yield loader


def test_each_pass_is_the_next_epoch(loader):
    """Passes are epochs 0, 1, 2 ... without any call in between."""
    for epoch in range(4):
        assert_whole(loader, epoch)


@pytest.mark.parametrize("start", [1, 7, 2**40])
def test_start_epoch_is_the_first(start, store):
    """The first pass has start_epoch, and counting goes on from there."""
    loader = loader_of(store, start_epoch=start)
    assert (loader.epoch, loader.next_epoch, loader.dataset.epoch) == (start, start, start)
    assert_whole(loader, start)
    assert_whole(loader, start + 1)


# --- iterators side by side -----------------------------------------------------------------------


def test_two_iterators_stay_in_their_epochs(plural):
    """An iterator that lives on while a newer one begins stays in the epoch it began with."""
    first = iter(plural)
    one = [next(first)]
    second = iter(plural)
    one += list(first)
    assert_whole(one, 0)
    assert_whole(second, 1)


def test_iterators_in_turn_stay_in_their_epochs(plural):
    """Three iterators drawn from in turn each give their own epoch."""
    iterators = [iter(plural) for _ in range(3)]
    drawn = [[next(iterator) for iterator in iterators] for _ in range(SIZE // 2)]
    for epoch, batches in enumerate(zip(*drawn, strict=True)):
        assert_whole(batches, epoch)


def test_zip_of_a_loader_with_itself_gives_two_epochs(plural):
    """zip(loader, loader) pairs two consecutive epochs, again and again."""
    for epoch in (0, 2):
        ones, others = zip(*zip(plural, plural, strict=True), strict=True)
        assert_whole(ones, epoch)
        assert_whole(others, epoch + 1)


def test_an_iterator_begun_before_set_epoch_stays(plural):
    """set_epoch and load_state_dict move passes to come, not those under way."""
    first = iter(plural)
    batches = [next(first)]
    plural.set_epoch(5)
    batches.append(next(first))
    plural.load_state_dict({"epoch": 9})
    batches += list(first)
    assert_whole(batches, 0)
    assert_whole(plural, 9)


def test_persistent_workers_have_one_iterator_at_a_time(store):
    """With persistent workers an older iterator says that it has ended, and gives nothing wrong."""
    with loader_of(store, **WORKERS["persistent"]) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        with pytest.raises(RuntimeError, match="persistent_workers"):
            next(first)
        assert_whole(second, 1)
        with pytest.raises(RuntimeError, match="persistent_workers"):
            next(first)
        assert_whole(loader, 2)


def test_an_exhausted_iterator_stays_exhausted(plural):
    """After its end an iterator ends again, and costs no epoch."""
    iterator = iter(plural)
    list(iterator)
    for _ in range(3):
        assert list(iterator) == []
    assert plural.next_epoch == 1


def test_the_iterator_has_a_length(loader):
    """Len of an iterator is that of the loader, as for DataLoader's own."""
    assert len(iter(loader)) == len(loader) == SIZE // 2


# --- passes broken off ----------------------------------------------------------------------------


def test_a_broken_off_pass_is_over(loader):
    """After a break, and one more, the next pass is the next epoch, whole and unmixed."""
    for epoch in (0, 1):
        for batch in loader:
            assert epochs_of([batch]) == [epoch]
            break
    assert_whole(loader, 2)
    assert_whole(loader, 3)


def test_a_dropped_iterator_is_over(loader):
    """An iterator that is dropped late, after the next has begun, changes nothing."""
    old = iter(loader)
    next(old)
    new = iter(loader)
    batches = [next(new)]
    del old
    assert loader.state_dict() == {"epoch": 1}
    batches += list(new)
    assert_whole(batches, 1)
    assert_whole(loader, 2)


def test_an_exception_in_the_loop_is_over(loader):
    """A pass that an exception in the loop's body ends is over like one broken off."""
    with pytest.raises(KeyError):
        fail_at_once(loader)
    assert_whole(loader, 1)


def fail_at_once(loader):
    for batch in loader:
        raise KeyError(batch[0]["index"])


def test_a_peek_costs_an_epoch(loader):
    """next(iter(loader)) costs one epoch; set_epoch gives it back."""
    next(iter(loader))
    assert loader.epoch == 0
    assert loader.next_epoch == 1
    assert_whole(loader, 1)
    loader.set_epoch(0)
    assert_whole(loader, 0)


def test_looking_costs_nothing(loader):
    """len, a sample of the dataset and the attributes move no epoch."""
    assert_whole(loader, 0)
    for _ in range(3):
        assert len(loader) == SIZE // 2
        assert len(loader.dataset) == SIZE
        assert loader.dataset[0]["present"][0] == 0
        assert loader.dataset.epoch == loader.epoch == 0
        assert loader.state_dict() == {"epoch": 1}
    assert_whole(loader, 1)


# --- epoch, next_epoch, state ---------------------------------------------------------------------


def test_what_a_loader_says_of_its_epoch(loader):
    """epoch, next_epoch and the state are right before, within and after passes."""

    def says():
        return loader.epoch, loader.next_epoch, loader.state_dict()["epoch"]

    assert says() == (0, 0, 0)
    iterator = iter(loader)
    assert says() == (0, 1, 0)
    next(iterator)
    assert says() == (0, 1, 0)
    list(iterator)
    assert says() == (0, 1, 1)  # exhausted
    iterator = iter(loader)
    next(iterator)
    assert says() == (1, 2, 1)
    del iterator
    assert says() == (1, 2, 2)  # dropped
    for _ in loader:
        assert says() == (2, 3, 2)
    assert says() == (2, 3, 3)
    loader.set_epoch(7)
    assert says() == (7, 7, 7)
    iterator = iter(loader)
    assert says() == (7, 8, 7)
    loader.set_epoch(3)
    assert says() == (3, 3, 3)
    del iterator
    assert says() == (3, 3, 3)
    loader.load_state_dict({"epoch": 5})
    assert says() == (5, 5, 5)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert says() == (5, 6, 6)  # closed
    del iterator
    assert says() == (5, 6, 6)


def test_two_passes_under_way_are_told_apart(plural):
    """The state is about the newest pass; the end of an older one changes nothing."""
    first, second = iter(plural), iter(plural)
    next(first)
    next(second)
    list(first)
    assert plural.state_dict() == {"epoch": 1}
    del first
    assert plural.state_dict() == {"epoch": 1}
    list(second)
    assert plural.state_dict() == {"epoch": 2}


def test_a_state_is_one_number(loader):
    """The state is {"epoch": n}, a plain int, made fresh at every call."""
    for _ in loader:
        pass
    state = loader.state_dict()
    assert state == json.loads(json.dumps(state)) == {"epoch": 1}
    state["epoch"] = 99
    assert loader.state_dict() == {"epoch": 1}


@pytest.mark.parametrize("stop", ["before", "within", "after", "dropped"])
def test_a_state_goes_on_in_a_new_loader(stop, store):
    """A saved state goes on with the epoch under way, from its start, or with the next."""
    loader = loader_of(store)
    assert_whole(loader, 0)
    iterator = iter(loader)
    if stop == "before":
        loader, iterator = loader_of(store, start_epoch=1), None
    elif stop != "dropped":
        for _ in range(1 if stop == "within" else len(loader) + 1):
            next(iterator, None)
    else:
        next(iterator)
        del iterator
    state = loader.state_dict()
    resumed = loader_of(store)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert_whole(resumed, 1 if stop in ("before", "within") else 2)


@pytest.mark.parametrize(
    "value", [-1, 2**63, 1.0, True, None, "1", np.float64(1), torch.tensor(1.5)], ids=repr
)
def test_bad_epochs_are_one_error(value, store):
    """A bad epoch, set or loaded, is an error that shows it, and changes nothing."""
    loader = loader_of(store)
    assert_whole(loader, 0)
    for act in (
        loader.set_epoch,
        loader.sampler.set_epoch,
        loader.dataset.set_epoch,
        lambda epoch: loader.load_state_dict({"epoch": epoch}),
    ):
        with pytest.raises((TypeError, ValueError), match="epoch must be") as caught:
            act(value)
        assert repr(value) in str(caught.value)
    assert_whole(loader, 1)


# --- one clock ------------------------------------------------------------------------------------

ACTS = {
    "loader": lambda loader: loader.set_epoch,
    "sampler": lambda loader: loader.sampler.set_epoch,
    "dataset": lambda loader: loader.dataset.set_epoch,
    "sampler of batches": lambda loader: loader.batch_sampler.sampler.set_epoch,
}


@pytest.mark.parametrize("act", ACTS)
def test_set_epoch_is_the_same_act_everywhere(act, loader):
    """On the loader, its sampler or its dataset: the next pass has the epoch, forth and back."""
    for epoch in (4, 4, 1, 0):
        ACTS[act](loader)(epoch)
        assert loader.epoch == loader.next_epoch == loader.dataset.epoch == epoch
        assert loader.sampler.epoch == epoch
        assert loader.state_dict() == {"epoch": epoch}
        assert_whole(loader, epoch)
        assert_whole(loader, epoch + 1)


def test_set_epoch_at_each_pass_is_fine(loader):
    """The usual loop, with set_epoch on all three first, gives each epoch once."""
    for epoch in range(3):
        for act in ACTS.values():
            act(loader)(epoch)
        assert_whole(loader, epoch)


def test_the_dataset_inside_follows_the_passes(loader):
    """loader.dataset[i] is of the newest pass's epoch."""
    for epoch in range(3):
        for _ in loader:
            assert loader.dataset.epoch == epoch
            assert loader.dataset[2]["present"][0] == epoch


# --- closing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_close_ends_workers_and_passes(workers, store):
    """After close no worker is left; close may come twice, and a new pass begins after it."""
    before = children()
    loader = loader_of(store, **WORKERS[workers])
    iterator = iter(loader)
    next(iterator)
    if workers == "persistent":
        loader.close()
        assert children() == before
    del iterator
    loader.close()
    loader.close()
    assert children() == before
    assert loader.state_dict() == {"epoch": 1}
    assert_whole(loader, 1)
    loader.close()
    assert children() == before


@pytest.mark.parametrize("workers", WORKERS)
def test_with_closes(workers, store):
    """The with statement gives the loader, closes it, and lets errors through."""
    before = children()
    with loader_of(store, **WORKERS[workers]) as loader:
        assert isinstance(loader, ReuseDataLoader)
        assert_whole(loader, 0)
    assert children() == before
    with pytest.raises(KeyError), loader_of(store, **WORKERS[workers]) as loader:
        fail_at_once(loader)
    assert children() == before


def test_an_old_iterator_of_persistent_workers_ends_with_close(store):
    """After close an iterator of persistent workers says that it has ended."""
    loader = loader_of(store, **WORKERS["persistent"])
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises((RuntimeError, StopIteration)):
        next(iterator)


# --- copies and ranks -----------------------------------------------------------------------------

COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
    "cloudpickle": lambda loader: cloudpickle.loads(cloudpickle.dumps(loader)),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_counts_for_itself(kind, workers, store):
    """A copy of a loader goes on with the same epoch, and then neither moves the other."""
    loader = loader_of(store, start_epoch=1, **WORKERS[workers])
    if workers != "persistent":  # whose workers cannot be copied, as in DataLoader
        assert_whole(loader, 1)
        first = 2
    else:
        first = 1
    second = COPIES[kind](loader)
    assert second.next_epoch == first
    assert_whole(second, first)
    assert_whole(second, first + 1)
    assert loader.next_epoch == first
    assert_whole(loader, first)
    second.set_epoch(9)
    second.dataset.set_epoch(8)
    second.sampler.set_epoch(7)
    assert loader.next_epoch == loader.dataset.epoch + 1 == first + 1
    assert_whole(loader, first + 1)
    assert_whole(second, 7)
    for one in (loader, second):
        one.close()


def train(rank, loader, barrier, notes):
    """One rank: passes in step with the other, from an epoch of its own."""
    loader.set_epoch(10 * rank)
    for _ in range(3):
        barrier.wait(60)
        batches = list(loader)
        barrier.wait(60)
        append(notes, f"{rank} {loader.epoch} {set(epochs_of(batches))}\n")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ranks_count_for_themselves(method, store, tmp_path):
    """Ranks that were handed one loader each count their own passes."""
    loader = loader_of(store, **WORKERS["workers"])
    notes = tmp_path / "notes"
    barrier = torch.multiprocessing.get_context(method).Barrier(2)
    torch.multiprocessing.start_processes(
        train, (loader, barrier, str(notes)), nprocs=2, start_method=method
    )
    wanted = [f"{r} {10 * r + step} {{{10 * r + step}}}" for r in (0, 1) for step in range(3)]
    assert sorted(notes.read_text().splitlines()) == sorted(wanted)
    assert loader.next_epoch == 0


def first_pass(loader, pipe):
    pipe.send("begun")
    pipe.recv()
    pipe.send(set(epochs_of(loader)))


def test_a_forked_rank_does_not_follow_its_parent(store):
    """A process that was handed a loader begins with its epoch, whatever the parent does since."""
    loader = loader_of(store)
    context = get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=first_pass, args=(loader, there))
    child.start()
    assert here.recv() == "begun"
    assert_whole(loader, 0)
    here.send("go on")
    assert here.recv() == {0}
    child.join()


def test_samples_of_a_pass_are_right(loader):
    """The plain check of bits that the other files use holds here too."""
    samples = flat(loader)
    for sample in samples:
        del sample["present"], sample["pid"]
    assert_right(samples, POLICY, 0)
