import copy
import itertools
import pickle
import re
from collections import Counter

import numpy as np
import pytest
import torch
from helpers import FORKS, bits, fails, flat, index_of, sample_of, with_present
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from reuseloader import (
    IndexEpoch,
    ReuseDataset,
    ReuseError,
    ReusePolicy,
    ReuseSampler,
    StateMismatchError,
)

pytestmark = [
    pytest.mark.filterwarnings(FORKS),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's own
]

SIZE = 10
POLICY = ReusePolicy(3, 5)


def order(epoch, policy=POLICY, size=SIZE, shuffle=True):
    """The pairs of a pass."""
    indices = policy.order(np.arange(size), epoch, size).tolist() if shuffle else range(size)
    return [IndexEpoch(index, epoch) for index in indices]


def take(iterator, count):
    return list(itertools.islice(iterator, count))


# --- counting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 20_000])
def test_each_pass_is_the_order_of_the_next_epoch(size, balanced, shuffle):
    """Each pass gives every index once, as policy.order says or 0, 1, 2 ..., with its epoch."""
    policy = ReusePolicy(3, 5, balanced=balanced)
    sampler = ReuseSampler(size, policy, start_epoch=4, shuffle=shuffle)
    assert isinstance(sampler, Sampler)
    assert len(sampler) == size
    for epoch in (4, 5, 6):
        pairs = list(sampler)
        assert pairs == order(epoch, policy, size, shuffle)
        assert type(pairs[0]) is IndexEpoch
        assert {type(number) for pair in pairs for number in pair} == {int}
        assert sorted(pair.index for pair in pairs) == list(range(size))


def test_an_epoch_counts_from_its_first_pair_on():
    """Iter alone costs no epoch, however often it is called; the first next does."""
    sampler = ReuseSampler(SIZE, POLICY)
    unused = [iter(sampler) for _ in range(5)]
    assert sampler.epoch == 0
    assert list(sampler) == order(0)
    for _ in range(2):
        iter(sampler)
    assert list(sampler) == order(1)
    assert next(unused[0]) == order(2)[0]
    assert sampler.epoch == 2
    assert list(sampler) == order(3)


def test_a_broken_off_pass_counts():
    """A pass that was begun and left is over; the next is the next epoch, complete."""
    sampler = ReuseSampler(SIZE, POLICY)
    for epoch in range(4):
        assert take(iter(sampler), 2) == order(epoch)[:2]
    assert list(sampler) == order(4)


def test_two_iterators_stay_in_their_epochs():
    """Two iterators at once each go on in the epoch in which they began."""
    sampler = ReuseSampler(SIZE, POLICY)
    first, second = iter(sampler), iter(sampler)
    mixed = [next(iterator) for _ in range(SIZE) for iterator in (first, second)]
    assert mixed[::2] == order(0)
    assert mixed[1::2] == order(1)
    assert list(zip(sampler, sampler, strict=True)) == list(zip(order(2), order(3), strict=True))


def test_epoch_is_that_of_the_newest_pass():
    """Epoch is the start epoch at first, then that of the newest pass begun."""
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=7)
    assert sampler.epoch == 7
    for epoch in (7, 8):
        for pair in sampler:
            assert sampler.epoch == pair.epoch == epoch
        assert sampler.epoch == epoch


