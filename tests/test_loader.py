import collections
import contextlib
import functools
import inspect
import itertools
import os
import pickle
from collections import Counter
from multiprocessing import current_process, get_context

import numpy as np
import pytest
import torch
from helpers import (
    FORKS,
    Labelled,
    append,
    assert_right,
    bits,
    due,
    expected,
    fails,
    flat,
    index_of,
    keys,
    names,
    sample_of,
)
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from reuseloader import IndexEpoch, ReuseDataLoader, ReusePolicy, ReuseSampler

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE = 10
POLICY = ReusePolicy(3, 5)
IN_ORDER = "in_order" in inspect.signature(DataLoader).parameters  # torch 2.6 and later


def loader_of(build, path, size=SIZE, **options):
    """A loader of the policy above; batches are lists of samples unless said otherwise."""
    options = {"lifetime": 3, "seed": 5, "collate_fn": list, **options}
    return ReuseDataLoader(build, size, path, **options)


def order(epoch, policy=POLICY, size=SIZE):
    return policy.order(np.arange(size), epoch, size).tolist()


def indices(batches):
    return [[sample["index"] for sample in batch] for batch in batches]


# --- what is built, and what comes ----------------------------------------------------------------

WORKERS = {
    "none": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "persistent": {
        "num_workers": 2,
        "multiprocessing_context": "fork",
        "persistent_workers": True,
    },
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
}


@pytest.mark.parametrize(
    ("lifetime", "workers", "shuffle"),
    [
        *itertools.product((1, 2, 3, 5), ("none", "fork"), (True, False)),
        (2, "persistent", False),
        (3, "spawn", True),
    ],
)
def test_just_the_due_samples_are_built(shuffle, workers, lifetime, store, log):
    """Epoch 0 builds all, epoch e those with (e + i) % lifetime == 0; every sample is right."""
    policy = ReusePolicy(lifetime, 4)
    loader = loader_of(
        log.build,
        store,
        lifetime=lifetime,
        seed=4,
        shuffle=shuffle,
        batch_size=4,
        **WORKERS[workers],
    )
    for epoch in range(2 * lifetime + 1):
        samples = flat(loader)
        wanted = order(epoch, policy) if shuffle else list(range(SIZE))
        assert [sample["index"] for sample in samples] == wanted
        assert_right(samples, policy, epoch)
        assert log.take() == keys(policy, epoch, due(policy, epoch, SIZE))
        assert policy.builds(epoch, SIZE) == len(due(policy, epoch, SIZE))
    loader.close()


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "balanced": False}])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more than cores
def test_the_stream_is_the_same_for_any_number_of_workers(options, tmp_path):
    """Indices, keys and bits of every batch are equal for 0, 1, 2 and 3 workers."""
    streams = []
    for workers in range(4):
        loader = loader_of(
            sample_of,
            tmp_path / str(workers),
            batch_size=3,
            num_workers=workers,
            finish=with_use,
            **options,
        )
        streams.append([[bits(batch) for batch in loader] for _ in range(5)])
    assert streams[0] == streams[1] == streams[2] == streams[3]
    assert len({repr(stream) for stream in streams[0]}) == 5


def with_use(sample, key):
    return {**sample, "present": (key.epoch, key.use, key.use_seed, torch.rand(()).numel())}


@pytest.mark.parametrize("batch_size", [3, 6, 12])
def test_balanced_batches_build_the_same_number_each(batch_size, store, log):
    """In batches of a multiple of the lifetime each builds exactly its share."""
    loader = loader_of(log.build, store, size=24, shuffle=True, batch_size=batch_size)
    flat(loader)
    log.take()
    for _ in range(4):
        for _ in loader:
            assert len(log.take()) == batch_size // 3


