import copy
import os
import pickle
import tempfile
from multiprocessing import get_context

import cloudpickle
import numpy as np
import pytest
import torch
from helpers import (
    FORKS,
    SIZE,
    Caught,
    Log,
    append,
    bits,
    due,
    expected,
    fail_at_two,
    fails,
    flat,
    index_of,
    keys,
    names,
    right,
    sample_files,
    sample_of,
    with_present,
)
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from reuseloader import IndexEpoch, ReuseDataset, ReusePolicy

pytestmark = pytest.mark.filterwarnings(FORKS)

POLICY = ReusePolicy(3, 11)


@pytest.fixture
def dataset(store, log):
    return ReuseDataset(log.build, SIZE, store, POLICY)


def assert_present(samples, policy, epoch):
    """Samples that went through `with_present` are those of ``epoch``, by bits and by key."""
    for sample in samples:
        key = policy.key(sample["index"], epoch)
        assert sample["present"] == (epoch, key.use, key.use_seed)
        base = {name: value for name, value in sample.items() if name not in ("present", "pid")}
        assert bits(base) == expected(policy, key.index, epoch)


# --- items ----------------------------------------------------------------------------------------

INTEGERS = [
    int,
    np.int64,
    np.int32,
    np.int8,
    np.uint8,
    np.uint64,
    torch.tensor,
    lambda i: torch.tensor(i, dtype=torch.uint8),
    lambda i: np.array(i),
    lambda i: np.array([i, 99])[0],
]


@pytest.mark.parametrize("integer", INTEGERS)
def test_an_index_may_be_of_any_integer_type(integer, dataset, store, log):
    """Every integer type means the same sample, the same file and a plain int in the key."""
    for index in (0, 3):
        for item in (integer(index), IndexEpoch(integer(index), 0)):
            sample = dataset[item]
            assert type(sample["index"]) is int
            assert bits(sample) == expected(POLICY, index, 0)
    assert log.indices() == [0, 3]
    assert sample_files(store) == ["00000000.pt", "00000003.pt"]


@pytest.mark.parametrize("integer", [int, np.int64, np.int8, torch.tensor])
def test_negative_indices_count_from_the_end(integer, dataset, store):
    """-1 is the last index, as in a list, and makes no file of its own."""
    for index in range(-SIZE, 0):
        assert bits(dataset[integer(index)]) == expected(POLICY, index + SIZE, 0)
    assert set(sample_files(store)) <= {f"{i:08}.pt" for i in range(SIZE)}


@pytest.mark.parametrize(
    "item",
    [
        *(SIZE, SIZE + 1, -SIZE - 1, 10**12, 2**64, -(2**64), np.int64(SIZE)),
        *(torch.tensor(-SIZE - 1), IndexEpoch(SIZE, 0), IndexEpoch(2**62, 0)),
        *([0, SIZE], [IndexEpoch(SIZE, 0)]),
    ],
    ids=repr,
)
def test_indices_out_of_range_are_index_errors(item, dataset, store):
    """What lies outside of the dataset is an IndexError that shows it, and makes no file."""
    with pytest.raises(IndexError, match="out of range"):
        dataset[item]
    assert set(names(store)) <= {"00000000.pt", "reuseloader.json"}


@pytest.mark.parametrize(
    "item",
    [
        *(True, False, np.bool_(True), torch.tensor(True), 1.0, np.float64(1), torch.tensor(1.0)),
        *("1", b"1", None, slice(2), (1, 0), {}, 1j, torch.tensor([1, 2]), np.arange(2)),
        *([True], [1, "1"], IndexEpoch(1.0, 0), IndexEpoch(True, 0), IndexEpoch("1", 0)),
        *(IndexEpoch(1, 0.0), IndexEpoch(1, None), IndexEpoch(1, False), IndexEpoch(1, "0")),
    ],
    ids=repr,
)
def test_what_is_no_index_is_a_type_error(item, dataset):
    """Bools, floats, strings, slices and plain tuples are one TypeError that says int."""
    with pytest.raises(TypeError, match="int") as caught:
        dataset[item]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pair", [IndexEpoch(-SIZE - 1, 0), IndexEpoch(0, -1), IndexEpoch(1, 2**63)]
)
def test_a_pair_out_of_range_is_an_error(pair, dataset, store):
    """An impossible index or epoch in a pair is an error and makes no file."""
    with pytest.raises((IndexError, ValueError)):
        dataset[pair]
    assert sample_files(store) == []


