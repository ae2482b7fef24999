"""Ranks of a ReuseDataLoader, and what is refused of the arguments of ranks."""

import itertools

import numpy as np
import pytest
import torch
from helpers import index_of
from torch.utils.data import BatchSampler, DistributedSampler

from reuseloader import ReuseDataLoader, ReusePolicy, ReuseSampler, nodes

POLICY = ReusePolicy(3, 5)
SIZE = 31


def loader_of(store, **options):
    options = {"lifetime": 3, "seed": 5, "collate_fn": list, **options}
    return ReuseDataLoader(index_of, SIZE, store, **options)


def make(kind, store, **options):
    """One of the three that take ranks."""
    if kind is ReuseDataLoader:
        return loader_of(store, **options)
    return kind(SIZE, POLICY, **options)


kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(ReuseSampler, id="sampler"),
        pytest.param(nodes.ReuseSampler, id="node"),
        pytest.param(ReuseDataLoader, id="loader"),
    ],
)


@kinds
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rank": 1}, ValueError, "both or neither, got rank=1, world_size=None"),
        ({"world_size": 4}, ValueError, "both or neither, got rank=None, world_size=4"),
        ({"rank": 4, "world_size": 4}, ValueError, "rank must be .* = 3, got 4"),
        ({"rank": -1, "world_size": 4}, ValueError, "rank must be .*, got -1"),
        ({"rank": 0, "world_size": 0}, ValueError, "world_size must be .*, got 0"),
        ({"rank": 0, "world_size": -2}, ValueError, "world_size must be .*, got -2"),
        ({"rank": 0.0, "world_size": 2}, TypeError, "rank must be an int, got 0.0"),
        ({"rank": True, "world_size": 2}, TypeError, "rank must be an int, got True"),
        ({"rank": 0, "world_size": "2"}, TypeError, "world_size must be an int, got '2'"),
        ({"placement": "both"}, ValueError, "placement must be 'shared' or 'local', got 'both'"),
        ({"placement": None}, ValueError, "placement must be 'shared' or 'local', got None"),
    ],
)
def test_bad_ranks_are_one_error(kind, options, error, text, store):
    """A bad argument is one line that names it, states the rule and shows the value."""
    with pytest.raises(error, match=text) as caught:
        make(kind, store, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [ReuseSampler, nodes.ReuseSampler])
@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_drop_last_is_a_bool(kind, value):
    """A sampler's drop_last is True or False."""
    with pytest.raises(TypeError, match=r"^drop_last must be a bool, got"):
        kind(SIZE, POLICY, drop_last=value)


@kinds
def test_ranks_may_be_of_any_integer_type(kind, store):
    """NumPy and torch integers are ranks like any other."""
    loader = make(kind, store, rank=np.int64(1), world_size=torch.tensor(4))
    plain = make(kind, store, rank=1, world_size=4)
    assert list(loader) == list(plain)


@pytest.mark.parametrize("placement", ["shared", "local"])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_own_order_is_that_of_the_sampler(placement, shuffle, workers, store):
    """Each rank's batches are those of a ReuseSampler of the same arguments, in every epoch."""
    for rank in range(3):
        ranks = {"rank": rank, "world_size": 3, "placement": placement}
        options = {"shuffle": shuffle, "num_workers": workers, "batch_size": 4}
        if workers:
            options["multiprocessing_context"] = "fork"
        loader = loader_of(store, **ranks, **options)
        sampler = ReuseSampler(SIZE, POLICY, shuffle=shuffle, **ranks)
        assert len(loader) == 3
        for _ in range(2 if workers else 4):
            batches = list(loader)
            assert len(batches) == 3
            assert list(itertools.chain(*batches)) == [pair.index for pair in sampler]


def test_drop_last_means_full_batches_of_samples_that_come_once(store):
    """drop_last leaves out what does not fill a batch, and repeats nothing to fill a rank."""
    seen = []
    for rank in range(4):
        loader = loader_of(store, rank=rank, world_size=4, batch_size=3, drop_last=True)
        batches = list(loader)
        assert [len(batch) for batch in batches] == [3, 3]
        assert len(loader) == 2
        seen += itertools.chain(*batches)
        loader = loader_of(store, rank=rank, world_size=4, batch_size=3)
        assert [len(batch) for batch in loader] == [3, 3, 2]
        loader = loader_of(store, rank=rank, world_size=4, batch_size=1, drop_last=True)
        assert len(loader) == 7
    assert len(set(seen)) == len(seen) == 24


@pytest.mark.parametrize(
    "ranks",
    [{"rank": 0, "world_size": 2}, {"placement": "local"}, {"rank": 1}, {"world_size": 2}],
    ids=repr,
)
@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_sampler_of_the_users_clashes_with_ranks(name, ranks, store):
    """A sampler of one's own is never sharded: ranks beside it are an error that names both."""
    sampler = DistributedSampler(range(SIZE), 2, 0)
    theirs = {"sampler": sampler, "batch_sampler": BatchSampler(sampler, 3, drop_last=False)}
    with pytest.raises(ValueError, match=f"^{next(iter(ranks))} must not .* with {name}, got"):
        loader_of(store, **{name: theirs[name]}, **ranks)
    assert not store.exists()


def test_a_distributed_sampler_is_followed_as_it_is(store):
    """With DistributedSampler each rank gets its share, and every pass another order."""
    passes = []
    for rank in range(2):
        sampler = DistributedSampler(range(SIZE), 2, rank, seed=3)
        loader = loader_of(store, sampler=sampler, batch_size=None, collate_fn=None)
        for epoch in range(2):
            passes.append(list(loader))
            sampler.set_epoch(epoch)
            assert passes[-1] == list(sampler)
    assert set(passes[0] + passes[2]) == set(passes[1] + passes[3]) == set(range(SIZE))
    assert passes[0] != passes[1]


def test_the_state_of_a_loader_is_one_number_for_any_ranks(store):
    """A loader's state is its epoch: other ranks, and more or fewer of them, can load it."""
    loader = loader_of(store, rank=0, world_size=4, shuffle=True)
    list(loader)
    assert loader.state_dict() == {"epoch": 1}
    other = loader_of(store, rank=1, world_size=2, shuffle=True)
    other.load_state_dict(loader.state_dict())
    sampler = ReuseSampler(SIZE, POLICY, start_epoch=1, rank=1, world_size=2)
    assert list(itertools.chain(*other)) == [pair.index for pair in sampler]