@pytest.mark.parametrize("epoch", [0, 1, 5, 2**40])
def test_set_epoch_gives_the_next_pass_its_epoch(epoch):
    """set_epoch moves the next pass, forwards and backwards; then counting goes on from there."""
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=1)
    list(sampler)
    running = iter(sampler)
    next(running)
    sampler.set_epoch(epoch)
    assert sampler.epoch == epoch
    assert list(running) == order(2)[1:]
    assert list(sampler) == order(epoch)
    assert list(sampler) == order(epoch + 1)
    sampler.set_epoch(epoch)
    sampler.set_epoch(epoch)
    assert list(sampler) == order(epoch)


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, True, None, "1", np.float32(1)])
def test_bad_epochs_are_one_error(value):
    """A bad epoch is an error that names the argument and shows the value."""
    with pytest.raises((TypeError, ValueError), match=r"^start_epoch must be") as caught:
        ReuseSampler(SIZE, POLICY, start_epoch=value)
    assert repr(value) in str(caught.value)
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=3)
    with pytest.raises((TypeError, ValueError), match="epoch must be") as caught:
        sampler.set_epoch(value)
    assert repr(value) in str(caught.value)
    assert list(sampler) == order(3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("size", v) for v in (-1, 1.5, True, None, "3")]
    + [("policy", v) for v in (None, 3, ReusePolicy)]
    + [("shuffle", v) for v in (None, 1, "yes")],
)
def test_bad_arguments_are_one_error(name, value):
    """A bad argument is one line that names it and shows the value."""
    arguments = {"size": 3, "policy": POLICY, name: value}
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be") as caught:
        ReuseSampler(**arguments)
    assert repr(value) in str(caught.value)


def test_size_may_be_of_any_integer_type():
    """NumPy and torch integers are sizes and epochs like any other."""
    sampler = ReuseSampler(np.int64(SIZE), POLICY, start_epoch=torch.tensor(2))
    assert type(len(sampler)) is int
    assert list(sampler) == order(2)


def test_an_empty_sampler_has_empty_passes():
    """A sampler of size 0 ends at once, and its state can be saved and loaded."""
    sampler = ReuseSampler(0, POLICY)
    for _ in range(3):
        assert list(sampler) == []
        sampler.load_state_dict(sampler.state_dict())
    assert len(sampler) == 0


def test_a_huge_sampler_begins_at_once():
    """No list of all indices is made: a pass over 10**12 samples gives its first pairs at once."""
    policy, size = ReusePolicy(4), 10**12
    sampler = ReuseSampler(size, policy)
    for epoch in range(3):
        pairs = take(iter(sampler), 3)
        assert pairs == [IndexEpoch(policy.order(p, epoch, size), epoch) for p in range(3)]
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 1, "position": size - 1})
    assert list(iter(sampler)) == [IndexEpoch(policy.order(size - 1, 1, size), 1)]


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("position", range(SIZE + 1))
def test_a_state_goes_on_from_every_position(position, shuffle):
    """A state taken after any number of pairs goes on in a new sampler; full passes follow."""
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=2, shuffle=shuffle)
    iterator = iter(sampler)
    seen = take(iterator, position)
    state = pickle.loads(pickle.dumps(sampler.state_dict()))
    resumed = ReuseSampler(SIZE, POLICY, shuffle=shuffle)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    rest = list(resumed)
    if position == SIZE:
        assert seen == order(2, shuffle=shuffle)
        assert rest == order(3, shuffle=shuffle)
    else:
        assert seen + rest == order(2, shuffle=shuffle)
        assert list(resumed) == order(3, shuffle=shuffle)
    assert seen + list(iterator) == order(2, shuffle=shuffle)


def test_a_state_is_a_flat_dict_of_its_own():
    """A state has ints and strings alone, is made fresh, and does not move with the sampler."""
    sampler = ReuseSampler(SIZE, POLICY)
    iterator = iter(sampler)
    states = [sampler.state_dict()]
    for _ in range(SIZE):
        next(iterator)
        states.append(sampler.state_dict())
    assert len({tuple(state.items()) for state in states}) == SIZE + 1
    for state in states:
        assert {type(name) for name in state} == {str}
        assert {type(value) for value in state.values()} <= {int, str}
    states[-1]["epoch"] = 99
    assert sampler.state_dict()["epoch"] != 99


def test_a_state_can_be_taken_twice_in_one_epoch():
    """Stop, load, go on, stop, load, go on: together exactly the uninterrupted pass."""
    for first, second in itertools.product(range(0, SIZE, 3), range(0, SIZE, 3)):
        seen = []
        sampler = ReuseSampler(SIZE, POLICY, start_epoch=1)
        for count in (first, min(second, SIZE - 1 - first), SIZE):
            seen += take(iter(sampler), count)
            state = sampler.state_dict()
            sampler = ReuseSampler(SIZE, POLICY)
            sampler.load_state_dict(state)
        assert seen == order(1)
        assert list(sampler) == order(2)