def test_other_seeds_give_other_orders_and_samples(tmp_path):
    """Neighbouring seeds share neither the order of an epoch nor a sample."""
    runs = [
        flat(loader_of(sample_of, tmp_path / str(seed), seed=seed, shuffle=True, size=50))
        for seed in (0, 1, -1, 2**64)
    ]
    assert len({tuple(s["index"] for s in run) for run in runs}) == len(runs)
    assert len({sample["seed"] for run in runs for sample in run}) == 50 * len(runs)


@pytest.mark.parametrize("workers", [0, 2])
def test_changes_in_place_do_not_reach_the_store(workers, store):
    """What finish, collate_fn and the consumer do to a sample changes no later use of it."""
    loader = loader_of(
        sample_of, store, lifetime=10**9, finish=spoil, collate_fn=empty_out, num_workers=workers
    )
    for _ in range(3):
        for batch in loader:
            for sample, tensor in batch:
                key = ReusePolicy(10**9, 5).key(int(sample), 0)
                assert torch.equal(tensor, sample_of(key)["tensor"] + 1)
                tensor.zero_()


def spoil(sample, key):
    sample["tensor"] += 1
    return sample


def empty_out(samples):
    batch = [(sample["index"], sample["tensor"].clone()) for sample in samples]
    for sample in samples:
        sample["tensor"].zero_()
        sample.clear()
    return batch


def test_a_static_cache_builds_once(store, log):
    """With a huge lifetime everything is built in the first pass and never again."""
    loader = loader_of(log.build, store, lifetime=10**9, shuffle=True)
    first = sorted(bits(s) for s in flat(loader))
    assert len(log.take()) == SIZE
    for _ in range(3):
        assert sorted(bits(s) for s in flat(loader)) == first
    assert log.take() == []


# --- DataLoader's options -------------------------------------------------------------------------


class Plain(Dataset):
    """What a plain DataLoader needs to give the samples of epoch 0."""

    def __init__(self, build=sample_of, size=SIZE):
        self.build, self.size = build, size

    def __getitem__(self, index):
        return self.build(POLICY.key(index, 0))

    def __len__(self):
        return self.size


def join(samples):
    """A collate function of the user's."""
    return torch.stack([sample["tensor"] for sample in samples]), len(samples)


def in_batches(size):
    return [list(range(start, min(start + 4, size))) for start in range(0, size, 4)][::-1]


