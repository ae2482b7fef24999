"""What finish does to a sample in place reaches neither the store nor what build keeps."""

import os
import threading

import numpy as np
import pytest
import torch
from helpers import FORKS, Labelled, Thing, bits, fails
from nodes_helpers import PROCESSES, THREADS, all_modes, flat, loading, variant
from torch.utils.data import TensorDataset
from torchdata.nodes import Loader

from reuseloader import IndexEpoch, ReuseDataLoader, ReuseDataset, ReusePolicy

pytestmark = [pytest.mark.filterwarnings(FORKS), pytest.mark.usefixtures("no_worker_left")]

SIZE = 11  # that of a Graph
EPOCHS = 5
SEED = 7


class Rows:
    """A build whose samples are views of what it keeps."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.tensors = TensorDataset(torch.rand(SIZE, 4, generator=generator))
        self.array = np.random.default_rng(2).random((4, 3, SIZE))

    def __call__(self, key):
        (tensor,) = self.tensors[key.index]
        array = self.array[:, :, key.index]
        return {"index": key.index, "tensor": tensor, "more": [(array, array.T)]}


def spoil(sample, key):
    """A random finish, all in place."""
    rng = np.random.default_rng(key.use_seed)
    ((array, transposed),) = sample["more"]
    array -= array.mean() * rng.random()
    transposed += 1
    sample["tensor"].mul_(rng.random())
    sample["use"] = key.use
    return sample


def wanted(policy, epoch):
    """The finished samples of an epoch, by index, each from data of its own."""
    keys = [policy.key(index, epoch) for index in range(SIZE)]
    return {key.index: bits(spoil(separate(Rows()(key)), key)) for key in keys}


def separate(sample):
    ((array, transposed),) = sample["more"]
    arrays = array.copy(order="C"), transposed.copy(order="C")
    return {**sample, "tensor": sample["tensor"].clone(), "more": [arrays]}


def assert_finished(samples, policy, epoch):
    """These are the finished samples of ``epoch``, each once, bit for bit."""
    assert {sample["index"]: bits(sample) for sample in samples} == wanted(policy, epoch)
    assert len(samples) == SIZE


@pytest.fixture
def rows():
    """A build that is as it was after the test."""
    rows = Rows()
    yield rows
    assert torch.equal(rows.tensors.tensors[0], Rows().tensors.tensors[0])
    assert (rows.array == Rows().array).all()


lifetimes = pytest.mark.parametrize("lifetime", [1, 3])
formats = pytest.mark.parametrize("format", ["torch", "tensors"])


@lifetimes
@formats
def test_a_dataset_keeps_what_it_gave(lifetime, format, rows, store):
    """At every use, and after what is stored is lost, finish gets the sample as it was built."""
    dataset = ReuseDataset(
        rows, SIZE, store, ReusePolicy(lifetime, SEED), finish=spoil, format=format
    )
    for epoch in range(EPOCHS):
        for _ in range(2):
            samples = [dataset[IndexEpoch(index, epoch)] for index in range(SIZE)]
            assert_finished(samples, dataset.policy, epoch)
        for file in store.glob("*0.pt"):
            file.unlink()


@lifetimes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_keeps_what_it_gave(workers, lifetime, rows, store):
    """In this process and in workers that live on."""
    with ReuseDataLoader(
        rows,
        SIZE,
        store,
        lifetime=lifetime,
        seed=SEED,
        finish=spoil,
        shuffle=True,
        batch_size=4,
        collate_fn=list,
        num_workers=workers,
        persistent_workers=workers > 0,
    ) as loader:
        for epoch in range(EPOCHS):
            assert_finished(flat(list(loader)), loader.policy, epoch)


@lifetimes
@all_modes
@pytest.mark.parametrize("hop", [None, 4])
def test_a_mapper_keeps_what_it_gave(hop, graph, lifetime, rows, store):
    """Inline, in threads and in processes, pair by pair and in lists."""
    graph = variant(graph, lifetime=lifetime, hop=hop)
    with graph.loader(store, rows, finish=spoil) as loader:
        for epoch in range(EPOCHS):
            assert_finished(flat(list(loader)), graph.policy, epoch)


def where(sample, key):
    return os.getpid(), threading.get_ident()


@pytest.mark.parametrize("hop", [None, 4])
@pytest.mark.parametrize("graph", [THREADS, PROCESSES], ids=["threads", "processes"])
def test_finish_runs_where_the_sample_is_read(graph, hop, rows, store):
    """In the consumer; for lists in the workers, which then make the whole list."""
    here = os.getpid(), threading.get_ident()
    with variant(graph, hop=hop).loader(store, rows, finish=where) as loader:
        for _ in range(2):
            seen = set(flat(list(loader)))
            assert (here in seen) == (hop is None)
            assert hop or seen == {here}
            assert {pid for pid, _ in seen} == {here[0]} or graph is PROCESSES


# The order of the elements in memory: a sum of them, for one, is rounded accordingly


def laid_out(key):
    """Tensors of every layout, some of them parts of a larger one."""
    generator = torch.Generator().manual_seed(key.seed)
    large = torch.rand(6, 8, 4, generator=generator)
    return {
        "index": key.index,
        "contiguous": large.clone(),
        "transposed": large[0].clone().T,
        "permuted": large.clone().permute(2, 0, 1),
        "one channel": large[:, :, :1].clone().permute(2, 0, 1),
        "channels_last": large.reshape(2, 4, 6, 4).to(memory_format=torch.channels_last),
        "channels_last_3d": large.reshape(1, 2, 4, 6, 4).to(memory_format=torch.channels_last_3d),
        "rows": large[2:4],
        "columns": large[:, 2:4],
        "steps": large[::2, :, ::2],
        "permuted part": large[1:3].permute(2, 1, 0),
        "diagonal": large[0].diagonal(),
        "expanded": large[0, 0].expand(3, 4),
        "expanded part": large[:, :1, :1].expand(6, 8, 4),
        "overlapping": large[0, 0].clone().as_strided((2, 2), (1, 1)),
        "windows": large.reshape(-1).unfold(0, 3, 1),
        "empty": large[:0].permute(2, 1, 0),
    }


def strides_of(sample, key=None):
    """A finish that tells how the elements lie."""
    tensors = {name: value for name, value in sample.items() if name != "index"}
    return {"index": sample["index"], **{name: t.stride() for name, t in tensors.items()}}


def strides_wanted(policy, format):
    """By index: as they were at the build, or, without pickle, those of contiguous tensors."""
    memory_format = {"torch": torch.preserve_format, "tensors": torch.contiguous_format}[format]
    wanted = {}
    for index in range(SIZE):
        sample = laid_out(policy.key(index, 0))
        for name in sample.keys() - {"index"}:
            sample[name] = sample[name].clone(memory_format=memory_format)
        wanted[index] = strides_of(sample)
    return wanted


def twice(key):
    tensor = torch.zeros(2)
    return [tensor, tensor]


def changed(sample, key):
    """A finish that changes the first of two tensors."""
    sample[0] += 1
    return sample


@lifetimes
@formats
def test_a_dataset_gives_the_same_strides_at_every_use(lifetime, format, store):
    """At builds and at hits."""
    policy = ReusePolicy(lifetime, SEED)
    dataset = ReuseDataset(laid_out, SIZE, store, policy, finish=strides_of, format=format)
    for epoch in range(EPOCHS):
        samples = [dataset[IndexEpoch(index, epoch)] for index in range(SIZE)]
        assert {sample["index"]: sample for sample in samples} == strides_wanted(policy, format)
    assert (dataset.stats().hits > 0) == (lifetime > 1)


@lifetimes
@formats
@all_modes
@pytest.mark.parametrize("hop", [None, 4])
def test_a_mapper_gives_the_same_strides_at_every_use(hop, graph, format, lifetime, store):
    """At builds, stored or not, and at hits; whether or not they cross to another process."""
    graph = variant(graph, lifetime=lifetime, hop=hop)
    wanted = strides_wanted(graph.policy, format)
    with (
        graph.mapper(store, laid_out, finish=strides_of, format=format) as mapper,
        loading(graph.root(mapper)) as loader,
    ):
        for _ in range(EPOCHS):
            assert {sample["index"]: sample for sample in flat(list(loader))} == wanted
            for file in store.glob("*0.pt"):
                file.unlink()
        assert (mapper.stats().hits > 0) == (lifetime > 1)


@formats
def test_no_memory_is_shared_within_a_sample(format, store):
    """What finish does to one tensor in place reaches no other one, at builds and at hits."""

    def build(key):
        whole = torch.arange(12.0).reshape(3, 4)
        return [whole, whole.T, whole.view(-1), whole[1], whole[:1].expand(3, 4)]

    def finish(sample, key):
        for number, tensor in enumerate(sample):
            tensor += number
        return sample

    policy = ReusePolicy(2, SEED)
    dataset = ReuseDataset(build, 1, store, policy, finish=finish, format=format)
    wanted = bits([tensor + number for number, tensor in enumerate(build(None))])
    assert bits(dataset[IndexEpoch(0, 0)]) == wanted
    assert bits(dataset[IndexEpoch(0, 1)]) == wanted
    assert dataset.stats().hits == 1


@formats
@all_modes
@pytest.mark.parametrize("lifetime", [1, 2])
def test_a_tensor_that_is_there_twice_is_so_at_every_use(lifetime, graph, format, store):
    """One tensor in the torch format, two without pickle: at builds, stored or not, and at hits."""
    graph = variant(graph, lifetime=lifetime, size=1)
    with graph.mapper(store, twice, finish=changed, format=format) as mapper:
        loader = Loader(mapper)
        samples = [bits(next(iter(loader))) for _ in range(2)]
        assert mapper.stats().hits == lifetime - 1
    changes = {"torch": (1, 1), "tensors": (1, 0)}[format]
    assert samples == [bits([torch.full((2,), float(change)) for change in changes])] * 2


# What can be copied


def given(sample, store, lifetime=1):
    """What finish gets of a build that returns ``sample``."""
    dataset = ReuseDataset(
        lambda key: sample, 1, store, ReusePolicy(lifetime), finish=lambda sample, key: sample
    )
    return dataset[IndexEpoch(0, 0)]


@pytest.mark.parametrize(
    "sample",
    [
        None,
        "text",
        torch.nn.Parameter(torch.ones(2)),
        torch.eye(3).to_sparse(),
        torch.rand(2, 3).T,
        torch.ones(1).expand(4),
        np.array(["a", "b"]),
        np.array([[1, 2]], dtype=">i4"),
        np.float32(3),
        Labelled(torch.ones(3)[1:], {"deep": [torch.zeros(0)]}),
        Thing(np.arange(6).reshape(2, 3).T),
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_a_copy_has_the_same_values_and_types(sample, store):
    """Whatever a sample is made of."""
    copied = given(sample, store)
    if isinstance(sample, torch.Tensor) and sample.is_sparse:
        copied, sample = copied.to_dense(), sample.to_dense()
    assert bits(copied) == bits(sample)


def test_objects_in_an_array_are_copied_too(store):
    """An array of objects is as deep as a list."""
    inner = [1]
    array = np.empty(2, dtype=object)
    array[:] = [inner, inner]
    copied = given(array, store)
    assert copied[0] == inner
    assert copied[0] is copied[1]
    assert copied[0] is not inner


def test_a_part_of_a_big_tensor_is_copied_alone(store):
    """The copy of a row does not hold the memory of all rows."""
    copied = given({"row": torch.zeros(1000, 10)[3]}, store)
    assert copied["row"].untyped_storage().nbytes() == 40


def test_attributes_of_a_tensor_are_copied(store):
    """As they are when it is stored."""
    tensor = torch.ones(2)
    tensor.spacing = [1.0, 2.0]
    copied = given(tensor, store)
    assert copied.spacing == tensor.spacing
    assert copied.spacing is not tensor.spacing


def test_a_tensor_with_a_history_becomes_a_leaf(store):
    """As it does when it is read back: finish gets the same at every use."""
    tensor = torch.ones(2, requires_grad=True) * 2
    for epoch in range(2):
        dataset = ReuseDataset(
            lambda key: [tensor], 1, store, ReusePolicy(2), finish=lambda sample, key: sample
        )
        (copied,) = dataset[IndexEpoch(0, epoch)]
        assert copied.is_leaf
        assert copied.requires_grad
        assert torch.equal(copied, tensor)


def test_what_has_no_copy_is_named(store):
    """The error says where it is, and why there must be a copy."""
    with fails(TypeError) as caught:
        given({"image": torch.zeros(1), "lock": threading.Lock()}, store)
    assert caught.value.__notes__ == [
        "finish gets a copy of the sample; sample['lock'], of type lock, has none",
        "in build for index 0, epoch 0, generation 0",
    ]


def test_without_finish_nothing_is_copied(store):
    """What build returned is what is delivered."""
    sample = {"lock": threading.Lock()}
    dataset = ReuseDataset(lambda key: sample, 1, store, ReusePolicy(1))
    assert dataset[IndexEpoch(0, 0)] is sample