def test_a_state_describes_the_newest_iterator():
    """After a new iter the state is the place of that iterator, begun or not."""
    sampler = ReuseSampler(SIZE, POLICY)
    old = iter(sampler)
    take(old, 4)
    new = iter(sampler)
    state = sampler.state_dict()
    resumed = ReuseSampler(SIZE, POLICY)
    resumed.load_state_dict(state)
    assert list(resumed) == order(1)
    take(new, 2)
    take(old, 3)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == order(1)[2:]


def test_a_state_outlives_a_broken_off_pass():
    """The state of a pass that was left in its middle goes on there."""
    sampler = ReuseSampler(SIZE, POLICY)
    for pair in sampler:
        if pair == order(0)[3]:
            break
    resumed = ReuseSampler(SIZE, POLICY)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == order(0)[4:]


def test_a_state_before_any_pass_is_the_first_epoch():
    """Taken before, between and after passes a state is the next whole epoch."""
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=3)
    for epoch in (3, 4):
        resumed = ReuseSampler(SIZE, POLICY)
        resumed.load_state_dict(sampler.state_dict())
        assert resumed.epoch == epoch
        assert list(resumed) == order(epoch)
        assert list(sampler) == order(epoch)


def test_a_loaded_place_is_used_once():
    """Of iterators made after a load the first to begin goes on there, the others are whole."""
    for first, second in ((0, 1), (1, 0)):
        saved = ReuseSampler(SIZE, POLICY, start_epoch=2)
        take(iter(saved), 4)
        sampler = ReuseSampler(SIZE, POLICY)
        sampler.load_state_dict(saved.state_dict())
        iterators = [iter(sampler), iter(sampler)]
        assert sampler.state_dict() == saved.state_dict()
        assert list(iterators[first]) == order(2)[4:]
        assert list(iterators[second]) == order(3)
        assert list(sampler) == order(4)


def test_set_epoch_after_a_load():
    """The loaded position stays for set_epoch of the same epoch and is dropped for any other."""
    saved = ReuseSampler(SIZE, POLICY, start_epoch=2)
    take(iter(saved), 4)
    for epoch, passed in ((2, 4), (3, 0), (1, 0)):
        sampler = ReuseSampler(SIZE, POLICY)
        sampler.load_state_dict(saved.state_dict())
        sampler.set_epoch(epoch)
        assert list(sampler) == order(epoch)[passed:]
        assert list(sampler) == order(epoch + 1)


SETTINGS = {
    "size": ({"size": SIZE}, {"size": SIZE + 1}),
    "seed": ({"policy": POLICY}, {"policy": ReusePolicy(3, 6)}),
    "lifetime": ({"policy": POLICY}, {"policy": ReusePolicy(4, 5)}),
    "balanced": ({"policy": POLICY}, {"policy": ReusePolicy(3, 5, balanced=False)}),
    "shuffle": ({"shuffle": True}, {"shuffle": False}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_state_of_other_settings_is_refused_with_both_values(name):
    """A state of another order is one error that names the setting, both values and what to do."""
    arguments = {"size": SIZE, "policy": POLICY}
    there, here = (ReuseSampler(**{**arguments, **change}) for change in SETTINGS[name])
    state = there.state_dict()
    with pytest.raises(StateMismatchError, match=name) as caught:
        here.load_state_dict(state)
    assert isinstance(caught.value, ReuseError)
    assert isinstance(caught.value, ValueError)
    for value in (state[name], here.state_dict()[name]):
        assert repr(value) in str(caught.value)
    with pytest.raises(StateMismatchError, match=name):
        there.load_state_dict({key: value for key, value in state.items() if key != name})
    take(iter(here), 1)
    with pytest.raises(StateMismatchError):
        there.load_state_dict(here.state_dict())


@pytest.mark.parametrize(
    "change",
    [
        *({"epoch": value} for value in (None, -1, 1.0, "1", True, 2**63)),
        *({"position": value} for value in (None, -1, SIZE + 1, 1.0, "1", True)),
    ],
    ids=repr,
)
def test_an_impossible_state_is_refused(change):
    """A state with a missing or impossible epoch or position is an error and changes nothing."""
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=1)
    with pytest.raises((StateMismatchError, ValueError, TypeError), match=next(iter(change))):
        sampler.load_state_dict({**sampler.state_dict(), **change})
    assert list(sampler) == order(1)


@pytest.mark.parametrize("state", [{}, {"epoch": 1}, {"unknown": 1}])
def test_a_foreign_state_is_refused(state):
    """What is no state of a sampler is a StateMismatchError."""
    with pytest.raises(StateMismatchError):
        ReuseSampler(SIZE, POLICY).load_state_dict(state)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_counts_for_itself(make):
    """A copied sampler has the same next epoch and then counts for itself."""
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=2)
    list(sampler)
    second = make(sampler)
    assert list(second) == order(3)
    assert list(second) == order(4)
    assert list(sampler) == order(3)