def test_a_loop_over_the_dataset_ends(dataset):
    """``for sample in dataset``, ``list`` and ``enumerate`` give each sample once, then end."""
    for _ in range(2):
        samples = list(dataset)
        assert [sample["index"] for sample in samples] == list(range(SIZE))
    assert [i for i, _ in enumerate(dataset)] == list(range(SIZE))
    assert len(dataset) == SIZE


@pytest.mark.parametrize("error", [IndexError, StopIteration])
def test_a_failing_build_does_not_end_a_loop_in_silence(error, store):
    """An IndexError or StopIteration of build's own is no end of a loop over the dataset."""
    dataset = ReuseDataset(lambda key: fail_at_two(key, error), SIZE, store, POLICY)
    seen = []
    with pytest.raises((RuntimeError, IndexError)):
        seen.extend(dataset)


def test_an_empty_dataset_is_empty(store):
    """A dataset of size 0 has no samples, and every index is out of range."""
    dataset = ReuseDataset(index_of, 0, store, POLICY)
    assert len(dataset) == 0
    assert list(dataset) == []
    assert dataset[[]] == []
    for index in (0, -1):
        with pytest.raises(IndexError, match="out of range"):
            dataset[index]


@pytest.mark.parametrize("epoch", [0, 1, 2, 3, 7, 2**40])
def test_an_index_is_of_the_epoch_that_was_set_and_a_pair_of_its_own(epoch, dataset):
    """dataset[i] follows set_epoch; dataset[IndexEpoch(i, e)] is that of e whatever was set."""
    assert dataset.epoch == 0
    dataset.set_epoch(epoch)
    assert dataset.epoch == epoch
    for index in range(SIZE):
        assert bits(dataset[index]) == expected(POLICY, index, epoch)
        for other in (0, 5):
            assert bits(dataset[IndexEpoch(index, other)]) == expected(POLICY, index, other)
    assert dataset.epoch == epoch


@pytest.mark.parametrize(
    "epoch", [-1, 2**63, 1.0, True, None, "1", np.float64(2), torch.tensor(1.5)]
)
def test_set_epoch_wants_an_epoch(epoch, dataset):
    """A bad epoch is one error that names it and shows the value, and changes nothing."""
    dataset.set_epoch(4)
    with pytest.raises((TypeError, ValueError), match="epoch must be") as caught:
        dataset.set_epoch(epoch)
    assert repr(epoch) in str(caught.value)
    assert dataset.epoch == 4


@pytest.mark.parametrize("epoch", [np.int64(2), torch.tensor(2), np.uint8(2)])
def test_set_epoch_takes_any_integer_type(epoch, dataset):
    """An epoch of any integer type is a plain int."""
    dataset.set_epoch(epoch)
    assert type(dataset.epoch) is int
    assert dataset.epoch == 2
    assert type(dataset[0]["epoch"]) is int


def test_lists_give_lists(dataset):
    """A list of indices, of pairs or of both gives the list of their samples, in that order."""
    dataset.set_epoch(2)
    for items, pairs in (
        ([], []),
        ([1], [(1, 2)]),
        ([3, 1, 3], [(3, 2), (1, 2), (3, 2)]),
        ([-1, np.int64(0)], [(4, 2), (0, 2)]),
        ([IndexEpoch(3, 7), IndexEpoch(3, 0)], [(3, 7), (3, 0)]),
        ([IndexEpoch(3, 7), 3], [(3, 7), (3, 2)]),
    ):
        for samples in (dataset[items], dataset.__getitems__(items)):
            assert type(samples) is list
            assert [bits(s) for s in samples] == [expected(POLICY, *pair) for pair in pairs]


def test_subsets_work(dataset):
    """A Subset, also of a Subset, gives the samples of its indices; wrong ones are errors."""
    subset = Subset(Subset(dataset, [4, 0, 2]), [2, 0])
    assert [bits(sample) for sample in subset] == [expected(POLICY, i, 0) for i in (2, 4)]
    loaded = flat(DataLoader(subset, batch_size=2, collate_fn=list))
    assert [sample["index"] for sample in loaded] == [2, 4]
    with pytest.raises(IndexError, match="out of range"):
        Subset(dataset, [SIZE])[0]


