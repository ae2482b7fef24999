"""What was done is counted, once each, in whatever process or thread it was done."""

import copy
import errno
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from helpers import FORKS, START_METHODS, index_of, sample_of
from torch.utils.data import DataLoader
from torchdata.nodes import Batcher, Loader, Prefetcher

from reuseloader import IndexEpoch, ReuseDataLoader, ReuseDataset, ReusePolicy, ReuseWarning
from reuseloader.counters import Counters
from reuseloader.model import AHEAD, CONSUMER, WORKERS, Pipeline
from reuseloader.nodes import ReuseMapper, ReuseSampler
from reuseloader.shared import SharedBytes
from reuseloader.stats import PassTimes, Stats
from reuseloader.store import DirectoryStore

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE, LIFETIME, EPOCHS = 13, 3, 4
POLICY = ReusePolicy(LIFETIME, 5)
BUILDS = sum(POLICY.builds(epoch, SIZE) for epoch in range(EPOCHS))


def identity(sample, key):
    return sample


def counts(stats: Stats) -> dict[str, int]:
    """What does not depend on time or size."""
    names = ["hits", "new_generation", "absent", "other_stamp", "damaged", "unsaved"]
    return {name: number for name in names if (number := getattr(stats, name))}


RIGHT = {"hits": SIZE * EPOCHS - BUILDS, "new_generation": BUILDS}

LOADERS = {
    "main": {},
    "workers": {"num_workers": 2, "multiprocessing_context": "fork"},
    "persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
}
MAPPERS = {
    "inline": {},
    "prebatch": {"prebatch": 2},
    "threads": {"num_workers": 4},
    "processes": {"num_workers": 2, "method": "process", "multiprocessing_context": "fork"},
    "forkserver": {
        "num_workers": 2,
        "method": "process",
        "multiprocessing_context": "forkserver",
    },
    "late": {"num_workers": 2, "in_order": False},
}


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS.keys())
def test_a_loader_counts_every_sample_once(options, store):
    """Hits and builds are those of the closed form, whichever process made them."""
    with ReuseDataLoader(
        index_of, SIZE, store, lifetime=LIFETIME, finish=identity, collate_fn=list, **options
    ) as loader:
        assert loader.stats() == Stats()
        for epoch in range(EPOCHS):
            list(loader)
            assert loader._times.epoch == epoch
        assert counts(loader.stats()) == RIGHT
        assert loader.stats().builds == BUILDS
        assert loader.stats().samples == SIZE * EPOCHS
        assert loader.stats().hit_rate == 1 - BUILDS / (SIZE * EPOCHS)
        assert loader.dataset.stats() == loader.stats()


@pytest.mark.parametrize("hop", [None, 4], ids=["pairs", "lists"])
@pytest.mark.parametrize("finish", [None, identity], ids=["plain", "finish"])
@pytest.mark.parametrize("options", MAPPERS.values(), ids=MAPPERS.keys())
def test_a_mapper_counts_every_sample_once(options, finish, hop, store):
    """What a worker has built and the consumer reads is a build, and no hit."""
    source = ReuseSampler(SIZE, POLICY)
    source = source if hop is None else Batcher(source, hop, drop_last=False)
    with ReuseMapper(source, sample_of, store, POLICY, finish=finish, **options) as mapper:
        loader = Loader(mapper)
        for epoch in range(EPOCHS):
            list(loader)
            assert mapper._times.epoch == epoch
        assert counts(mapper.stats()) == RIGHT


def test_bytes_are_those_of_the_files(store):
    """What was written in epoch 0 lies there, and is what the hits of epoch 1 read."""
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY)
    for index in range(SIZE):
        dataset[index]
    sizes = {i: os.stat(f"{store}/{i:08}.pt").st_size for i in range(SIZE) if i % LIFETIME != 2}
    assert dataset.stats().bytes_written == sum(sizes.values())
    assert dataset.stats().bytes_read == 0
    for index in sizes:
        dataset[IndexEpoch(index, 1)] if index % LIFETIME == 0 else None
    assert dataset.stats().bytes_read == sum(sizes[i] for i in sizes if i % LIFETIME == 0)


