import functools
import time

import numpy as np
import pytest
import torch
from helpers import FORKS, sample_files
from torch.utils.data import TensorDataset, default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher

from reuseloader import LMDBStore, ReuseDataLoader, ReuseError, ReusePolicy, advise
from reuseloader.measure import size_in_memory
from reuseloader.nodes import ReuseMapper, ReuseSampler

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE, BATCH = 48, 8
BUILD = 0.01  # seconds


def quick(key):
    return torch.zeros(100), key.index


def slow(key):
    time.sleep(BUILD)
    return quick(key)


def broken(key, error=ValueError):
    raise error("a broken sample")


def halved(sample, key):
    return sample[0][:50], sample[1]


@pytest.fixture
def one_worker(monkeypatch):
    """The sweep of workers stays short."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)


def graph(advice, lifetime, path):
    policy = ReusePolicy(lifetime)
    node = ReuseMapper(
        ReuseSampler(SIZE, policy),
        slow,
        path,
        policy,
        num_workers=advice.num_workers,
        method="process",
    )
    node = Batcher(node, BATCH, drop_last=False)
    return Loader(Prefetcher(Mapper(node, default_collate), 2)), node.source


def dataloader(advice, lifetime, path):
    loader = ReuseDataLoader(
        slow,
        SIZE,
        path,
        lifetime=lifetime,
        shuffle=True,
        batch_size=BATCH,
        num_workers=advice.num_workers,
        persistent_workers=True,
    )
    return loader, loader


@pytest.mark.parametrize("make", [graph, dataloader])
def test_real_epochs_take_about_what_is_predicted(make, tmp_path, no_worker_left):
    """Predicted from a few samples; measured with a real loader, after epoch 0."""
    advice = advise(slow, SIZE, tmp_path, batch_size=BATCH, step=1e-4, pipeline=make.__name__)
    predicted = {at.lifetime: at.seconds for at in advice.predictions}
    for lifetime in (1, 4):
        loader, owner = make(advice, lifetime, tmp_path / str(lifetime))
        with owner:
            epochs = []
            for _ in range(3):
                start = time.perf_counter()
                assert sum(len(labels) for _, labels in loader) == SIZE
                epochs.append(time.perf_counter() - start)
        assert 0.4 < min(epochs[1:]) / predicted[lifetime] < 3
        del loader, owner


def test_what_is_measured_is_about_what_things_take(tmp_path):
    """A build, a step, and workers side by side; sizes are exact."""
    advice = advise(
        slow,
        SIZE,
        tmp_path,
        batch_size=4,
        step=lambda batch: time.sleep(0.02),
        finish=halved,
        format="tensors",
    )
    assert 1 <= advice.costs.build / BUILD < 3
    assert 1 <= advice.step / 0.02 < 3
    assert 0 < advice.costs.hit < BUILD
    assert advice.costs.store > 0
    assert 0 < advice.costs.finish < BUILD
    assert 400 < advice.stored < 700
    assert advice.in_memory == 200
    inline, one, *more = advice.workers
    assert (inline.num_workers, one.num_workers) == (0, 1)
    assert 0.3 < one.builds_per_second * BUILD < 1.1
    for workers in more[:1]:  # sleeping takes no processor
        assert 1.3 < workers.builds_per_second / one.builds_per_second < 3


@pytest.mark.usefixtures("one_worker")
def test_a_step_gets_a_finished_batch_as_the_loader_makes_it(tmp_path):
    """It is collated from finished samples, and is of the batch size, however few were built."""
    seen = []
    for collate_fn in (None, list):
        advise(
            quick,
            3,
            tmp_path,
            batch_size=20,
            step=seen.append,
            finish=halved,
            collate_fn=collate_fn,
        )
    assert len({id(batch) for batch in seen}) == 2
    images, labels = seen[0]
    assert images.shape == (20, 50)
    assert set(labels.tolist()) == {0, 1, 2}
    assert len(seen[-1]) == 20
    assert type(seen[-1]) is list


@pytest.mark.usefixtures("one_worker")
def test_few_samples_are_built_and_all_from_keys_of_the_rule(tmp_path):
    """As the docstring says: at most 17 here, whichever size; every key is one of epoch 0."""
    built = []

    def noted(key):
        built.append(key)
        return key.index

    advise(noted, 10**9, tmp_path, batch_size=1, seed=7)
    assert len(built) == len(set(built)) == 17
    assert all(ReusePolicy(10**9, 7).key(key.index, 0).first == key for key in built)


def test_the_sweep_follows_affinity_and_ranks(tmp_path, monkeypatch):
    """Workers are tried up to the processors of a rank; 8 are shared by 4 ranks here."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("reuseloader.machine.quota", lambda group: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    advice = advise(slow, SIZE, tmp_path, batch_size=BATCH)
    assert (advice.machine.cores, advice.machine.ranks) == (2, 4)
    assert [one.num_workers for one in advice.workers] == [0, 1, 2]
    advice = advise(slow, SIZE, tmp_path, batch_size=BATCH, ranks_per_machine=8)
    assert (advice.machine.cores, advice.machine.ranks) == (1, 8)
    assert [one.num_workers for one in advice.workers] == [0, 1]