def test_a_pass_over_lists_of_pairs_is_made_whole(store, log):
    """Under DataLoader a list of pairs as an item is one list of samples, made in one worker."""
    policy = ReusePolicy(2)
    dataset = ReuseDataset(log.build, 8, store, policy, finish=with_present)
    pairs = [[IndexEpoch(i, 1) for i in (0, 1, 2)], [IndexEpoch(i, 1) for i in (5, 4, 7)]]
    loader = DataLoader(
        dataset, batch_size=None, sampler=pairs, num_workers=2, multiprocessing_context="fork"
    )
    batches = list(loader)
    assert [[sample["index"] for sample in batch] for batch in batches] == [[0, 1, 2], [5, 4, 7]]
    for batch in batches:
        assert len({sample["pid"] for sample in batch}) == 1


# --- build, keys and stores -----------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", [1, 2, 3, 5])
def test_just_the_due_samples_are_built(lifetime, store, log):
    """Epoch 0 builds all, epoch e those with (e + i) % lifetime == 0, each with its first key."""
    policy = ReusePolicy(lifetime, 4)
    dataset = ReuseDataset(log.build, 7, store, policy)
    for epoch in range(2 * lifetime + 2):
        dataset.set_epoch(epoch)
        assert [bits(s) for s in dataset] == [expected(policy, i, epoch) for i in range(7)]
        assert log.take() == keys(policy, epoch, due(policy, epoch, 7))


@pytest.mark.parametrize("lifetime", [1, 2, 3, 5])
def test_build_gets_the_first_key_whichever_use_asks(lifetime, tmp_path):
    """A rebuild in mid-life gets the key of the generation's first use in every field."""
    seen = []
    policy = ReusePolicy(lifetime)
    for epoch in range(2 * lifetime + 1):
        dataset = ReuseDataset(seen.append, SIZE, tmp_path / str(epoch), policy)
        for index in range(SIZE):
            dataset[IndexEpoch(index, epoch)]
            present = policy.key(index, epoch)
            assert seen.pop() == policy.key(index, present.first_epoch)
    assert seen == []


def test_finish_gets_the_present_key_and_is_never_stored(store):
    """Finish runs at every use, after build and after load, with the key of that use."""
    seen = []

    def finish(sample, key):
        seen.append(key)
        sample["tensor"] += 1  # in place, which must not reach the store either
        sample["array"][...] = 0
        return {"finished": sample, "key": key}

    dataset = ReuseDataset(sample_of, SIZE, store, POLICY, finish=finish)
    plain = ReuseDataset(sample_of, SIZE, store, POLICY)
    for epoch in range(7):
        for index in range(SIZE):
            given = dataset[IndexEpoch(index, epoch)]
            key = POLICY.key(index, epoch)
            assert seen.pop() == given["key"] == key
            want = sample_of(key.first)
            assert torch.equal(given["finished"]["tensor"], want["tensor"] + 1)
            assert bits(plain[IndexEpoch(index, epoch)]) == bits(want)
    assert seen == []


@pytest.mark.parametrize("answer", [None, 0, [], {}, ""])
def test_what_finish_returns_is_the_sample(answer, store):
    """Whatever finish returns is delivered, None included."""
    dataset = ReuseDataset(sample_of, 1, store, POLICY, finish=lambda sample, key: answer)
    for epoch in range(4):
        assert bits(dataset[IndexEpoch(0, epoch)]) == bits(answer)


def test_changes_in_place_do_not_reach_the_store(store):
    """What the consumer does to a delivered sample changes no later use of it."""
    dataset = ReuseDataset(sample_of, 1, store, ReusePolicy(10**9))
    for epoch in range(3):
        sample = dataset[IndexEpoch(0, epoch)]
        assert bits(sample) == expected(dataset.policy, 0, epoch)
        sample["tensor"].zero_()
        sample["array"][...] = 7
        sample.clear()


def test_a_build_that_keeps_and_changes_its_sample_is_stored_as_returned(store):
    """What is stored is the sample at the moment build returned it."""
    buffer = torch.zeros(3)

    def build(key):
        buffer.fill_(key.index)
        return buffer

    dataset = ReuseDataset(build, SIZE, store, ReusePolicy(10**9))
    for index in range(SIZE):
        assert dataset[IndexEpoch(index, 0)].tolist() == [index] * 3
    for index in range(SIZE):
        assert dataset[IndexEpoch(index, 1)].tolist() == [index] * 3


# --- workers --------------------------------------------------------------------------------------