# --- under DataLoader -----------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("batch_size", [3, None])
def test_passes_of_a_dataloader_are_consecutive_epochs(persistent, batch_size, workers, store):
    """Under DataLoader each pass is the next epoch, also after a break; set_epoch goes back."""
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY, finish=with_present)
    sampler = ReuseSampler(SIZE, POLICY)
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        collate_fn=list if batch_size else None,
        num_workers=workers,
        persistent_workers=persistent,
    )

    def samples():
        return flat(loader) if batch_size else list(loader)

    assert_pass(samples(), 0)
    next(iter(loader))
    assert_pass(samples(), 2)
    sampler.set_epoch(0)
    assert_pass(samples(), 0)
    assert_pass(samples(), 1)


def assert_pass(samples, epoch, start=0):
    """The samples are those of a pass, in its order, from position ``start`` on."""
    assert [(s["index"], s["present"][0]) for s in samples] == order(epoch)[start:]
    for sample in samples:
        tensor = sample_of(POLICY.key(sample["index"], epoch).first)["tensor"]
        assert bits(sample["tensor"]) == bits(tensor)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [3, None])
def test_a_state_goes_on_under_a_plain_dataloader(batch_size, workers, store):
    """A state loaded into the sampler of a plain DataLoader is taken up by its next pass."""
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY, finish=with_present)
    saved = ReuseSampler(SIZE, POLICY, start_epoch=1)
    take(iter(saved), 4)
    sampler = ReuseSampler(SIZE, POLICY)
    sampler.load_state_dict(saved.state_dict())
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        collate_fn=list if batch_size else None,
        num_workers=workers,
    )
    samples = flat(loader) if batch_size else list(loader)
    assert_pass(samples, 1, start=4)
    samples = flat(loader) if batch_size else list(loader)
    assert_pass(samples, 2)


def test_batch_samplers_over_it_keep_the_pairs(store):
    """A BatchSampler over the sampler hands on its pairs, and no batch mixes epochs."""
    sampler = ReuseSampler(SIZE, POLICY)
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY, finish=with_present)
    batches = BatchSampler(sampler, 4, drop_last=True)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=list)
    assert len(loader) == 2
    for epoch in range(3):
        assert [(s["index"], s["present"][0]) for s in flat(loader)] == order(epoch)[:8]


def test_errors_of_a_pass_do_not_stop_the_counting(store):
    """A pass that ended in an error is over; the next is the next epoch."""
    broken = [True]

    def build(key):
        if broken and key.index == order(0)[2].index:
            raise LookupError("not today")
        return index_of(key)

    loader = DataLoader(
        ReuseDataset(build, SIZE, store, POLICY),
        batch_size=None,
        sampler=ReuseSampler(SIZE, POLICY),
    )
    with fails(LookupError, match="not today"):
        list(loader)
    broken.clear()
    assert list(loader) == [pair.index for pair in order(1)]