@pytest.mark.usefixtures("one_worker")
def test_a_store_at_the_path_is_neither_read_nor_changed(tmp_path):
    """What lies there, or nothing, is as it was; a directory that is not there is not made."""
    with ReuseDataLoader(quick, 4, tmp_path / "store", lifetime=9) as loader:
        list(loader)
    before = {path: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    assert len(sample_files(tmp_path / "store")) == 4
    for path in (tmp_path / "store", str(tmp_path / "not" / "there")):
        advise(slow, SIZE, path, batch_size=1)
    assert {path: path.read_bytes() for path in (tmp_path / "store").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.usefixtures("one_worker")
def test_an_lmdb_store_is_measured_with_another_one(tmp_path):
    """It is one beside it, on the same disk, that is written."""
    pytest.importorskip("lmdb")
    store = LMDBStore(tmp_path)
    advice = advise(quick, SIZE, store, batch_size=1)
    assert advice.stored > 400
    assert store.read(0) is None
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ValueError, {"build": broken}),
        (KeyboardInterrupt, {"build": functools.partial(broken, error=KeyboardInterrupt)}),
        (ValueError, {"step": broken}),
        (ValueError, {"finish": lambda sample, key: broken(key)}),
        (ValueError, {"save": lambda sample, file: broken(sample), "load": broken}),
        (ReuseError, {"load": broken}),
    ],
)
def test_nothing_is_left_behind_by_an_error(error, arguments, tmp_path):
    """Whatever raises, its error comes out, and the directory is gone."""
    arguments = {"build": quick, "batch_size": 1, **arguments}
    with pytest.raises(error, match=r"broken sample|could not be read back"):
        advise(arguments.pop("build"), SIZE, tmp_path / "store", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_nothing_is_an_error(tmp_path):
    """A file in place of a directory is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        advise(quick, SIZE, tmp_path / "file", batch_size=1)


WRONG = {
    "size": ({"size": 0}, ValueError, "size must be an int from 1"),
    "batch_size": ({"batch_size": 0}, ValueError, "batch_size must be an int from 1"),
    "step 0": ({"step": 0}, ValueError, "step must be a number of seconds above 0, got 0"),
    "step nan": ({"step": float("nan")}, ValueError, "step must be a number of seconds above 0"),
    "step str": ({"step": "fast"}, TypeError, "step must be a number of seconds, got 'fast'"),
    "step bool": ({"step": True}, TypeError, "step must be a number of seconds, got True"),
    "pipeline": ({"pipeline": "loop"}, ValueError, "pipeline must be 'graph' or 'dataloader'"),
    "seed": ({"seed": 1.5}, TypeError, "seed must be an int, got 1.5"),
    "path": ({"path": None}, TypeError, "path must be a str or a path, got None"),
    "build": ({"build": 3}, TypeError, "build must be callable, got 3"),
    "a Dataset": ({"build": TensorDataset(torch.zeros(3))}, TypeError, "got the Dataset"),
    "format": ({"format": "zip"}, ValueError, "format must be 'torch' or 'tensors'"),
    "save": ({"format": "tensors", "save": broken}, ValueError, "save must not be given"),
    "finish": ({"finish": 3}, TypeError, "finish must be callable or None"),
    "collate_fn": ({"collate_fn": 3}, TypeError, "collate_fn must be callable or None"),
    "start method": ({"multiprocessing_context": "teleport"}, ValueError, "teleport"),
    "ranks": ({"ranks_per_machine": 0}, ValueError, "ranks_per_machine must be an int from 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named_before_anything_is_built(case, tmp_path):
    """One error that shows the value, and nothing has been built or left."""
    built = []
    changed, kind, message = WRONG[case]
    arguments = {"build": built.append, "size": SIZE, "path": tmp_path, "batch_size": 1, **changed}
    with pytest.raises(kind, match=message):
        advise(arguments.pop("build"), arguments.pop("size"), arguments.pop("path"), **arguments)
    assert built == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("one_worker")
def test_a_build_that_cannot_reach_spawned_workers_is_named(tmp_path):
    """The error is that of the loaders: which argument, and what to do."""
    with pytest.raises(TypeError, match=r"build must be picklable .*lambda"):
        advise(lambda key: 1, SIZE, tmp_path, batch_size=1, multiprocessing_context="spawn")
    assert list(tmp_path.iterdir()) == []


def test_memory_of_a_sample_counts_each_part_once():
    """Views count as themselves; shared parts and cycles once; other objects by what they hold."""
    tensor = torch.zeros(1000)
    sample = {"view": tensor[:10], "array": np.zeros(5, np.float64), "text": "abc", "n": 3}
    assert size_in_memory(sample) == 40 + 40 + 3 + 4 + 5 + 4 + 1 - 14
    shared = [tensor, tensor]
    shared.append(shared)
    assert size_in_memory(shared) == 4000
    assert size_in_memory(None) == 0