OPTIONS = {
    "none": dict,
    "batch_size": lambda: {"batch_size": 4},
    "batch_size beyond size": lambda: {"batch_size": 99},
    "drop_last": lambda: {"batch_size": 4, "drop_last": True},
    "drop_last of all": lambda: {"batch_size": 99, "drop_last": True},
    "no batches": lambda: {"batch_size": None},
    "no batches but collate_fn": lambda: {"batch_size": None, "collate_fn": type},
    "collate_fn": lambda: {"batch_size": 4, "collate_fn": join},
    "list as sampler": lambda: {"sampler": [3, 1, 1, 9], "batch_size": 3},
    "array as sampler": lambda: {"sampler": np.array([3, 1, 1, 9]), "batch_size": 3},
    "tensor as sampler": lambda: {"sampler": torch.tensor([3, 1, 1, 9]), "batch_size": 3},
    "empty sampler": lambda: {"sampler": []},
    "random subset": lambda: {
        "sampler": SubsetRandomSampler([1, 5, 7, 2], generator=torch.Generator().manual_seed(3))
    },
    "weighted": lambda: {
        "sampler": WeightedRandomSampler(
            [0.1] * SIZE, 30, generator=torch.Generator().manual_seed(3)
        )
    },
    "sampler and drop_last": lambda: {"sampler": range(5), "batch_size": 2, "drop_last": True},
    "sampler without batches": lambda: {"sampler": [4, 2], "batch_size": None},
    "batch_sampler": lambda: {"batch_sampler": BatchSampler(range(SIZE)[::-1], 4, drop_last=True)},
    "list as batch_sampler": lambda: {"batch_sampler": [[1, 2], [], [3], [1, 1, 1]][:1]},
    "uneven batches": lambda: {"batch_sampler": in_batches(SIZE)},
    "tuples as batches": lambda: {"batch_sampler": [(1, 2), (3,)]},
    "tensors as batches": lambda: {"batch_sampler": torch.arange(SIZE).split(3)},
    "arrays as batches": lambda: {"batch_sampler": np.array_split(np.arange(SIZE), 3)},
    "workers": lambda: {"num_workers": 2, "batch_size": 3},
    "one worker": lambda: {"num_workers": 1, "batch_size": 3, "prefetch_factor": 1},
    "workers without batches": lambda: {"num_workers": 2, "batch_size": None},
    "workers and batch_sampler": lambda: {"num_workers": 2, "batch_sampler": in_batches(SIZE)},
    "timeout": lambda: {"num_workers": 1, "timeout": 60},
    "persistent": lambda: {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
    "generator": lambda: {"generator": torch.Generator().manual_seed(1), "num_workers": 1},
    "context": lambda: {"num_workers": 1, "multiprocessing_context": "fork"},
    "context object": lambda: {"num_workers": 1, "multiprocessing_context": get_context("fork")},
    "worker_init_fn": lambda: {"num_workers": 1, "worker_init_fn": type},
    "in_order": lambda: {"num_workers": 2, **({"in_order": True} if IN_ORDER else {})},
    "shuffle None": lambda: {"shuffle": None},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_means_what_it_means_in_dataloader(name, store):
    """With any option batches, their number, len and attributes are those of a DataLoader."""
    plain = DataLoader(Plain(), **OPTIONS[name]())
    with ReuseDataLoader(sample_of, SIZE, store, lifetime=3, seed=5, **OPTIONS[name]()) as loader:
        assert isinstance(loader, DataLoader)
        assert len(loader) == len(plain)
        for attribute in ("batch_size", "drop_last", "num_workers", "timeout", "prefetch_factor"):
            assert getattr(loader, attribute) == getattr(plain, attribute)
        for attribute in ("collate_fn", "worker_init_fn", "in_order", "pin_memory"):
            assert getattr(loader, attribute, None) == getattr(plain, attribute, None)
        assert [bits(batch) for batch in loader] == [bits(batch) for batch in plain]
        assert len(flat(loader) if loader.batch_size else list(loader)) > 0 or len(plain) == 0


def worker_seeds(key):
    info = get_worker_info()
    return info.id, info.num_workers, info.seed, torch.initial_seed(), type(current_process())


@pytest.mark.parametrize("context", ["fork", get_context("fork")], ids=["str", "object"])
def test_workers_are_those_of_dataloader(context, store):
    """get_worker_info, the seeds drawn from ``generator`` and the kind of process are the same."""
    options = {"num_workers": 2, "multiprocessing_context": context, "collate_fn": list}

    def seeded():
        return {**options, "generator": torch.Generator().manual_seed(8)}

    plain = list(DataLoader(Plain(worker_seeds), **seeded()))
    assert list(ReuseDataLoader(worker_seeds, SIZE, store, lifetime=1, **seeded())) == plain
    assert {type_.__name__ for batch in plain for *_, type_ in batch} == {"ForkProcess"}


def test_worker_init_fn_is_called_once_in_each_worker(store, tmp_path):
    """worker_init_fn gets the number of its worker, once while workers persist."""
    notes = tmp_path / "notes"
    loader = loader_of(
        sample_of,
        store,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=functools.partial(note_worker, path=str(notes)),
    )
    for epoch in range(3):
        assert_right(flat(loader), POLICY, epoch)
    loader.close()
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert sorted(number for number, _ in lines) == ["0", "1"]
    assert len({pid for _, pid in lines}) == 2


def note_worker(number, path):
    append(path, f"{number} {os.getpid()}\n")


@pytest.mark.skipif(not IN_ORDER, reason="this DataLoader has no in_order")
def test_in_order_false_gives_the_same_samples(store):
    """Out of order the same batches come, each in its epoch, and no pass loses one."""
    loader = loader_of(
        sample_of, store, shuffle=True, batch_size=2, num_workers=2, in_order=False, finish=with_use
    )
    for epoch in range(4):
        batches = list(loader)
        wanted = [order(epoch)[i : i + 2] for i in range(0, SIZE, 2)]
        assert Counter(map(tuple, indices(batches))) == Counter(map(tuple, wanted))
        for sample in flat(batches):
            assert sample["present"][0] == epoch
            assert sample["seed"] == POLICY.key(sample["index"], epoch).seed


Point = collections.namedtuple("Point", ["x", "y"])


class Named(dict):
    """A dict subclass."""


def point(key):
    return Point(torch.ones(2), key.index)


def named(key):
    return Named(x=torch.ones(2), y=key.index)


def labelled(key):
    return Labelled(torch.ones(2), key.index)


def one_of(samples):
    return samples[0]


@pytest.mark.parametrize("collate_fn", [None, list, one_of])
@pytest.mark.parametrize("build", [point, named, labelled])
def test_custom_types_come_as_from_dataloader(build, collate_fn, store):
    """No wrapper type is added: a pass gives the types, or the error, that DataLoader gives."""
    plain = DataLoader(Plain(build), collate_fn=collate_fn)
    for pass_ in range(2):
        loader = ReuseDataLoader(build, SIZE, store, lifetime=3, collate_fn=collate_fn)
        assert outcome(loader) == outcome(plain), pass_


def outcome(loader):
    """The bits of all batches, or the error that comes instead."""
    try:
        return [bits(batch) for batch in loader]
    except TypeError as error:
        return str(error)


def test_pin_memory_is_that_of_dataloader(store):
    """pin_memory goes to DataLoader, which warns where there is no accelerator."""
    loader = loader_of(sample_of, store, pin_memory=True)
    assert loader.pin_memory is True
    if torch.cuda.is_available():
        assert all(sample["tensor"].is_pinned() for sample in flat(loader))
    else:
        with pytest.warns(UserWarning, match="pin_memory"):
            assert_right(flat(loader), POLICY, 0)


BAD_OPTIONS = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"sampler": [1, 2], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": 1.5},
    {"batch_size": "3"},
    {"batch_size": True},
    {"drop_last": 3},
    {"drop_last": None},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "thread", "num_workers": 1},
    {"multiprocessing_context": 3, "num_workers": 1},
    {"unknown": 3},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=repr)
