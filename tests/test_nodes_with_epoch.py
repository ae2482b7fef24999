"""nodes.WithEpoch: pairs for the index nodes that pipelines already have."""

import copy
import json
import threading

import numpy as np
import pytest
import torch
from nodes_helpers import (
    ByPolicy,
    Graph,
    Pulled,
    expected,
    flat,
    listed,
    loading,
    sample_of,
    what_is_left,
    with_key,
)
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torchdata.nodes import Batcher, Loader, Prefetcher, SamplerWrapper

from reuseloader import IndexEpoch, ReusePolicy, StateMismatchError
from reuseloader.nodes import ReuseMapper, ReuseSampler, WithEpoch

SIZE = 7


def pairs(indices, epoch):
    return [IndexEpoch(i, epoch) for i in indices]


def plain(items):
    """Whether all of the pairs are IndexEpochs of plain ints."""
    return all(
        type(pair) is IndexEpoch and type(pair.index) is type(pair.epoch) is int
        for pair in flat(items)
    )


def test_sequential_sampler():
    """Every index of a pass is paired with the number of the pass, from start_epoch on."""
    loader = Loader(WithEpoch(SamplerWrapper(SequentialSampler(range(SIZE))), start_epoch=3))
    for epoch in (3, 4, 5):
        items = list(loader)
        assert items == pairs(range(SIZE), epoch)
        assert plain(items)


def test_random_sampler():
    """RandomSampler's own shuffling stays; each pass has every index, in its own epoch."""
    generator = torch.Generator().manual_seed(0)
    loader = Loader(WithEpoch(SamplerWrapper(RandomSampler(range(SIZE), generator=generator))))
    passes = [list(loader) for _ in range(3)]
    assert [sorted(items) for items in passes] == [pairs(range(SIZE), e) for e in range(3)]
    assert all(plain(items) for items in passes)


def test_sampler_with_replacement():
    """An index may come several times in a pass."""
    weights = [0.0, 1.0, 1.0]
    node = WithEpoch(SamplerWrapper(WeightedRandomSampler(weights, 20)))
    items = list(node)
    assert len(items) == 20
    assert set(items) == {IndexEpoch(1, 0), IndexEpoch(2, 0)}
    assert plain(items)


@pytest.mark.parametrize("rank", [0, 1])
def test_distributed_sampler(rank):
    """DistributedSampler is followed, and its set_epoch goes along with the pairs' epochs."""
    options = {"num_replicas": 2, "rank": rank, "seed": 4}
    loader = Loader(WithEpoch(SamplerWrapper(DistributedSampler(range(SIZE), **options))))
    reference = DistributedSampler(range(SIZE), **options)
    for epoch in range(3):
        reference.set_epoch(epoch)
        assert list(loader) == pairs(reference, epoch)


@pytest.mark.parametrize("drop_last", [True, False])
def test_batch_sampler(drop_last):
    """A list of indices becomes a list of pairs, so that one hop carries a batch."""
    sampler = BatchSampler(SequentialSampler(range(SIZE)), 3, drop_last)
    loader = Loader(WithEpoch(SamplerWrapper(sampler)))
    for epoch in range(2):
        items = list(loader)
        assert items == [pairs(batch, epoch) for batch in sampler]
        assert all(type(item) is list for item in items)
        assert plain(items)


@pytest.mark.parametrize(
    "index",
    [
        3,
        np.int64(3),
        np.int32(3),
        np.uint8(3),
        np.uint64(3),
        np.array(3),
        torch.tensor(3),
        torch.tensor(3, dtype=torch.uint8),
        torch.tensor(3, dtype=torch.int16),
    ],
    ids=lambda index: f"{type(index).__name__}-{getattr(index, 'dtype', '')}",
)
def test_integers_of_any_type_become_plain(index):
    """NumPy's and torch's integers, alone or in a list, become plain ints."""
    items = list(WithEpoch(listed([index, [index, index], (index,)])))
    assert items == [IndexEpoch(3, 0), pairs([3, 3], 0), pairs([3], 0)]
    assert plain(items)
    assert [type(item) for item in items] == [IndexEpoch, list, list]


@pytest.mark.parametrize(
    "item",
    [
        1.0,
        True,
        np.bool_(True),
        np.float32(1),
        torch.tensor(1.0),
        torch.tensor(True),
        torch.tensor([1.0, 2.0]),
        "1",
        b"1",
        None,
        {"index": 1},
        [1, None],
        [0, 1.5],
    ],
    ids=repr,
)
def test_what_is_no_index_is_refused(item):
    """A TypeError shows the item, after what came before it."""
    node = WithEpoch(listed([0, item]))
    assert next(node) == IndexEpoch(0, 0)
    shown = item[1] if isinstance(item, list) else next(iter(item)) if is_array(item) else item
    with pytest.raises(TypeError, match="index") as caught:
        next(node)
    assert repr(shown) in str(caught.value)


def is_array(item):
    return getattr(item, "ndim", 0) > 0


@pytest.mark.parametrize("batch", [np.array([2, 0]), torch.tensor([2, 0])], ids=["numpy", "torch"])
def test_arrays_are_batches(batch):
    """A sampler that yields arrays of indices gives lists of pairs, of plain ints."""
    items = list(WithEpoch(listed([batch, batch[:0]])))
    assert items == [pairs([2, 0], 0), []]
    assert plain(items)


def test_pairs_stay_as_they_are():
    """A source that gives pairs already keeps its own epochs."""
    items = [IndexEpoch(1, 5), [IndexEpoch(2, 6)]]
    assert list(WithEpoch(listed(items))) == items