def test_times_are_where_they_belong(store):
    """A loader without finish and without hits has spent time on builds and stores alone."""
    dataset = ReuseDataset(sample_of, SIZE, store, POLICY)
    dataset[0]
    stats = dataset.stats()
    assert min(stats.build_seconds, stats.store_seconds) > 0
    assert max(stats.load_seconds, stats.finish_seconds) == 0
    dataset[0]
    assert dataset.stats().load_seconds > 0
    assert dataset.stats().build_seconds == stats.build_seconds


def test_lifetime_1_builds_new_generations_alone(store):
    """Nothing is written or read."""
    dataset = ReuseDataset(sample_of, SIZE, store, ReusePolicy(1))
    for index in range(SIZE):
        dataset[index]
    assert counts(dataset.stats()) == {"new_generation": SIZE}
    assert dataset.stats().bytes_written == dataset.stats().store_seconds == 0


# --- why a sample was built -----------------------------------------------------------------------


def middle(store, **options):
    """A dataset in an epoch in which only index 2 is due, over what an earlier run has stored."""
    dataset = ReuseDataset(index_of, 5, store, ReusePolicy(1000, 5), **options)
    dataset.set_epoch(3)
    return dataset


@pytest.mark.leaves("a file of rubbish")
def test_why_each_sample_was_built(store):
    """Absent, of another stamp, damaged: what was found there in mid-life."""
    with middle(store) as before:
        for index in range(5):
            before[index]
    assert counts(before.stats()) == {"absent": 5}
    os.unlink(f"{store}/00000001.pt")
    for name in ("00000003.pt", "00000004.pt"):
        with open(f"{store}/{name}", "r+b") as file:
            file.truncate(20)
    dataset = middle(store)
    with pytest.warns(ReuseWarning, match="stored samples could not be read"):
        assert list(dataset) == list(range(5))
    assert counts(dataset.stats()) == {"hits": 2, "absent": 1, "damaged": 2}
    other = middle(store, fingerprint="other")
    assert [other[index] for index in range(5)] == list(range(5))
    assert counts(other.stats()) == {"other_stamp": 5}


def test_what_is_due_anew_is_no_surprise(store):
    """A first use finds its predecessor there, or nothing: both are as the rule says."""
    dataset = ReuseDataset(index_of, SIZE, store, POLICY)
    for epoch in range(EPOCHS):
        for index in range(SIZE):
            dataset[IndexEpoch(index, epoch)]
    assert counts(dataset.stats()) == RIGHT


class Full(DirectoryStore):
    """A disk on which nothing fits."""

    def write(self, index, record):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.locate(index))


@pytest.mark.parametrize("workers", [0, 2])
def test_unsaved_and_why(workers, store):
    """How many samples could not be stored, and what the first was told."""
    options = LOADERS["workers"] if workers else {}
    with (
        ReuseDataLoader(index_of, SIZE, Full(store), lifetime=LIFETIME, **options) as loader,
        pytest.warns(ReuseWarning, match="could not be stored"),
    ):
        list(loader)
    stats = loader.stats()
    assert stats.unsaved == sum(i % LIFETIME != LIFETIME - 1 for i in range(SIZE))
    assert "No space left on device" in stats.unsaved_reason
    assert f"{store}/" in stats.unsaved_reason
    assert stats.bytes_written == 0


# --- nothing is lost ------------------------------------------------------------------------------


def test_passes_side_by_side_count_apart_and_together(store):
    """Two iterators with workers of the same numbers write to different rows."""
    with ReuseDataLoader(
        index_of, 200, store, lifetime=10**6, collate_fn=list, **LOADERS["workers"]
    ) as loader:
        for _ in range(3):
            for _ in zip(loader, loader, strict=True):
                pass
        assert loader.stats().samples == 6 * 200