def test_errors_about_options_are_those_of_dataloader(options, store):
    """A bad option, or two that exclude each other, is DataLoader's error word for word."""
    with pytest.raises((TypeError, ValueError)) as wanted:
        DataLoader(Plain(), **options)
    with pytest.raises(wanted.type) as caught:
        ReuseDataLoader(sample_of, SIZE, store, lifetime=3, **options)
    assert str(caught.value) == str(wanted.value)


def test_attributes_are_guarded_like_dataloaders(store):
    """What DataLoader does not let one set later is refused here as well."""
    loader = loader_of(sample_of, store)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set"):
            setattr(loader, name, None)


# --- samplers of the user's -----------------------------------------------------------------------


class Own(Sampler):
    """A sampler of the user's, with or without epochs."""

    def __init__(self, items):
        self.items = items
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(self.items)

    def __len__(self):
        return len(self.items)


class OwnWithEpochs(Own):
    def __init__(self, items):
        super().__init__(items)
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class WithoutLen:
    """All that DataLoader needs of a sampler to be iterated."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def one(sample):
    """A sample as a batch of one."""
    return [sample]


class EpochBatches(OwnWithEpochs):
    """A batch sampler whose batches depend on the epoch."""

    def __iter__(self):
        rotation = self.epochs[-1] % len(self.items)
        return iter(self.items[rotation:] + self.items[:rotation])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "way", ["sampler", "sampler without batches", "batch_sampler", "inner sampler"]
)
def test_a_samplers_set_epoch_is_called_at_each_pass(way, workers, store):
    """A sampler with set_epoch, given in whatever way, hears each pass's epoch, once."""
    own = OwnWithEpochs([[4, 1], [2]] if way == "batch_sampler" else [4, 1, 2])
    options = {
        "sampler": {"sampler": own, "batch_size": 2},
        "sampler without batches": {"sampler": own, "batch_size": None, "collate_fn": one},
        "batch_sampler": {"batch_sampler": own},
        "inner sampler": {"batch_sampler": BatchSampler(own, 2, drop_last=False)},
    }[way]
    loader = loader_of(sample_of, store, num_workers=workers, start_epoch=3, **options)
    assert own.epochs == []
    for epoch in (3, 4):
        samples = flat(loader)
        assert [sample["index"] for sample in samples] == [4, 1, 2]
        assert_right(samples, POLICY, epoch)
    next(iter(loader))
    loader.set_epoch(9)
    list(loader)
    assert own.epochs == [3, 4, 5, 9]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"sampler": WithoutLen([4, 1, 2]), "batch_size": 2},
        {"sampler": WithoutLen([4, 1, 2]), "batch_size": None, "collate_fn": one},
        {"batch_sampler": WithoutLen([[4, 1], [2]])},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_sampler_needs_no_len(options, workers, store):
    """A sampler without ``__len__`` is followed, as in DataLoader; only len(loader) has none."""
    loader = loader_of(sample_of, store, num_workers=workers, **options)
    for epoch in range(3):
        samples = flat(loader)
        assert [sample["index"] for sample in samples] == [4, 1, 2]
        assert_right(samples, POLICY, epoch)
    with pytest.raises(TypeError, match="len"):
        len(loader)