def test_a_node_by_the_contract():
    """A node is its own iterator, starts by itself, and goes on saying that a pass is over."""
    node = WithEpoch(listed([4, 2]))
    assert iter(node) is node
    assert next(node) == IndexEpoch(4, 0)
    assert iter(node) is node
    assert list(node) == pairs([2], 0)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(node)
    node.reset()
    assert list(node) == pairs([4, 2], 1)


def test_every_reset_is_an_epoch():
    """Passes that were broken off, or not read at all, count too, also through a Loader."""
    node = WithEpoch(listed([4, 2]))
    for _ in range(3):
        node.reset()
    next(node)
    node.reset()
    assert list(node) == pairs([4, 2], 3)
    loader = Loader(WithEpoch(listed([4, 2])))
    loader.state_dict()
    assert next(iter(loader)) == IndexEpoch(4, 0)
    assert next(iter(loader)) == IndexEpoch(4, 1)
    assert list(loader) == pairs([4, 2], 2)
    assert list(loader) == pairs([4, 2], 3)


def test_state_is_plain_and_fresh():
    """Before, during and after a pass the state survives JSON and nobody else holds it."""
    node = WithEpoch(listed(list(range(SIZE))))
    for taken in range(SIZE + 1):
        state = node.state_dict()
        before = copy.deepcopy(state)
        assert json.loads(json.dumps(state)) == before
        state["epoch"] = 99
        state["source"].clear()
        assert node.state_dict() == before
        if taken < SIZE:
            assert next(node) == IndexEpoch(taken, 0)
    assert list(node) == []


# RandomSampler is not among them: SamplerWrapper does not save the state of its generator
SAMPLERS = {
    "sequential": lambda: SequentialSampler(range(SIZE)),
    "distributed": lambda: DistributedSampler(range(SIZE + 3), 2, 1, seed=3),
    "batches": lambda: BatchSampler(DistributedSampler(range(20), 2, 0), 3, drop_last=False),
    "by policy": lambda: ByPolicy(Graph(size=SIZE)),
}


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_state_goes_on_exactly(name, prefetch):
    """At every position of two epochs, a new graph goes on with the rest and the next epoch."""

    def graph(start_epoch=0):
        node = SamplerWrapper(SAMPLERS[name](), initial_epoch=start_epoch)
        node = WithEpoch(node, start_epoch=start_epoch)
        return loading(Prefetcher(node, 2) if prefetch else node)

    reference, states = [], []
    with graph() as loader:
        for epoch in range(4):
            taken = []
            iterator = iter(loader)
            while True:
                states.append((epoch, len(taken), copy.deepcopy(loader.state_dict())))
                try:
                    taken.append(next(iterator))
                except StopIteration:
                    break
            reference.append(taken)
            assert {pair.epoch for pair in flat(taken)} == {epoch}
    for epoch, taken, state in states:
        if epoch < 2:
            rest = reference[epoch][taken:] or reference[epoch + 1]
            following = reference[epoch + 1 if taken < len(reference[epoch]) else epoch + 2]
            with graph() as again:
                again.load_state_dict(state)
                assert list(again) == rest
                assert list(again) == following


def test_nobody_steals_from_a_new_pass():
    """A thread left over from an older pass is told that its pass is over; a new one reads."""
    source = Pulled(listed(list(range(SIZE))))
    node = WithEpoch(source)
    node.reset()
    read, go = threading.Event(), threading.Event()
    old = []

    def left_over():
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
    assert source.count == 1
    assert [first, *node] == pairs(range(SIZE), 1)
    assert old == pairs([0], 0)


@pytest.mark.parametrize("batch", [None, 2])
def test_with_a_mapper(tmp_path, batch):
    """A pipeline that has SamplerWrapper gets its samples in the right epochs, batched or not."""
    policy = ReusePolicy(3, 1)
    node = SamplerWrapper(SequentialSampler(range(SIZE)))
    if batch:
        node = Batcher(node, batch, drop_last=False)
    loader = Loader(ReuseMapper(WithEpoch(node), sample_of, tmp_path, policy, finish=with_key))
    for epoch in range(5):
        items = list(loader)
        assert flat(items) == [expected(policy, i, epoch) for i in range(SIZE)]
        assert batch is None or [len(item) for item in items] == [2, 2, 2, 1]


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (TypeError, "source", [1, 2]),
        (TypeError, "source", None),
        (TypeError, "source", SequentialSampler(range(2))),
        (ValueError, "start_epoch", -1),
        (TypeError, "start_epoch", 1.0),
        (TypeError, "start_epoch", True),
        (TypeError, "start_epoch", "1"),
    ],
    ids=repr,
)
def test_bad_arguments(error, name, value):
    """One error at once that names the argument and shows the value."""
    options = {"source": ReuseSampler(3, ReusePolicy(2)), name: value}
    with pytest.raises(error, match=name) as caught:
        WithEpoch(options.pop("source"), **options)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [3, {}, {"epoch": 1}, {"source": {}}, {"skip": 0, "ahead": [], "source": {}}]
    + [{"epoch": epoch, "source": {}} for epoch in (-1, 2.0, True, None, "x", float("nan"), 2**63)],
    ids=repr,
)
def test_a_state_that_is_none_of_with_epoch_is_refused(wrong):
    """The error shows it, and the next reset begins the next epoch."""
    node = WithEpoch(listed([0, 1]))
    list(node)
    with pytest.raises(StateMismatchError, match="must be one of WithEpoch"):
        node.reset(wrong)
    node.reset()
    assert list(node) == [IndexEpoch(0, 1), IndexEpoch(1, 1)]