def test_threads_of_one_process_lose_nothing(store):
    """A dataset read by threads."""
    dataset = ReuseDataset(index_of, 50, store, ReusePolicy(10**6))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(dataset.__getitem__, [i for _ in range(20) for i in range(50)]))
    assert dataset.stats().samples == 1000


def add(counters, amount):
    with counters.lock:
        counters.row()[1] += amount


@pytest.mark.parametrize("method", START_METHODS)
def test_more_processes_than_rows(method):
    """The rows of processes that are gone are used again, and those of living ones are not."""
    counters = Counters(2, rows=4)
    counters.is_worker = True  # or what is forked here would be taken for a rank
    context = get_context(method)
    for _ in range(5 if method == "fork" else 2):
        workers = [context.Process(target=work, args=(counters, 3)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
    add(counters, 1)
    assert counters.sums() == [0, (30 if method == "fork" else 12) + 1]


def work(counters, amount):
    counters.is_worker = True
    add(counters, amount)


def test_a_copy_counts_from_0(store):
    """By copy, deepcopy and pickle."""
    dataset = ReuseDataset(index_of, SIZE, store, POLICY)
    dataset[0]
    for other in copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset)):
        assert other.stats() == Stats()
        other[0]
        assert counts(other.stats()) == {"hits": 1}
    assert counts(dataset.stats()) == {"new_generation": 1}


def in_a_rank(loader, sender):
    before = counts(loader.stats())
    list(loader)
    sender.send((before, counts(loader.stats())))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_rank_that_was_handed_the_loader_counts_by_itself(method, store):
    """From 0, and the process that handed it over does not see it."""
    loader = ReuseDataLoader(index_of, SIZE, store, lifetime=LIFETIME, collate_fn=list)
    list(loader)
    receiver, sender = get_context(method).Pipe(duplex=False)
    process = get_context(method).Process(target=in_a_rank, args=(loader, sender))
    process.start()
    before, after = receiver.recv()
    process.join()
    assert before == {}
    assert after["hits"] + after["new_generation"] == SIZE
    assert counts(loader.stats()) == {"new_generation": SIZE}


def test_workers_of_a_plain_dataloader_are_counted(store):
    """The dataset knows what they did."""
    dataset = ReuseDataset(index_of, SIZE, store, POLICY)
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        list(DataLoader(dataset, num_workers=2, multiprocessing_context="fork"))
    assert counts(dataset.stats()) == RIGHT


# --- waiting --------------------------------------------------------------------------------------


def test_waiting_is_part_of_a_pass(store):
    """A consumer that takes its time waits for less than the pass takes."""
    with ReuseDataLoader(index_of, SIZE, store, lifetime=LIFETIME) as loader:
        assert loader._times is None
        for _ in loader:
            sum(range(1000))
        assert 0 < loader._times.waited < loader._times.elapsed
        next(iter(loader))  # broken off
        assert loader._times.epoch == 0


def test_a_mapper_knows_the_epoch_of_its_newest_whole_pass(store):
    """Also after an empty one."""
    with ReuseMapper(ReuseSampler(0, POLICY), index_of, store, POLICY) as mapper:
        assert list(Loader(mapper)) == []
        assert isinstance(mapper._times, PassTimes)
        assert mapper._times.epoch == 0


def test_every_report_knows_its_pipeline(store):
    """Who builds, who reads: a loader, graphs with and without Prefetcher, lists; a dataset not."""
    graph = {"num_workers": 2, "method": "process", "multiprocessing_context": "fork"}
    for options, lists, prefetched, pipeline in (
        ({}, False, False, Pipeline(0, CONSUMER)),
        ({"num_workers": 2}, False, True, Pipeline(2, AHEAD)),
        (graph, False, False, Pipeline(2, CONSUMER, rereads=True)),
        ({**graph, "finish": identity}, True, True, Pipeline(2, WORKERS)),
    ):
        source = ReuseSampler(SIZE, POLICY)
        source = Batcher(source, 4, drop_last=False) if lists else source
        with ReuseMapper(source, index_of, store, POLICY, **options) as mapper:
            assert mapper.report().newest is None
            root = Prefetcher(mapper, 2) if prefetched else mapper
            list(Loader(root))
            report = mapper.report()
            assert (report.pipeline, report.size) == (pipeline, SIZE)
            assert report.newest.ahead == prefetched
            vars(root).clear() if prefetched else None
    with ReuseDataLoader(index_of, SIZE, store, lifetime=LIFETIME) as loader:
        list(loader)
        assert loader.report().pipeline == Pipeline(0, WORKERS)
        assert "a dataset alone does not know" in str(loader.dataset.report())