@pytest.mark.parametrize("options", [{"sampler": [-1]}, {"batch_sampler": [[-SIZE, -1]]}])
def test_negative_indices_of_a_sampler_count_from_the_end(options, store):
    """-1 from a sampler is the last index or an IndexError, as in the dataset itself."""
    loader = loader_of(sample_of, store, **options)
    with contextlib.suppress(IndexError):
        assert {sample["index"] for sample in flat(loader)} <= {0, SIZE - 1}
    assert "-0000001.pt" not in names(store)


def test_batches_that_depend_on_the_epoch_are_followed(store):
    """A batch sampler that orders by epoch is asked after it heard the epoch."""
    own = EpochBatches([[0, 1], [2, 3], [4]])
    loader = loader_of(sample_of, store, batch_sampler=own)
    for epoch in range(4):
        rotation = epoch % 3
        wanted = [[0, 1], [2, 3], [4]]
        assert indices(loader) == wanted[rotation:] + wanted[:rotation]


def test_a_distributed_sampler_is_followed(store):
    """DistributedSampler shuffles by the loader's epoch, as if set_epoch were called by hand."""
    wanted = DistributedSampler(range(SIZE), num_replicas=2, rank=1, shuffle=True)
    sampler = DistributedSampler(range(SIZE), num_replicas=2, rank=1, shuffle=True)
    loader = loader_of(sample_of, store, sampler=sampler, batch_size=2)
    for epoch in range(3):
        wanted.set_epoch(epoch)
        samples = flat(loader)
        assert [sample["index"] for sample in samples] == list(wanted)
        assert_right(samples, POLICY, epoch)


@pytest.mark.parametrize(
    "items",
    [
        [np.int64(3), np.int32(0), np.uint8(9)],
        list(torch.tensor([3, 0, 9])),
        [np.array(3), 0, torch.tensor(9, dtype=torch.int16)],
    ],
    ids=["numpy", "torch", "mixed"],
)
def test_samplers_may_yield_any_integer_type(items, store, log):
    """Whatever integers a sampler yields, there is one file an index and a plain int in the key."""
    loader = loader_of(log.build, store, sampler=items, lifetime=10**9)
    for _ in range(2):
        samples = flat(loader)
        assert [sample["index"] for sample in samples] == [3, 0, 9]
        assert {type(sample["index"]) for sample in samples} == {int}
    assert log.indices() == [0, 3, 9]
    assert set(names(store)) == {"00000000.pt", "00000003.pt", "00000009.pt", "reuseloader.json"}