# --- under StatefulDataLoader ---------------------------------------------------------------------

FEW = 7
COMBINATIONS = [
    (workers, batch_size, every, persistent)
    for workers in (0, 2)
    for batch_size in (3, None)
    for every in (1, 3)
    for persistent in ((False, True) if workers else (False,))
]


def stateful(folder, combination, **options):
    workers, batch_size, every, persistent = combination
    return StatefulDataLoader(
        ReuseDataset(sample_of, FEW, folder, POLICY, finish=with_present),
        batch_size=batch_size,
        sampler=ReuseSampler(FEW, POLICY),
        collate_fn=list if batch_size else None,
        num_workers=workers,
        snapshot_every_n_steps=every,
        persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
        **options,
    )


def pairs_of(items, batch_size):
    samples = [s for item in items for s in item] if batch_size else items
    for sample in samples:
        tensor = sample_of(POLICY.key(sample["index"], sample["present"][0]).first)["tensor"]
        assert bits(sample["tensor"]) == bits(tensor)
    return [IndexEpoch(sample["index"], sample["present"][0]) for sample in samples]


@pytest.mark.parametrize("combination", COMBINATIONS, ids=repr)
def test_stateful_dataloader_resumes_at_every_position(combination, store):
    """Stopped anywhere, twice in one epoch, it goes on exactly; later epochs have full length."""
    workers, batch_size, *_ = combination
    steps = -(-FEW // (batch_size or 1))
    stops = {0, 1, steps // 2, steps - 1, steps} if workers else range(steps + 1)
    whole = [pair for epoch in (1, 2, 3) for pair in order(epoch, size=FEW)]
    for stop in stops:
        loader = stateful(store, combination)
        assert len(pairs_of(list(loader), batch_size)) == FEW  # epoch 0, to its end
        seen = []
        for more in (stop, 1):  # stop in epoch 1, and once more one step later
            iterator = iter(loader)
            seen += pairs_of(take(iterator, more), batch_size)
            state = pickle.loads(pickle.dumps(loader.state_dict()))
            del iterator, loader
            loader = stateful(store, combination)
            loader.load_state_dict(state)
        while len(seen) < len(whole):
            before = len(seen)
            seen += pairs_of(list(loader), batch_size)
            # at an epoch's end StatefulDataLoader may give one empty pass after a load
            assert len(seen) > before or before % FEW == 0
        assert seen == whole, stop
        assert Counter(pair.epoch for pair in seen) == {1: FEW, 2: FEW, 3: FEW}
        del loader


@pytest.mark.parametrize(
    ("combination", "drop_last"),
    [(c, drop_last) for c in COMBINATIONS for drop_last in ((False, True) if c[1] else (False,))],
    ids=repr,
)
def test_stateful_dataloader_resumes_after_an_ended_pass(combination, drop_last, store):
    """A state taken after the loop goes on with the next epoch; one of its last step, with a rest.

    The rest is empty, as with every sampler there.
    """
    _, batch_size, *_ = combination
    for ended in (True, False):
        loader = stateful(store, combination, drop_last=drop_last)
        for epoch in range(2):
            iterator = iter(loader)
            steps = take(iterator, len(loader))
            if ended:
                assert list(iterator) == []
            state = loader.state_dict()
            del iterator, loader
            loader = stateful(store, combination, drop_last=drop_last)
            loader.load_state_dict(pickle.loads(pickle.dumps(state)))
            if not ended:
                assert list(loader) == []
            drawn = pairs_of(steps, batch_size)
            assert drawn == order(epoch, size=FEW)[: len(drawn)]
        del loader


@pytest.mark.parametrize("state", [None, 3, [("epoch", 1)]], ids=repr)
def test_a_state_that_is_no_dict_is_refused(state):
    """The error shows what was given."""
    with pytest.raises(StateMismatchError, match=f"must be a dict.*{re.escape(repr(state))}"):
        ReuseSampler(SIZE, POLICY).load_state_dict(state)
