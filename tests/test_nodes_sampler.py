"""nodes.ReuseSampler: order, epochs, state."""

import json
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from nodes_helpers import loading, pairs_of, what_is_left
from torchdata.nodes import BaseNode, Loader, Prefetcher

import reuseloader
from reuseloader import IndexEpoch, ReusePolicy, StateMismatchError
from reuseloader.nodes import ReuseSampler

POLICY = ReusePolicy(3, 5)
SIZE = 11


def sampler(**options):
    return ReuseSampler(options.pop("size", SIZE), options.pop("policy", POLICY), **options)


def test_passes_are_the_order_of_the_policy():
    """Each pass yields plain pairs in the order of the policy, from start_epoch on."""
    node = sampler(start_epoch=4)
    for epoch in range(4, 8):
        node.reset()
        items = list(node)
        assert items == pairs_of(POLICY, epoch, SIZE)
        assert {type(item) for item in items} == {IndexEpoch}
        assert {type(number) for item in items for number in item} == {int}


def test_unshuffled_passes_count_up():
    """shuffle=False is 0, 1, 2, ... in every epoch."""
    loader = Loader(sampler(shuffle=False))
    for epoch in range(3):
        assert list(loader) == [IndexEpoch(i, epoch) for i in range(SIZE)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("balanced", [True, False])
def test_the_same_pairs_as_the_torch_sampler(balanced, shuffle):
    """The node and the torch Sampler of the same arguments yield the same pairs."""
    policy = ReusePolicy(4, -1, balanced=balanced)
    torch_sampler = reuseloader.ReuseSampler(SIZE, policy, start_epoch=2, shuffle=shuffle)
    loader = Loader(ReuseSampler(SIZE, policy, start_epoch=2, shuffle=shuffle))
    for _ in range(3):
        assert list(loader) == list(torch_sampler)


def test_a_node_by_the_contract():
    """A node is its own iterator, starts by itself, and goes on saying that a pass is over."""
    node = sampler()
    assert isinstance(node, BaseNode)
    assert iter(node) is node
    first = next(node)
    assert iter(node) is node
    assert [first, *node] == pairs_of(POLICY, 0, SIZE)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(node)
    node.reset()
    assert list(node) == pairs_of(POLICY, 1, SIZE)


def test_every_reset_is_an_epoch():
    """Passes that were broken off, or not read at all, count too."""
    node = sampler()
    for _ in range(3):
        node.reset()
    next(node)
    node.reset()
    assert list(node) == pairs_of(POLICY, 3, SIZE)


def test_loader_counts_epochs_in_every_case():
    """A break, the end of a pass and a state asked for before iter each count right."""
    loader = Loader(sampler())
    loader.state_dict()
    assert next(iter(loader)) == pairs_of(POLICY, 0, SIZE)[0]
    assert next(iter(loader)) == pairs_of(POLICY, 1, SIZE)[0]
    assert list(loader) == pairs_of(POLICY, 2, SIZE)
    assert list(loader) == pairs_of(POLICY, 3, SIZE)


def test_state_is_flat_plain_and_fresh():
    """Before, during and after a pass the state is a flat dict of ints that nobody else holds."""
    node = sampler()
    for taken in range(SIZE + 1):
        state = node.state_dict()
        assert state
        assert {type(name) for name in state} == {str}
        assert {type(value) for value in state.values()} <= {int, str}
        before = dict(state)
        for name in state:
            state[name] = 99
        assert node.state_dict() == before
        if taken < SIZE:
            assert next(node) == pairs_of(POLICY, 0, SIZE)[taken]
    assert list(node) == []


def test_a_state_is_not_changed_by_its_use():
    """A state can be loaded any number of times, whatever was read since."""
    node = sampler()
    for _ in range(4):
        next(node)
    state = node.state_dict()
    kept = dict(state)
    for _ in range(2):
        node.reset(state)
        assert list(node) == pairs_of(POLICY, 0, SIZE)[4:]
        assert state == kept


@pytest.mark.parametrize("position", range(SIZE + 1))
def test_a_state_goes_on_exactly(position):
    """reset(state), in a new sampler with another start_epoch, gives the rest, then new epochs."""
    node = sampler(start_epoch=6)
    node.reset()
    for _ in range(position):
        next(node)
    state = json.loads(json.dumps(node.state_dict()))
    again = sampler(start_epoch=50)
    again.reset(state)
    rest = list(again)
    again.reset()
    following = list(again)
    if not rest:  # a pass that was over may as well be taken for the beginning of the next
        assert position == SIZE
    assert rest + following in (
        pairs_of(POLICY, 6, SIZE)[position:] + pairs_of(POLICY, 7, SIZE),
        pairs_of(POLICY, 7, SIZE) + pairs_of(POLICY, 8, SIZE),
    )
    assert position == SIZE or rest == pairs_of(POLICY, 6, SIZE)[position:]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("size", {"size": 12}),
        ("seed", {"policy": ReusePolicy(3, 6)}),
        ("lifetime", {"policy": ReusePolicy(2, 5)}),
        ("balanced", {"policy": ReusePolicy(3, 5, balanced=False)}),
        ("shuffle", {"shuffle": False}),
    ],
)
def test_a_state_of_another_order_is_refused(name, other):
    """StateMismatchError names the argument and both values; the sampler stays of use."""
    state = sampler(**other).state_dict()
    mine = sampler().state_dict()
    node = sampler()
    with pytest.raises(StateMismatchError, match=name) as caught:
        node.reset(state)
    assert repr(state[name]) in str(caught.value)
    assert repr(mine[name]) in str(caught.value)
    assert state[name] != mine[name]
    node.reset()
    assert list(node) == pairs_of(POLICY, 0, SIZE)