def recopied(dataset):
    return copy.deepcopy(pickle.loads(pickle.dumps(copy.deepcopy(dataset))))


COPIES = {
    "itself": lambda dataset: dataset,
    "deepcopy": copy.deepcopy,
    "pickle": lambda dataset: pickle.loads(pickle.dumps(dataset)),
    "cloudpickle": lambda dataset: cloudpickle.loads(cloudpickle.dumps(dataset)),
    "copy of a copy": recopied,
}


def loader_over(dataset, method, workers=2, **options):
    return DataLoader(
        dataset,
        batch_size=2,
        collate_fn=list,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context=method,
        **options,
    )


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *(("fork", kind) for kind in COPIES),
        ("spawn", "itself"),
        ("spawn", "deepcopy"),
        ("forkserver", "itself"),
        ("forkserver", "cloudpickle"),
    ],
)
def test_persistent_workers_see_set_epoch(method, kind, store, log):
    """The dataset or a copy of it: workers that live on see each epoch, forwards and backwards."""
    dataset = ReuseDataset(log.build, SIZE, store, POLICY, finish=with_present)
    used = COPIES[kind](dataset)
    loader = loader_over(used, method, workers=2 if kind == "itself" else 1)
    pids = set()
    for epoch in (0, 1, 2, 4, 1, 9):
        used.set_epoch(epoch)
        if used is not dataset:
            dataset.set_epoch(epoch + 5)  # of no consequence for the copy
        samples = flat(loader)
        assert [sample["index"] for sample in samples] == list(range(SIZE))
        assert_present(samples, POLICY, epoch)
        pids.add(tuple(sorted({sample["pid"] for sample in samples})))
    assert len(pids) == 1
    assert os.getpid() not in pids.pop()


@pytest.mark.parametrize("kind", ["deepcopy", "pickle", "cloudpickle", "copy of a copy"])
def test_a_copy_has_an_epoch_of_its_own(kind, store, log):
    """A copy begins with the original's epoch, and then neither sees what the other is set to."""
    dataset = ReuseDataset(log.build, SIZE, store, POLICY)
    dataset.set_epoch(3)
    first = COPIES[kind](dataset)
    second = COPIES[kind](dataset)
    assert (dataset.epoch, first.epoch, second.epoch) == (3, 3, 3)
    first.set_epoch(5)
    assert (dataset.epoch, first.epoch, second.epoch) == (3, 5, 3)
    dataset.set_epoch(8)
    second.set_epoch(1)
    assert (dataset.epoch, first.epoch, second.epoch) == (8, 5, 1)
    for one, epoch in ((dataset, 8), (first, 5), (second, 1)):
        assert bits(one[2]) == expected(POLICY, 2, epoch)


def test_a_copy_may_outlive_the_original(store):
    """A copy works after the original is gone, in workers as well."""
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY, finish=with_present)
    second = copy.deepcopy(dataset)
    dataset.close()
    del dataset
    loader = loader_over(second, "fork", workers=1)
    for epoch in (0, 4):
        second.set_epoch(epoch)
        assert_present(flat(loader), POLICY, epoch)


def test_cloudpickle_carries_local_functions(store):
    """A dataset over a local function goes through cloudpickle."""
    factor = 3
    dataset = ReuseDataset(lambda key: key.index * factor, SIZE, store, POLICY)
    second = cloudpickle.loads(cloudpickle.dumps(dataset))
    assert list(second) == [0, 3, 6, 9, 12]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
def test_persistent_workers_of_a_stateful_dataloader_see_set_epoch(store):
    """StatefulDataLoader's persistent workers see each epoch as DataLoader's do."""
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY, finish=with_present)
    loader = StatefulDataLoader(
        dataset, batch_size=2, collate_fn=list, num_workers=2, persistent_workers=True
    )
    for epoch in (0, 3, 1):
        dataset.set_epoch(epoch)
        samples = flat(loader)
        assert [sample["index"] for sample in samples] == list(range(SIZE))
        assert_present(samples, POLICY, epoch)


def test_workers_share_what_one_of_them_stored(store, log):
    """What one worker stores another reads: nothing is built twice in a generation."""
    dataset = ReuseDataset(log.build, 12, store, ReusePolicy(10**9))
    seen = []
    for workers in (2, 1, 0):
        loader = DataLoader(dataset, batch_size=3, collate_fn=list, num_workers=workers)
        seen.append([bits(sample) for sample in flat(loader)])
    assert seen[0] == seen[1] == seen[2]
    assert log.indices() == list(range(12))


