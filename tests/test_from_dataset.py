"""FromDataset: a build over a dataset that is already there."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from helpers import FORKS, Caught, bits, fails
from nodes_helpers import INLINE, PROCESSES, THREADS, flat, variant
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from reuseloader import FromDataset, IndexEpoch, ReuseDataLoader, ReuseDataset, ReusePolicy

pytestmark = [pytest.mark.filterwarnings(FORKS), pytest.mark.usefixtures("no_worker_left")]

SIZE = 11  # that of a Graph
POLICY = ReusePolicy(3, 7)


class Noisy(Dataset):
    """Draws from every global state, as augmentations do."""

    def __getitem__(self, index):
        return {
            "index": index,
            "random": random.random(),
            "numpy": np.random.rand(2),
            "torch": torch.rand(2),
        }

    def __len__(self):
        return SIZE

    def __repr__(self):
        return "Noisy()"


class Other(Noisy):
    pass


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Items:
    """No Dataset of torch's, but map-style."""

    def __getitem__(self, index):
        return -index


BUILD = FromDataset(Noisy())


def epoch_of(policy, epoch):
    """The samples of an epoch, by index, as the closed form has them."""
    return {index: bits(BUILD(policy.key(index, epoch).first)) for index in range(SIZE)}


def by_index(samples):
    return {sample["index"]: bits(sample) for sample in samples}


def test_it_is_the_item_of_the_index_seeded_by_the_key():
    """The same as a block of key.seeded() around it."""
    key = POLICY.key(5, 4)
    with key.seeded():
        wanted = Noisy()[5]
    assert bits(BUILD(key)) == bits(wanted)
    assert bits(BUILD(POLICY.key(5, 7))) != bits(wanted)


@pytest.mark.parametrize(
    "dataset", [Items(), [0, -1, -2], {0: 0, 1: -1, 2: -2}, Subset([0, 0, -1, -2], [1, 2, 3])]
)
def test_anything_with_items_will_do(dataset, store):
    """A list, a mapping, an object of the user's, a Subset."""
    reused = ReuseDataset(FromDataset(dataset), 3, store, POLICY)
    assert list(reused) == [0, -1, -2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_same_with_any_workers(workers, store):
    """The random parts are those of the closed form, epoch after epoch."""
    with ReuseDataLoader(
        BUILD, SIZE, store, lifetime=3, seed=7, batch_size=4, collate_fn=list, num_workers=workers
    ) as loader:
        for epoch in range(4):
            assert by_index(flat(list(loader))) == epoch_of(POLICY, epoch)


@pytest.mark.parametrize(
    "graph",
    [INLINE, PROCESSES, variant(PROCESSES, hop=3), variant(PROCESSES, batch=2, prefetch=2)],
    ids=str,
)
def test_a_mapper_gives_the_same(graph, store):
    """The random parts are those of the closed form, epoch after epoch."""
    with graph.loader(store, BUILD, finish=None) as loader:
        for epoch in range(4):
            assert by_index(flat(list(loader))) == epoch_of(graph.policy, epoch)


def test_threads_are_refused(store):
    """The states are those of all threads; the error says how to go on."""
    text = r"FromDataset\(dataset\) can be `lambda key: dataset\[key.index\]`"
    with THREADS.loader(store, BUILD, finish=None) as loader, fails(RuntimeError, text):
        list(loader)


def test_a_finish_in_place_leaves_the_dataset_alone(store):
    """TensorDataset gives views of its tensors."""
    rows = torch.arange(12.0).reshape(4, 3)
    reused = ReuseDataset(
        FromDataset(TensorDataset(rows)),
        4,
        store,
        POLICY,
        finish=lambda sample, key: sample[0].neg_(),
    )
    for epoch in range(4):
        for index in range(4):
            assert torch.equal(reused[IndexEpoch(index, epoch)], -rows[index])
    assert torch.equal(rows, torch.arange(12.0).reshape(4, 3))


def test_it_can_be_pickled_and_copied():
    """If the dataset can."""
    key = POLICY.key(2, 2)
    for other in pickle.loads(pickle.dumps(BUILD)), copy.deepcopy(BUILD):
        assert repr(other) == repr(BUILD) == "FromDataset(Noisy())"
        assert bits(other(key)) == bits(BUILD(key))


def test_a_directory_remembers_the_class_of_the_dataset(store):
    """The warning of another build names both datasets."""
    ReuseDataset(BUILD, SIZE, store, POLICY).close()
    with Caught() as caught:
        ReuseDataset(FromDataset(Noisy()), SIZE, store, POLICY).close()
    assert caught == []
    with Caught() as caught:
        ReuseDataset(FromDataset(Other()), SIZE, store, POLICY).close()
    assert len(caught) == 1
    assert "of FromDataset(Noisy), now for 11 of FromDataset(Other)" in caught[0]


def test_a_stream_is_refused():
    """It has no index."""
    with pytest.raises(TypeError, match=r"dataset must be map-style, got .*Stream.* has no index"):
        FromDataset(Stream())


@pytest.mark.parametrize("dataset", [None, 3, range, Noisy, {1, 2}, iter([1]), lambda key: key])
def test_what_has_no_items_is_refused(dataset):
    """Also a class in the place of an instance."""
    with pytest.raises(TypeError, match="dataset must be an object with __getitem__, got "):
        FromDataset(dataset)


def test_a_dataset_in_the_place_of_build_is_told_of_it(store):
    """The error of a bare dataset says what to write."""
    with pytest.raises(TypeError, match=r"got the Dataset Noisy\(\): pass FromDataset\(dataset\)"):
        ReuseDataset(Noisy(), SIZE, store, POLICY)
