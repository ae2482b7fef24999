"""digest() is the same for the same samples, however they were delivered, and for no others."""

import copy
import re
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from helpers import FORKS, fails
from torch.utils.data import DataLoader
from torchdata.nodes import Batcher, Loader, Prefetcher

from reuseloader import (
    IndexEpoch,
    ReuseDataLoader,
    ReuseDataset,
    ReuseError,
    ReusePolicy,
    ReuseSampler,
    StateMismatchError,
)
from reuseloader import nodes as nodes_of
from reuseloader.digest import Digest

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE = 14
POLICY = ReusePolicy(3, 5)


def build(key):
    return {
        "image": torch.rand(4, generator=key.generator()),
        "text": ["a", b"b", None, 1.5, (key.index, True)],
        "array": key.rng().normal(size=(2, 2)),
    }


def finish(sample, key):
    return {**sample, "use": key.use_seed}


def loader_of(store, **options):
    options = {"finish": finish, "collate_fn": list, "batch_size": 3, "digest": True, **options}
    return ReuseDataLoader(
        options.pop("build", build), SIZE, store, lifetime=3, seed=POLICY.seed, **options
    )


def mapper_of(store, hop=None, **options):
    source = nodes_of.ReuseSampler(SIZE, POLICY)
    source = source if hop is None else Batcher(source, hop, drop_last=False)
    options = {"finish": finish, "digest": True, **options}
    return nodes_of.ReuseMapper(source, options.pop("build", build), store, POLICY, **options)


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The digests of epochs 0 and 1."""
    digests = []
    with loader_of(tmp_path_factory.mktemp("right")) as loader:
        for _ in range(2):
            list(loader)
            digests.append(loader.digest())
    return digests


WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        WORKERS,
        {**WORKERS, "persistent_workers": True, "shuffle": True, "batch_size": 5},
        {"batch_size": None, "collate_fn": None},
        {"sampler": torch.utils.data.SequentialSampler(range(SIZE))},
        {"format": "tensors"},
    ],
    ids=["shuffled", "workers", "persistent", "no batches", "sampler", "tensors"],
)
def test_every_loader_has_the_same(options, right, store):
    """Whatever its order, batches, workers and format."""
    with loader_of(store, **options) as loader:
        for digest in right:
            list(loader)
            assert loader.digest() == digest


@pytest.mark.parametrize("hop", [None, 4], ids=["pairs", "lists"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prebatch": 3},
        {"num_workers": 2},
        {"num_workers": 2, "in_order": False},
        {"num_workers": 2, "method": "process", "multiprocessing_context": "fork"},
    ],
    ids=["inline", "prebatch", "threads", "late", "processes"],
)
def test_every_graph_has_the_same(options, hop, right, store):
    """And it is that of the loaders."""
    with mapper_of(store, hop, **options) as mapper:
        loader = Loader(mapper)
        for digest in right:
            list(loader)
            assert mapper.digest() == digest


def test_a_graph_that_was_resumed_has_that_of_the_whole_pass(right, store):
    """At every position; the state of an ended pass begins the next one."""
    for stop in range(SIZE + 2):
        first = Loader(Prefetcher(mapper_of(store), 2))
        iterator = iter(first)
        for _ in range(stop):
            next(iterator, None)
        state = first.state_dict()
        mapper = mapper_of(store)
        loader = Loader(Prefetcher(mapper, 2))
        loader.load_state_dict(state)
        passes = [list(loader)]
        if not passes[0]:
            passes.append(list(loader))
        assert mapper.digest() == right[int(stop >= SIZE)]
        vars(first).clear()
        vars(loader).clear()


def test_a_resumed_graph_that_cannot_know_says_so(store):
    """The state was saved without a digest."""
    first = Loader(mapper_of(store, digest=False))
    next(iter(first))
    mapper = mapper_of(store)
    loader = Loader(mapper)
    loader.load_state_dict(first.state_dict())
    list(loader)
    with fails(ReuseError, match="no pass was delivered whole"):
        mapper.digest()


def test_a_dataset_has_that_of_its_epoch(right, store):
    """Since it was set; by all workers."""
    dataset = ReuseDataset(build, SIZE, store, POLICY, finish=finish, digest=True)
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        with fails(ReuseError, match="no pass"):
            dataset.digest()
        list(DataLoader(dataset, collate_fn=list, **WORKERS))
        assert dataset.digest() == right[epoch]
    other = copy.deepcopy(dataset)
    list(other)
    assert other.digest() == right[0]


@pytest.mark.parametrize(
    "wrong", [3, "a digest", [1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2.0, 3], [0, -1, 2, 3]], ids=repr
)
def test_a_state_whose_digest_is_none_is_refused(wrong, store):
    """The error shows the state."""
    first = Loader(mapper_of(store))
    next(iter(first))
    state = first.state_dict()
    state["root"]["digest"] = wrong
    loader = Loader(mapper_of(store))
    loader.load_state_dict(state)
    with fails(StateMismatchError, match="the state must be one of ReuseMapper"):
        iter(loader)


def in_a_rank(loader, sender):
    list(loader)
    sender.send([loader.digest(), loader.dataset.digest()])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_rank_that_was_handed_the_loader_has_its_own(method, right, store):
    """What the other process has delivered of the same epoch is not part of it."""
    loader = loader_of(store, multiprocessing_context=None)
    list(loader)
    loader.set_epoch(0)
    receiver, sender = get_context(method).Pipe(duplex=False)
    process = get_context(method).Process(target=in_a_rank, args=(loader, sender))
    process.start()
    assert receiver.recv() == [right[0], right[0]]
    process.join()
    dataset = ReuseDataset(build, SIZE, store, POLICY, finish=finish, digest=True)
    list(dataset)
    dataset.set_epoch(0)
    process = get_context("fork").Process(target=of_a_dataset, args=(dataset, sender))
    process.start()
    assert receiver.recv() == right[0]
    process.join()


def of_a_dataset(dataset, sender):
    list(dataset)
    sender.send(dataset.digest())


@pytest.mark.parametrize("digest", [False, True])
def test_a_digest_changes_nothing_else(digest, store):
    """Samples and hits are the same with and without."""
    with loader_of(store, digest=digest) as loader:
        samples = [sample for batch in loader for sample in batch]
    for index, sample in enumerate(samples):
        expected = finish(build(POLICY.key(index, 0)), POLICY.key(index, 0))
        assert torch.equal(sample["image"], expected["image"])
        assert sample["use"] == expected["use"]


# --- what makes another one -----------------------------------------------------------------------

CHANGES = {
    "a bit": lambda s: {**s, "image": torch.nextafter(s["image"], torch.ones(4))},
    "dtype": lambda s: {**s, "image": s["image"].double()},
    "shape": lambda s: {**s, "image": s["image"].reshape(2, 2)},
    "type": lambda s: {**s, "array": torch.from_numpy(s["array"])},
    "a key": lambda s: {**s, "more": None},
    "1 and True": lambda s: {**s, "text": [*s["text"][:-1], (s["text"][-1][0], 1)]},
    "tuple and list": lambda s: {**s, "text": tuple(s["text"])},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_content_has_another(change, right, store):
    """In one sample alone."""

    def changed(sample, key):
        return finish(change(sample) if key.index == 3 else sample, key)

    with loader_of(store, finish=changed) as loader:
        list(loader)
        assert loader.digest() != right[0]


def test_other_samples_have_another(right, store):
    """Fewer, other indices for the same content, another epoch."""
    with loader_of(store, drop_last=True) as loader:
        list(loader)
        assert re.fullmatch(r"[0-9a-f]{32}-12-0", loader.digest())
        assert loader.digest() not in right
    assert str(Digest.of(IndexEpoch(1, 2), 3)) != str(Digest.of(IndexEpoch(2, 2), 3))
    assert str(Digest.of(IndexEpoch(1, 2), 3)) != str(Digest.of(IndexEpoch(1, 3), 3))
    assert right[0] != right[1]


def test_the_digest_itself_is_fixed():
    """A text that was written down last year can be compared."""
    total = Digest.of(IndexEpoch(1, 2), {"x": np.arange(3, dtype="<i4")})
    total += Digest.of(IndexEpoch(2, 2), None)
    assert str(total) == "4eea7b279bbf1944b80fc2c6a44191c4-2-2"


# --- whole passes alone ---------------------------------------------------------------------------


def test_a_pass_that_was_broken_off_has_none(right, store):
    """The newest whole one counts; that of an epoch begun anew is not spoilt by the broken one."""
    with loader_of(store) as loader:
        with fails(ReuseError, match="no pass was delivered whole"):
            loader.digest()
        next(iter(loader))
        with fails(ReuseError, match="no pass was delivered whole"):
            loader.digest()
        loader.set_epoch(0)
        list(loader)
        assert loader.digest() == right[0]
        next(iter(loader))
        assert loader.digest() == right[0]


def test_passes_side_by_side(right, store):
    """Of two epochs each has its own; two of the same epoch cannot be told apart, and say so."""
    with loader_of(store) as loader:
        first, second = iter(loader), iter(loader)
        next(first), next(second), next(first)
        list(first)
        assert loader.digest() == right[0]
        list(second)
        assert loader.digest() == right[1]
        loader.set_epoch(0)
        first = iter(loader)
        next(first)
        loader.set_epoch(0)
        second = iter(loader)
        next(second)
        next(first)
        list(second)
        with fails(ReuseError, match="another one of the same epoch"):
            loader.digest()


def test_without_digest_true_there_is_none(store):
    """The error says what to give."""
    for thing in (
        loader_of(store, digest=False),
        mapper_of(store, digest=False),
        ReuseDataset(build, SIZE, store, POLICY),
    ):
        with fails(ReuseError, match="needs digest=True"):
            thing.digest()


def test_types_that_have_no_content_are_named(store):
    """Those that format="tensors" does not take."""
    for thing in (
        loader_of(store, build=lambda key: {"x": [1, {2}]}),
        Loader(mapper_of(store, build=lambda key: {"x": [1, {2}]})),
    ):
        with fails(TypeError, match=r"digest=True cannot take sample\['x'\]\[1\] of index \d+"):
            list(thing)


@pytest.mark.parametrize("make", [loader_of, mapper_of])
def test_digest_must_be_a_bool(make, store):
    """As every argument, at construction."""
    with fails(TypeError, match="digest must be a bool, got 'yes'"):
        make(store, digest="yes")


def test_under_a_sampler_set_epoch_tells_the_dataset(right, store):
    """The pair's epoch decides what is delivered, set_epoch which digest is told."""
    dataset = ReuseDataset(build, SIZE, store, POLICY, finish=finish, digest=True)
    loader = DataLoader(dataset, sampler=ReuseSampler(SIZE, POLICY), collate_fn=list)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        list(loader)
        assert dataset.digest() == right[epoch]