def test_pairs_decide_under_any_sampler(store):
    """Under DataLoader with a sampler of pairs the pairs' epochs count, not the dataset's."""
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY, finish=with_present)
    dataset.set_epoch(9)
    order = [IndexEpoch(i, 4) for i in (3, 0, 4)]
    for options in (
        {"sampler": order, "batch_size": 2},
        {"batch_sampler": BatchSampler(order, 2, drop_last=False)},
        {"batch_sampler": [order[:2], order[2:]], "num_workers": 1},
    ):
        samples = flat(DataLoader(dataset, collate_fn=list, **options))
        assert [sample["index"] for sample in samples] == [3, 0, 4]
        assert_present(samples, POLICY, 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_build_says_for_which_sample(workers, store):
    """An error in build reaches the consumer with type, text, index, epoch and generation."""
    dataset = ReuseDataset(broken_build, SIZE, store, POLICY)
    dataset.set_epoch(5)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    samples = []
    with fails(ZeroDivisionError, match="broken sample") as caught:
        samples.extend(loader)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "index 2, epoch 5, generation 2" in text
    assert samples == [0, 1]


def broken_build(key):
    return fail_at_two(key, ZeroDivisionError)


def stopping_function(*args):
    raise StopIteration


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["build", "finish", "save"])
def test_stop_iteration_is_no_silent_end(name, workers, store):
    """StopIteration in a function of the user's is an error that names it, not an early end."""
    functions = {"build": index_of, name: stopping_function}
    dataset = ReuseDataset(functions.pop("build"), SIZE, store, POLICY, **functions)
    for size in (None, 2):
        loader = DataLoader(dataset, batch_size=size, num_workers=workers)
        with fails(RuntimeError, match=f"{name} raised StopIteration.*index 0"):
            list(loader)


def test_a_dataset_warns_at_once_or_at_its_end(store):
    """Damage that this process meets is said at once, what workers meet at set_epoch or close."""
    for workers, end in ((0, None), (1, "set_epoch"), (2, "close")):
        dataset = ReuseDataset(sample_of, SIZE, store, POLICY)
        assert right(dataset, 0)
        for path in store.glob("*.pt"):
            path.write_bytes(b"rubbish")
        with Caught() as caught:
            assert len(list(DataLoader(dataset, batch_size=None, num_workers=workers))) == SIZE
            if end == "set_epoch":
                dataset.set_epoch(1)
            elif end == "close":
                dataset.close()
        assert len(caught) == 1, workers
        assert ".pt" in caught[0]


# --- ranks ----------------------------------------------------------------------------------------


def train(rank, dataset, barrier, log, early):
    """One rank of two: sets epochs of its own in step with the other, and notes what it sees."""
    loader = DataLoader(
        dataset, batch_size=2, num_workers=1, persistent_workers=True, collate_fn=list
    )
    if early:
        assert len(flat(loader)) == SIZE
    for step in range(3):
        epoch = 10 * rank + step
        dataset.set_epoch(epoch)
        barrier.wait(60)
        own = dataset.epoch
        samples = flat(loader)
        barrier.wait(60)
        seen = {sample["present"][0] for sample in samples}
        good = all(
            bits(sample_of(POLICY.key(s["index"], epoch).first)["tensor"]) == bits(s["tensor"])
            for s in samples
        )
        append(log, f"{rank} {step} {own} {seen} {good} {dataset.epoch}\n")


@pytest.mark.parametrize(("method", "early"), [("fork", False), ("fork", True), ("spawn", True)])
def test_ranks_do_not_see_each_others_epoch(method, early, store, tmp_path):
    """Processes that were handed one dataset each have an epoch of their own, workers too.

    Also where a pass begins before the rank has set any epoch.
    """
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY, finish=with_present)
    dataset.set_epoch(77)
    notes = tmp_path / "notes"
    context = torch.multiprocessing.get_context(method)
    barrier = context.Barrier(2)
    torch.multiprocessing.start_processes(
        train, (dataset, barrier, str(notes), early), nprocs=2, start_method=method
    )
    assert dataset.epoch == 77
    lines = sorted(notes.read_text().splitlines())
    assert lines == [
        f"{rank} {step} {epoch} {{{epoch}}} True {epoch}"
        for rank in (0, 1)
        for step in range(3)
        for epoch in [10 * rank + step]
    ]