@pytest.mark.parametrize("item", [1.0, "1", True, None, torch.tensor(1.0), np.float32(1)])
def test_samplers_that_yield_no_integers_are_type_errors(item, store):
    """What is no index in a sampler is a TypeError that says int, with workers or without."""
    for workers in (0, 1):
        for options in ({"sampler": [item]}, {"batch_sampler": [[item]]}):
            with fails(TypeError, match="int"):
                list(loader_of(sample_of, store, num_workers=workers, **options))


def test_pairs_of_a_sampler_decide(store):
    """A sampler that yields pairs itself is followed, epoch and all."""
    pairs = [IndexEpoch(3, 8), IndexEpoch(1, 0)]
    loader = loader_of(sample_of, store, sampler=pairs, batch_size=None, collate_fn=None)
    for _ in range(2):
        got = list(loader)
        assert [(s["index"], s["epoch"]) for s in got] == [
            (pair.index, POLICY.key(*pair).first_epoch) for pair in pairs
        ]


@pytest.mark.leaves("strays")
def test_a_reuse_sampler_counts_with_the_loader(store):
    """A ReuseSampler given by the user follows the loader's epochs, as sampler or in batches."""
    for number, wrap in enumerate(
        (
            lambda sampler: {"sampler": sampler, "batch_size": 3},
            lambda sampler: {"batch_sampler": BatchSampler(sampler, 3, drop_last=False)},
        )
    ):
        loader = loader_of(
            sample_of, store / str(number), start_epoch=2, **wrap(ReuseSampler(SIZE, POLICY))
        )
        for epoch in (2, 3):
            samples = flat(loader)
            assert [sample["index"] for sample in samples] == order(epoch)
            assert_right(samples, POLICY, epoch)
        loader.set_epoch(0)
        assert_right(flat(loader), POLICY, 0)


def test_a_sampler_is_asked_once_a_pass(store):
    """A user's sampler is iterated once a pass, so that one with a state of its own stays right."""
    own = Own([1, 2, 3])
    loader = loader_of(sample_of, store, sampler=own, batch_size=2)
    plain_own = Own([1, 2, 3])
    plain = DataLoader(Plain(), sampler=plain_own, batch_size=2, collate_fn=list)
    for _ in range(3):
        assert indices(loader) == indices(plain)
    assert own.passes == plain_own.passes == 3


# --- arguments ------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


BAD_ARGUMENTS = [
    *(("lifetime", value) for value in (0, -1, 1.5, 2.0, True, None, "3", 2**63, np.float32(2))),
    *(("seed", value) for value in (1.5, True, None, "3", np.float64(1))),
    *(("balanced", value) for value in (None, 1, "yes")),
    *(("size", value) for value in (-1, 1.5, True, None, "3", np.int64(-1), 2**63)),
    *(("start_epoch", value) for value in (-1, 1.5, True, None, "3", 2**63)),
    *(("build", value) for value in (None, 3, "build", Plain(), Stream())),
    *(("path", value) for value in (None, "", 3, b"store", ["store"])),
    *(("fingerprint", value) for value in (None, 3, b"a", {"a": 1})),
    *(("save", value) for value in (3, "torch.save", (pickle.dump,))),
    *(("load", value) for value in (3, "torch.load")),
    *(("finish", value) for value in (3, "finish")),
    *(("format", value) for value in ("npz", None)),
    *((name, value) for name in ("digest", "shuffle") for value in ("no", 1)),
]


@pytest.mark.parametrize(("name", "value"), BAD_ARGUMENTS)
def test_bad_arguments_are_one_error(name, value, store):
    """A bad argument is one line that names it and shows the value, before anything is made."""
    arguments = {"build": index_of, "size": 3, "path": store, "lifetime": 3, name: value}
    with pytest.raises((TypeError, ValueError), match=f"^{name} must") as caught:
        ReuseDataLoader(**arguments)
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not store.exists()