def test_a_huge_seed_is_part_of_the_state():
    """Seeds of any size and sign survive JSON, and are told apart."""
    for seed in (2**64, -(2**70), 10**30):
        node = sampler(policy=ReusePolicy(3, seed))
        next(node)
        state = json.loads(json.dumps(node.state_dict()))
        with pytest.raises(StateMismatchError, match=str(seed)):
            sampler(policy=ReusePolicy(3, seed + 1)).reset(state)
        node.reset(state)
        assert len(list(node)) == SIZE - 1


@pytest.mark.parametrize(
    "damage",
    [
        {"position": -1},
        {"position": SIZE + 1},
        {"position": "3"},
        {"position": None},
        {"epoch": None},
        {"epoch": 1.0},
        {"epoch": -1},
    ],
)
def test_a_state_that_is_none_is_refused(damage):
    """A state with an impossible place is a StateMismatchError, not a wrong pass."""
    with pytest.raises(StateMismatchError, match=next(iter(damage))):
        sampler().reset({**sampler().state_dict(), **damage})


def test_a_foreign_dict_is_refused():
    """A state of some other node is a StateMismatchError."""
    with pytest.raises(StateMismatchError):
        sampler().reset({"_num_yielded": 3})


def test_nobody_steals_from_a_new_pass():
    """A thread left over from an older pass is told that its pass is over; a new one reads."""
    node = sampler()
    node.reset()
    read, go = threading.Event(), threading.Event()
    old: list[IndexEpoch] = []

    def left_over() -> None:
        old.append(next(node))
        read.set()
        go.wait()
        old.extend(what_is_left(node))

    thread = threading.Thread(target=left_over)
    thread.start()
    read.wait()
    node.reset()
    first = next(node)
    go.set()
    thread.join()
    assert [first, *node] == pairs_of(POLICY, 1, SIZE)
    assert old == pairs_of(POLICY, 0, SIZE)[:1]


def test_under_a_prefetcher():
    """Read by a thread of its own, broken off and read again, every pass is whole."""
    with loading(Prefetcher(sampler(), 3)) as loader:
        for epoch in range(0, 6, 2):
            assert next(iter(loader)) == pairs_of(POLICY, epoch, SIZE)[0]
            assert list(loader) == pairs_of(POLICY, epoch + 1, SIZE)


def test_constant_memory():
    """A pass over very many samples begins and resumes at once, without a list of them."""
    size = 10**12
    node = ReuseSampler(size, POLICY)
    next(node)
    state = {**node.state_dict(), "position": size - 5}
    tracemalloc.start()
    try:
        node.reset()
        for _ in range(20_000):
            next(node)
        node.reset(state)
        tail = list(node)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tail == [IndexEpoch(POLICY.order(p, 0, size), 0) for p in range(size - 5, size)]
    assert peak < 8e6


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_tiny_sizes(size):
    """No sample gives an empty pass; few give each once."""
    loader = Loader(sampler(size=size))
    for epoch in range(3):
        assert sorted(loader) == [IndexEpoch(i, epoch) for i in range(size)]


def test_integers_of_any_type():
    """Sizes and epochs may be NumPy or torch integers."""
    node = ReuseSampler(np.int64(3), POLICY, start_epoch=torch.tensor(2), shuffle=False)
    assert list(node) == [IndexEpoch(0, 2), IndexEpoch(1, 2), IndexEpoch(2, 2)]
    assert {type(value) for value in node.state_dict().values()} <= {int, str}


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (ValueError, "size", -1),
        (TypeError, "size", 1.5),
        (TypeError, "size", True),
        (TypeError, "size", "3"),
        (TypeError, "size", None),
        (ValueError, "start_epoch", -1),
        (TypeError, "start_epoch", 0.0),
        (TypeError, "start_epoch", False),
        (TypeError, "shuffle", 1),
        (TypeError, "shuffle", None),
        (TypeError, "policy", 3),
        (TypeError, "policy", None),
    ],
)
def test_bad_arguments(error, name, value):
    """One error at once that names the argument and shows the value."""
    with pytest.raises(error, match=name) as caught:
        sampler(**{name: value})
    assert repr(value) in str(caught.value)


def test_options_are_keywords():
    """What follows size and policy is given by name."""
    with pytest.raises(TypeError):
        ReuseSampler(3, POLICY, 1)