def sleeping(key):
    time.sleep(0.02)  # that the machine's other load does not change
    return key.index


def test_behind_a_prefetcher_a_starving_consumer_is_told(store):
    """Whatever it is that takes the thread's time: here, a finish that sleeps."""
    policy = ReusePolicy(4)
    with ReuseMapper(
        ReuseSampler(20, policy), index_of, store, policy, num_workers=2, finish=dozing
    ) as mapper:
        root = Prefetcher(mapper, 2)
        list(Loader(root))
        assert mapper.report().input_bound is True
        vars(root).clear()


def dozing(sample, key):
    time.sleep(0.02)
    return sample


def test_a_pass_that_was_resumed_has_no_times(store):
    """What is left of an epoch is no epoch."""
    first = Loader(ReuseMapper(ReuseSampler(SIZE, POLICY), index_of, store, POLICY))
    next(iter(first))
    mapper = ReuseMapper(ReuseSampler(SIZE, POLICY), index_of, store, POLICY)
    loader = Loader(mapper)
    loader.load_state_dict(first.state_dict())
    assert len(list(loader)) == SIZE - 1
    assert mapper.report().newest is None
    list(loader)
    assert (mapper.report().newest.epoch, mapper.report().size) == (1, SIZE)


def test_bytes_are_those_of_hits_with_processes_too(store):
    """What a worker built is read back by the consumer, and is no hit."""
    options = MAPPERS["processes"]
    with ReuseMapper(ReuseSampler(SIZE, POLICY), index_of, store, POLICY, **options) as mapper:
        loader = Loader(mapper)
        list(loader)
        assert mapper.stats().bytes_read == mapper.stats().load_seconds == 0
        list(loader)
        record = mapper.stats().bytes_written / (SIZE - SIZE // LIFETIME + POLICY.builds(1, SIZE))
        assert mapper.stats().bytes_read == mapper.stats().hits * record


def test_the_report_of_one_lifetime_predicts_others(store):
    """Epochs of builds that sleep take about as long as the report of another run has said."""

    def run(lifetime):
        with ReuseDataLoader(
            sleeping,
            24,
            f"{store} {lifetime}",
            lifetime=lifetime,
            batch_size=4,
            **LOADERS["persistent"],
        ) as loader:
            for _ in range(3):
                list(loader)
            return loader.report()

    predicted = {at.lifetime: at.seconds for at in run(4).predictions}
    for lifetime in 1, 2:
        assert 0.5 < run(lifetime).newest.elapsed / predicted[lifetime] < 2


def test_shared_memory_is_small():
    """What torch would fill with threads is refused: a forked process would hang in it."""
    with pytest.raises(ValueError, match="size must be at most 32767, got 32768"):
        SharedBytes(2**15)


# --- samples that a format does not store ---------------------------------------------------------


def a_set(key):
    return {key.index}


@pytest.mark.parametrize("options", MAPPERS.values(), ids=MAPPERS.keys())
def test_what_need_not_be_stored_need_not_be_storable(options, store):
    """At lifetime 1 samples that format="tensors" refuses arrive by every method."""
    policy = ReusePolicy(1)
    with ReuseMapper(
        ReuseSampler(SIZE, policy, shuffle=False), a_set, store, policy, format="tensors", **options
    ) as mapper:
        samples = list(Loader(mapper))
    assert sorted(samples, key=min) == [{index} for index in range(SIZE)]