def watch_epoch(dataset, pipe):
    """A rank that sets nothing of its own."""
    pipe.send("begun")
    pipe.recv()
    pipe.send(dataset.epoch)


def test_a_forked_rank_does_not_follow_its_parent(store):
    """A process that was handed a dataset keeps its epoch when the parent goes on as a rank."""
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY)
    dataset.set_epoch(3)
    context = get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=watch_epoch, args=(dataset, there))
    child.start()
    assert here.recv() == "begun"
    dataset.set_epoch(9)
    here.send("go on")
    assert here.recv() == 3
    child.join()


# --- arguments ------------------------------------------------------------------------------------


class Images(Dataset):
    def __getitem__(self, index):
        return index

    def __len__(self):
        return 3


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class CallableDataset(Images):
    def __call__(self, key):
        return key.index


BAD_ARGUMENTS = [
    *(("size", value, TypeError) for value in (1.5, 3.0, True, None, "3", [3], np.float32(3))),
    *(("size", value, ValueError) for value in (-1, -(10**9), np.int64(-1), 2**63)),
    *(("build", value, TypeError) for value in (None, 3, "build", [index_of], Images(), Stream())),
    ("build", CallableDataset(), TypeError),
    *(("policy", value, TypeError) for value in (None, 3, "3", ReusePolicy, {"lifetime": 3})),
    *(("fingerprint", value, TypeError) for value in (None, 3, b"a", {"a": 1}, ["a"], ("a",))),
    *(("save", value, TypeError) for value in (3, "torch.save", (pickle.dump,))),
    *(("load", value, TypeError) for value in (3, "torch.load", (pickle.load,))),
    *(("finish", value, TypeError) for value in (3, "finish", (index_of,))),
    *(("format", value, ValueError) for value in ("npz", "")),
]


@pytest.mark.parametrize(("name", "value", "error"), BAD_ARGUMENTS)
def test_bad_arguments_are_one_error(name, value, error, store):
    """A bad argument is one line that names it and shows the value, before anything is made."""
    arguments = {"build": index_of, "size": 3, "path": store, "policy": POLICY, name: value}
    with pytest.raises(error, match=f"^{name} must") as caught:
        ReuseDataset(**arguments)
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not store.exists()


def test_a_dataset_as_build_says_what_to_do(store):
    """A Dataset in the place of build is told to become a function of the key."""
    with pytest.raises(TypeError, match=r"dataset\[key.index\]|FromDataset"):
        ReuseDataset(Images(), 3, store, POLICY)
    with pytest.raises(TypeError, match="no index"):
        ReuseDataset(Stream(), 3, store, POLICY)


@pytest.mark.parametrize("size", [np.int64(3), np.uint8(3), torch.tensor(3)])
def test_size_may_be_of_any_integer_type(size, store):
    """A size of any integer type is a plain int."""
    dataset = ReuseDataset(index_of, size, store, POLICY)
    assert type(len(dataset)) is int
    assert list(dataset) == [0, 1, 2]


@pytest.mark.parametrize("fingerprint", ["", "a", "ä\0\n", "\ud800", "x" * 10_000])
def test_any_string_is_a_fingerprint(fingerprint, store, log):
    """Every str will do, is compared by value, and separates from every other one."""
    for text, built in ((fingerprint, SIZE), ("".join(list(fingerprint)), 0), ("other", SIZE)):
        with ReuseDataset(log.build, SIZE, store, ReusePolicy(10**9), fingerprint=text) as dataset:
            assert right(dataset, 0)
        assert len(log.take()) == built


def test_policy_is_readable(dataset):
    """The dataset shows its policy."""
    assert dataset.policy == POLICY


def test_closing_twice_is_harmless(dataset):
    """Close may come twice, and a dataset is a context manager that closes."""
    with dataset as entered:
        assert entered is dataset
        assert right(dataset, 0)
    dataset.close()
    dataset.close()


def test_errors_leave_the_with_statement(dataset):
    """An error inside of the with statement is not swallowed."""
    with pytest.raises(KeyError), dataset:
        raise KeyError


def test_temporary_directories_may_hold_a_store():
    """A store in a tempfile.TemporaryDirectory works and is cleaned up with it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Log(folder)
        with ReuseDataset(log.build, SIZE, os.path.join(folder, "store"), POLICY) as dataset:
            assert right(dataset, 0)
    assert not os.path.exists(folder)