def test_dataset_must_not_be_given(store):
    """``dataset=`` is a TypeError that shows it: the loader makes its own."""
    dataset = Plain()
    with pytest.raises(TypeError, match="dataset must not be given") as caught:
        ReuseDataLoader(index_of, 3, store, lifetime=3, dataset=dataset)
    assert repr(dataset) in str(caught.value)


@pytest.mark.parametrize("arguments", [(4,), (4, True)])
def test_options_are_keywords(arguments, store):
    """A batch_size by position is a TypeError, since DataLoader's place for it is another."""
    with pytest.raises(TypeError, match="positional arguments"):
        ReuseDataLoader(index_of, 3, store, *arguments, lifetime=3)


def test_lifetime_is_required(store):
    """Without a lifetime there is no loader."""
    with pytest.raises(TypeError, match="lifetime"):
        ReuseDataLoader(index_of, 3, store)


@pytest.mark.parametrize("integer", [np.int64, np.uint8, torch.tensor])
def test_numbers_may_be_of_any_integer_type(integer, store):
    """size, lifetime, seed and start_epoch of any integer type are plain ints."""
    loader = ReuseDataLoader(
        sample_of,
        integer(4),
        store,
        lifetime=integer(3),
        seed=integer(5),
        start_epoch=integer(2),
        collate_fn=list,
    )
    assert loader.policy == ReusePolicy(3, 5)
    assert {type(n) for n in (len(loader), loader.epoch, loader.policy.lifetime)} == {int}
    assert_right(flat(loader), POLICY, 2)


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True}, {"batch_size": None}, {"num_workers": 2}, {"sampler": []}],
    ids=repr,
)
def test_size_zero_is_an_empty_pass(options, store):
    """A loader of no samples has empty passes, which count like all others."""
    loader = loader_of(index_of, store, size=0, **options)
    assert len(loader) == 0
    for epoch in range(3):
        assert list(loader) == []
        assert loader.epoch == epoch
        assert loader.state_dict() == {"epoch": epoch + 1}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_without_a_full_batch_is_one_epoch(workers, store):
    """Where drop_last drops everything a pass is empty, and still one epoch."""
    loader = loader_of(
        sample_of, store, size=3, batch_size=4, drop_last=True, num_workers=workers, start_epoch=2
    )
    for epoch in (2, 3):
        assert list(loader) == []
        assert (loader.epoch, loader.next_epoch) == (epoch, epoch + 1)


def test_policy_is_readable(store):
    """The loader shows its policy."""
    loader = loader_of(sample_of, store, balanced=False)
    assert loader.policy == ReusePolicy(3, 5, balanced=False)
    assert loader.dataset.policy == loader.policy


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_build_says_for_which_sample_and_the_next_pass_is_whole(workers, store, log):
    """An error of build names index, epoch and generation; the loader stays usable."""
    fault = store.parent / "fault"
    fault.touch()
    loader = loader_of(
        functools.partial(break_on_demand, build=log.build, fault=fault),
        store,
        num_workers=workers,
        start_epoch=4,
    )
    with fails(ZeroDivisionError, match="on demand") as caught:
        list(loader)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "index 7, epoch 4, generation 1" in text
    fault.unlink()
    assert loader.next_epoch == 5
    samples = flat(loader)
    assert len(samples) == SIZE
    assert_right(samples, POLICY, 5)


def break_on_demand(key, build, fault):
    if key.index == 7 and fault.exists():
        raise ZeroDivisionError("on demand")
    return build(key)


def test_a_right_loader_is_checked_here(store):
    """The oracle of these tests itself: a sample of the next generation is told apart."""
    (sample,) = flat(loader_of(sample_of, store, size=1))
    assert bits(sample) == expected(POLICY, 0, 2)
    assert bits(sample) != expected(POLICY, 0, 3)
