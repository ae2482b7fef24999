"""nodes.ReuseMapper: which samples come, which are built, and what happens when something fails."""

import copy
import dataclasses
import json
import os
import threading
import traceback
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import FORKS
from nodes_helpers import (
    ERRORS,
    FALSY,
    CrowdBuild,
    Failing,
    FailingBuild,
    GatedBuild,
    Graph,
    LoggedBuild,
    LoggedInit,
    LoggedStore,
    Pulled,
    append,
    broken_finish,
    broken_load,
    broken_save,
    eventually,
    expected,
    expected_pass,
    falsy,
    flat,
    lines,
    listed,
    load_text,
    new_generations,
    no_worker_is_left,
    on_meta_device,
    only_none,
    pairs_of,
    run_python,
    sample_of,
    save_text,
    with_key,
)
from torchdata.nodes import BaseNode, IterableWrapper

from reuseloader import IndexEpoch, ReuseDataLoader, ReusePolicy, ReuseWarning
from reuseloader.nodes import ReuseMapper, ReuseSampler, WithEpoch

pytestmark = pytest.mark.filterwarnings(FORKS)

INLINE = Graph()
THREADS = Graph(workers=2)
PROCESSES = Graph(workers=2, method="process", context="fork")
MODES = {"inline": INLINE, "threads": THREADS, "processes": PROCESSES}
all_modes = pytest.mark.parametrize("graph", MODES.values(), ids=MODES.keys())


def variant(graph, **changes):
    return dataclasses.replace(graph, **changes)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    no_worker_is_left()


def passes_are_right(graph, epochs, path, build=sample_of, **options):
    with graph.loader(path, build, **options) as loader:
        for epoch in range(epochs):
            assert flat(list(loader)) == expected_pass(graph.policy, epoch, graph.size)


# Which samples


STREAMS = [
    INLINE,
    variant(INLINE, prebatch=1),
    variant(INLINE, prebatch=3, frequency=0),
    variant(INLINE, hop=3),
    variant(INLINE, with_epoch=True, in_order=False),
    THREADS,
    variant(THREADS, workers=3, prebatch=3, max_concurrent=1),
    variant(THREADS, in_order=False),
    variant(THREADS, in_order=False, prebatch=2, batch=3, prefetch=2),
    variant(THREADS, hop=2, in_order=False, frequency=3),
    variant(THREADS, with_epoch=True, hop=3, batch=2, prefetch=1),
    PROCESSES,
    variant(PROCESSES, workers=1, prebatch=3, max_concurrent=1),
    variant(PROCESSES, in_order=False, prebatch=2),
    variant(PROCESSES, hop=3, in_order=False),
    variant(PROCESSES, with_epoch=True, hop=2, prebatch=2, batch=2, prefetch=2),
    Graph(workers=2, method="process", context="spawn", batch=2, prefetch=2),
    Graph(workers=1, method="process", context="spawn", hop=4),
    Graph(workers=1, method="process", context="forkserver", in_order=False),
]


@pytest.mark.parametrize("graph", STREAMS, ids=str)
def test_the_same_stream_as_the_data_loader(tmp_path, graph):
    """Index, epoch, generation, seed, use and bits equal ReuseDataLoader's for every setting."""
    for lifetime in (3,) if graph.context == "spawn" else (1, 3):
        data_loader = ReuseDataLoader(
            sample_of,
            graph.size,
            tmp_path / f"loader {lifetime}",
            lifetime=lifetime,
            seed=graph.seed,
            finish=with_key,
            shuffle=True,
            batch_size=4,
            collate_fn=list,
        )
        settings = variant(graph, lifetime=lifetime)
        with settings.loader(tmp_path / f"graph {lifetime}") as loader:
            for epoch in range(lifetime + 2):
                samples = flat(list(data_loader))
                assert samples == expected_pass(settings.policy, epoch, graph.size)
                mine = flat(list(loader))
                if not graph.in_order:
                    mine, samples = sorted(mine), sorted(samples)
                assert mine == samples


@pytest.mark.parametrize("hop", [None, 3])
@pytest.mark.parametrize("lifetime", [1, 2, 3, 5])
@all_modes
def test_exactly_the_new_generations_are_built(tmp_path, graph, lifetime, hop):
    """Epoch 0 builds all, epoch e those with (e + i) % L == 0; hits change no file."""
    graph = variant(graph, lifetime=lifetime, hop=hop, batch=2, prefetch=2)
    check_builds(tmp_path, graph, 2 * lifetime + 2)


def test_exactly_the_new_generations_are_built_in_spawned_workers(tmp_path):
    """Spawned workers build the same."""
    check_builds(tmp_path, Graph(workers=1, method="process", context="spawn"), 5)


def check_builds(tmp_path, graph, epochs):
    folder, log = tmp_path / "samples", str(tmp_path / "log")
    with graph.loader(folder, LoggedBuild(log)) as loader:
        before = {}
        done = 0
        for epoch in range(epochs):
            assert flat(list(loader)) == expected_pass(graph.policy, epoch, graph.size)
            built = sorted(int(line.split()[0]) for line in lines(log)[done:])
            done += len(built)
            assert built == new_generations(graph.lifetime, epoch, graph.size)
            now = {
                int(file.stem): (file.stat().st_ino, file.stat().st_mtime_ns)
                for file in folder.glob("*.pt")
            }
            stored = {i for i in built if (epoch + i % graph.lifetime + 1) % graph.lifetime != 0}
            assert {i for i in now if now[i] != before.get(i)} == stored
            before = now
        names = {file.name for file in folder.iterdir()}
        if graph.lifetime == 1:
            assert names == set()
        else:
            samples = {f"{i:08}.pt" for i in range(graph.size)}
            assert {name for name in names if not name.endswith(".json")} <= samples
        if graph.method == "process":
            builders = {int(line.split()[2]) for line in lines(log)}
            assert os.getpid() not in builders


@all_modes
def test_the_static_cache(tmp_path, graph):
    """A very large lifetime builds each sample once, whatever epochs come."""
    log = str(tmp_path / "log")
    graph = variant(graph, lifetime=10**9)
    with graph.loader(tmp_path / "samples", LoggedBuild(log)) as loader:
        for epoch in range(4):
            assert list(loader) == expected_pass(graph.policy, epoch, graph.size)
    assert len(lines(log)) == graph.size


@all_modes
def test_build_gets_the_key_of_the_first_use(tmp_path, graph):
    """Also when a stored sample is lost in mid-life, build sees the epoch it was built for."""
    log = str(tmp_path / "log")
    graph = variant(graph, lifetime=4)
    with graph.loader(tmp_path / "samples", LoggedBuild(log)) as loader:
        for epoch in range(7):
            assert list(loader) == expected_pass(graph.policy, epoch, graph.size)
            for file in (tmp_path / "samples").glob("*.pt"):
                file.unlink()
    calls = [tuple(map(int, line.split()[:2])) for line in lines(log)]
    firsts = [
        (i, graph.policy.key(i, epoch).first_epoch) for epoch in range(7) for i in range(graph.size)
    ]
    assert sorted(calls) == sorted(firsts)


@pytest.mark.parametrize("hop", [None, 2])
@all_modes
def test_custom_save_and_load(tmp_path, graph, hop):
    """A save and load of the user's carry all samples that are stored, losslessly."""
    graph = variant(graph, hop=hop)
    with graph.loader(tmp_path, save=save_text, load=load_text) as loader:
        for epoch in range(5):
            assert flat(list(loader)) == expected_pass(graph.policy, epoch, graph.size)
    stored = next(tmp_path.glob("*.pt")).read_bytes()
    assert stored.startswith(b'{"index":')


@all_modes
def test_two_start_epochs_and_sizes(tmp_path, graph):
    """Sizes that fill no batch, a size of 0 and another first epoch give whole passes."""
    for size in (0, 1, 2, 7):
        for start_epoch in (0, 5):
            settings = variant(graph, size=size, start_epoch=start_epoch, prebatch=3)
            with settings.loader(tmp_path / f"{size} {start_epoch}") as loader:
                for epoch in range(start_epoch, start_epoch + 2):
                    assert list(loader) == expected_pass(settings.policy, epoch, size)


@pytest.mark.parametrize("hop", [None, 2])
@all_modes
def test_none_and_falsy_are_samples(tmp_path, graph, hop):
    """None, 0, empty strings, lists and tensors are delivered, stored and read like any other."""
    graph = variant(graph, size=len(FALSY), shuffle=False, hop=hop)
    with graph.loader(tmp_path, falsy, finish=None) as loader:
        for _ in range(4):
            items = list(loader)
            samples = items if hop is None else [sample for item in items for sample in item]
            assert [repr(sample) for sample in samples] == [repr(sample) for sample in FALSY]
            assert [type(sample) for sample in samples] == [type(sample) for sample in FALSY]


@all_modes
def test_nothing_but_none(tmp_path, graph):
    """Passes of only None are as long as others."""
    with variant(graph, prefetch=2).loader(tmp_path, only_none, finish=None) as loader:
        for _ in range(4):
            assert list(loader) == [None] * graph.size


@all_modes
def test_indices_may_come_again(tmp_path, graph):
    """An index several times in a pass, within the look-ahead, is the same sample each time."""
    indices = [3, 3, 0, 3, 1, 1, 3, 0, 8, 8, 8, 3]
    mapper = graph.mapper(tmp_path, source=WithEpoch(listed(indices)))
    with mapper:
        for epoch in range(4):
            mapper.reset()
            assert list(mapper) == [expected(graph.policy, i, epoch) for i in indices]


@all_modes
def test_a_pass_may_mix_epochs(tmp_path, graph):
    """The pair decides, item by item and within a list."""
    pairs = [IndexEpoch(i % 4, e) for i, e in enumerate([0, 3, 1, 7, 2, 0, 9, 4])]
    lists = [pairs[:3], [], pairs[3:]]
    for number, items in enumerate((pairs, lists)):
        mapper = graph.mapper(tmp_path / str(number), source=listed(items))
        with mapper:
            for _ in range(2):
                mapper.reset()
                made = list(mapper)
                assert flat(made) == [expected(graph.policy, *pair) for pair in pairs]
                assert items is pairs or [len(item) for item in made] == [3, 0, 5]


@all_modes
def test_finish_runs_at_every_use(tmp_path, graph):
    """Each use has its own key in finish; what finish does to a sample is never stored."""

    def finish(sample, key):
        sample["index"] = -1  # must not come back in the next epoch
        return sample["seed"], key

    for hop in (None, 3):
        settings = variant(graph, hop=hop, lifetime=4)
        with settings.loader(tmp_path / str(hop), finish=finish) as loader:
            for epoch in range(5):
                samples = flat(list(loader))
                keys = [settings.policy.key(*p) for p in pairs_of(settings.policy, epoch, 11)]
                assert samples == [(key.seed, key) for key in keys]
        with settings.loader(tmp_path / str(hop)) as loader:
            assert flat(list(loader)) == expected_pass(settings.policy, 0, 11)


def test_a_store_of_the_users_own(tmp_path):
    """A store without `tail` works; with processes only the consumer reads hits."""
    log = str(tmp_path / "log")
    store = LoggedStore(str(tmp_path / "samples"))
    with PROCESSES.loader(store, LoggedBuild(log)) as loader:
        for epoch in range(5):
            assert list(loader) == expected_pass(PROCESSES.policy, epoch, PROCESSES.size)
    assert {int(line.split()[1]) for line in lines(store.log)} == {os.getpid()}
    assert os.getpid() not in {int(line.split()[2]) for line in lines(log)}
    assert len(lines(log)) == sum(len(new_generations(3, e, 11)) for e in range(5))


# The node


@all_modes
def test_a_node_by_the_contract(tmp_path, graph):
    """A node is its own iterator, starts by itself, and goes on saying that a pass is over."""
    with graph.mapper(tmp_path) as node:
        assert isinstance(node, BaseNode)
        assert iter(node) is node
        first = next(node)
        assert iter(node) is node
        assert [first, *node] == expected_pass(graph.policy, 0, graph.size)
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(node)
        node.reset()
        assert list(node) == expected_pass(graph.policy, 1, graph.size)


@all_modes
def test_every_reset_is_an_epoch(tmp_path, graph):
    """Breaks, ends of passes, unread resets and states asked for before iter all count right."""
    with graph.mapper(tmp_path) as node:
        for _ in range(3):
            node.reset()
        next(node)
        node.reset()
        assert list(node) == expected_pass(graph.policy, 3, graph.size)
    with graph.loader(tmp_path) as loader:
        loader.state_dict()
        assert next(iter(loader)) == expected_pass(graph.policy, 0, graph.size)[0]
        assert next(iter(loader)) == expected_pass(graph.policy, 1, graph.size)[0]
        assert list(loader) == expected_pass(graph.policy, 2, graph.size)
        assert list(loader) == expected_pass(graph.policy, 3, graph.size)


@pytest.mark.parametrize("frequency", [0, 1, 3])
@all_modes
def test_state_is_plain_and_fresh(tmp_path, graph, frequency):
    """Before, during and after a pass the state survives JSON and nobody else holds any of it."""
    graph = variant(graph, frequency=frequency)
    with graph.mapper(tmp_path) as node:
        for taken in range(graph.size + 1):
            state = node.state_dict()
            before = copy.deepcopy(state)
            assert json.loads(json.dumps(state)) == before
            spoil(state)
            assert node.state_dict() == before
            if taken < graph.size:
                assert next(node) == expected_pass(graph.policy, 0, graph.size)[taken]
        assert list(node) == []


def spoil(state):
    """Change everything in a state."""
    for name, value in state.items():
        if isinstance(value, dict):
            spoil(value)
        elif isinstance(value, list):
            value.append(99)
        else:
            state[name] = 99


@all_modes
def test_a_state_is_not_changed_by_its_use(tmp_path, graph):
    """A state can be loaded any number of times, whatever was read since."""
    with variant(graph, in_order=False).mapper(tmp_path) as node:
        for _ in range(4):
            next(node)
        state = node.state_dict()
        kept = copy.deepcopy(state)
        rests = []
        for _ in range(3):
            node.reset(state)
            rests.append(sorted(node))
            assert state == kept
        assert len(rests[0]) == graph.size - 4
        assert rests[0] == rests[1] == rests[2]


@all_modes
def test_close_ends_and_reset_begins_anew(tmp_path, graph):
    """After close, in mid-pass or not, a reset works as if nothing had been."""
    mapper = graph.mapper(tmp_path)
    mapper.close()
    for epoch in range(3):
        mapper.reset()
        assert next(mapper) == expected_pass(graph.policy, epoch, graph.size)[0]
        mapper.close()
        mapper.close()
    with mapper:
        mapper.reset()
        assert list(mapper) == expected_pass(graph.policy, 3, graph.size)
    no_worker_is_left()


def test_a_read_after_close_is_an_error(tmp_path):
    """A pass that was closed does not end as if it were complete."""
    for graph in (THREADS, PROCESSES):
        mapper = graph.mapper(tmp_path)
        next(mapper)
        mapper.close()
        with pytest.raises(Exception):  # noqa: B017, PT011  # which one is free
            list(mapper)


# How much at a time


@pytest.mark.parametrize("prebatch", [None, 2])
@pytest.mark.parametrize("method", ["thread", "process"])
def test_max_concurrent_bounds_the_builds(tmp_path, method, prebatch):
    """No more than max_concurrent builds run at a time, and no fewer where there is enough."""
    for limit in (1, 2):
        folder = tmp_path / str(limit)
        folder.mkdir()
        graph = Graph(24, workers=4, method=method, max_concurrent=limit, prebatch=prebatch)
        with graph.loader(tmp_path / f"samples {limit}", CrowdBuild(str(folder))) as loader:
            assert list(loader) == expected_pass(graph.policy, 0, 24)
        crowd = [int(line) for line in lines(f"{folder}/crowd")]
        assert len(crowd) == 24
        assert max(crowd) <= limit


@pytest.mark.parametrize("max_concurrent", [None, 1, 5])
@pytest.mark.parametrize("prebatch", [None, 2])
@pytest.mark.parametrize("method", ["thread", "process"])
def test_no_build_is_begun_too_early(tmp_path, method, prebatch, max_concurrent):
    """Builds begun and not yet taken are at most max_concurrent messages, 2 * workers at first."""
    limit = (max_concurrent or 4) * (prebatch or 1)
    for lifetime in (1, 3, 10**9):
        log = str(tmp_path / f"log {lifetime}")
        graph = Graph(
            40, lifetime, workers=2, method=method, max_concurrent=max_concurrent, prebatch=prebatch
        )
        with graph.mapper(tmp_path / str(lifetime), LoggedBuild(log)) as mapper:
            taken = [next(mapper) for _ in range(8)]
            begun = lines(log)  # nobody begins another one until the next is asked for ...
        most = len(taken) + limit + (prebatch or 1) - 1
        assert len(taken) <= len(begun) <= len(lines(log)) <= most  # ... and close awaits these


def test_look_ahead_keeps_the_workers_busy(tmp_path):
    """With one build in `lifetime` pairs, as many builds run at a time as may."""
    meet = threading.Barrier(3, timeout=60)

    def build(key):
        if key.epoch > 0:
            meet.wait()
        return sample_of(key)

    graph = Graph(60, lifetime=5, workers=3, max_concurrent=3)
    with graph.loader(tmp_path, build) as loader:
        for epoch in range(3):
            assert list(loader) == expected_pass(graph.policy, epoch, 60)


@pytest.mark.parametrize("method", ["thread", "process"])
def test_look_ahead_is_bounded(tmp_path, method):
    """However long the lifetime and the run of hits, the source is not read far ahead."""
    for lifetime, most in ((1, 4), (4, 4 * 4), (10**9, 2048)):
        source = Pulled(WithEpoch(listed([0] * 20_000)))
        graph = Graph(lifetime=lifetime, workers=2, method=method, context="fork", max_concurrent=2)
        with graph.mapper(tmp_path / str(lifetime), source=source) as mapper:
            for taken in range(1, 50):
                next(mapper)
                assert source.count <= taken + most


def test_inline_reads_nothing_ahead(tmp_path):
    """Without workers, pairs are pulled and built when their samples are asked for."""
    log = str(tmp_path / "log")
    for prebatch in (1, 3):
        graph = Graph(prebatch=prebatch)
        source = Pulled(graph.pairs())
        with graph.mapper(tmp_path / str(prebatch), LoggedBuild(log), source=source) as mapper:
            for taken in range(1, 8):
                next(mapper)
                assert source.count <= -(-taken // prebatch) * prebatch


@all_modes
def test_hits_are_read_when_taken(tmp_path, graph):
    """What lies ahead is not held in memory: a file lost meanwhile is built when its turn comes."""
    log = str(tmp_path / "log")
    graph = variant(graph, lifetime=10**9, size=8)
    with graph.loader(tmp_path / "samples", LoggedBuild(log)) as loader:
        list(loader)
        iterator = iter(loader)
        assert next(iterator) == expected_pass(graph.policy, 1, 8)[0]
        assert len(lines(log)) == 8
        lost = graph.policy.order(5, 1, 8)
        (tmp_path / f"samples/{lost:08}.pt").unlink()
        assert list(iterator) == expected_pass(graph.policy, 1, 8)[1:]
    assert [int(line.split()[0]) for line in lines(log)[8:]] == [lost]


@pytest.mark.parametrize("method", ["thread", "process"])
def test_out_of_order_delivers_what_is_ready(tmp_path, method):
    """in_order=False does not wait for a slow sample; in_order=True does."""
    graph = Graph(workers=2, method=method, context="fork", in_order=False)
    order = [graph.policy.order(p, 0, graph.size) for p in range(graph.size)]
    build = GatedBuild(str(tmp_path), (order[0],))
    with graph.loader(tmp_path / "samples", build) as loader:
        iterator = iter(loader)
        early = [next(iterator)[0] for _ in order[1:]]
        assert sorted(early) == sorted(order[1:])
        build.open()
        assert [sample[0] for sample in iterator] == order[:1]
        assert sorted(loader) == sorted(expected_pass(graph.policy, 1, graph.size))


def test_order_is_kept_whatever_is_ready(tmp_path):
    """in_order=True delivers a slow first sample first."""
    graph = Graph(workers=2, max_concurrent=4)
    order = [graph.policy.order(p, 0, graph.size) for p in range(graph.size)]
    build = GatedBuild(str(tmp_path), (order[0],))

    def open_late():
        eventually(lambda: len(lines(f"{tmp_path}/built")) == 3, "the others to be built")
        build.open()

    opener = threading.Thread(target=open_late)
    opener.start()
    with graph.loader(tmp_path / "samples", build) as loader:
        assert list(loader) == expected_pass(graph.policy, 0, graph.size)
    opener.join()


# Failures


def told(error):
    """All that a user sees of an error."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("hop", [None, 2])
@pytest.mark.parametrize("error", ["ordinary", "reduced", "awkward", "unpicklable", "chained"])
@all_modes
def test_an_error_in_build(tmp_path, graph, error, hop):
    """It is raised with its text, index and epoch, after the samples before it; a reset goes on."""
    graph = variant(graph, shuffle=False, size=6, hop=hop)
    with graph.loader(tmp_path, FailingBuild(error, 4), finish=None) as loader:
        for epoch in range(2):
            with pytest.raises(Exception, match="the reason") as caught:
                list(loader)
            assert "index 4" in told(caught.value)
            assert f"epoch {epoch}" in told(caught.value) or graph.policy.key(4, epoch).use
            survives = error in ("ordinary", "reduced", "chained") or graph.method == "thread"
            assert not survives or caught.type is type(ERRORS[error]())
            loader.state_dict()
        iterator = iter(loader)
        items = [next(iterator) for _ in range(4 // (hop or 1))]
        assert [sample["index"] for sample in flat(items)] == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(Exception, match="the reason"):
                next(iterator)


@pytest.mark.parametrize("prefetch", [None, 2])
@all_modes
def test_a_stop_iteration_in_build(tmp_path, graph, prefetch):
    """It is an error that names the sample; it does not end the pass in silence."""
    graph = variant(graph, prefetch=prefetch)
    with graph.loader(tmp_path, FailingBuild("stop", 4)) as loader:
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            list(loader)
        assert "index 4" in told(caught.value)


EXITS = """
import tempfile, threading
def consume(name, graph):
    try:
        with graph.loader(tempfile.mkdtemp(dir=sys.argv[1]), FailingBuild("exit", 4)) as loader:
            outcomes[name] = f"{len(list(loader))} samples"
    except BaseException as error:
        outcomes[name] = f"{type(error).__name__}: {error}"

graphs = {
    f"{name}, prefetch={prefetch}": Graph(workers=workers, method=method, prefetch=prefetch)
    for name, workers, method in (
        ("processes", 2, "process"), ("threads", 2, "thread"), ("inline", 0, "thread")
    )
    for prefetch in (None, 2)
}
outcomes = dict.fromkeys(graphs, "hangs")
for pair in graphs.items():
    consumer = threading.Thread(target=consume, args=pair, daemon=True)
    consumer.start()
    consumer.join(10)
print(json.dumps(outcomes), flush=True)
for child in descendants(os.getpid()):
    child.kill()
os._exit(0)
"""


def test_a_system_exit_in_build(tmp_path):
    """It is raised, as it is or as an error, also under a Prefetcher; nobody waits for ever."""
    outcomes = json.loads(run_python(EXITS, arguments=[str(tmp_path)]))
    assert {
        name: outcome
        for name, outcome in outcomes.items()
        if "the reason" not in outcome or not outcome.startswith(("SystemExit", "RuntimeError"))
    } == {}


@pytest.mark.parametrize("hop", [None, 3])
@all_modes
def test_errors_in_finish_and_save(tmp_path, graph, hop):
    """They carry the index and epoch too, also where a sample is only sent, not stored."""
    for lifetime in (1, 3):
        settings = variant(graph, hop=hop, lifetime=lifetime)
        with settings.loader(tmp_path / f"finish {lifetime}", finish=broken_finish) as loader:
            with pytest.raises(ValueError, match="finish is broken") as caught:
                list(loader)
            assert "index" in told(caught.value)
            assert "epoch 0" in told(caught.value)
        options = {"save": broken_save, "load": load_text}
        if lifetime == 1 and (hop or graph.method == "thread"):  # nothing has to be saved
            passes_are_right(settings, 2, tmp_path / "no save", **options)
            continue
        with settings.loader(tmp_path / f"save {lifetime}", **options) as loader:
            with pytest.raises(ValueError, match="save is broken") as caught:
                list(loader)
            assert "in save for index" in told(caught.value)


@pytest.mark.parametrize("hop", [None, 3])
@all_modes
def test_a_load_that_always_fails(tmp_path, graph, hop):
    """The samples are right all the same, built anew, and one warning says why."""
    graph = variant(graph, hop=hop)
    with pytest.warns(ReuseWarning, match="load is broken") as caught:
        passes_are_right(graph, 4, tmp_path, save=save_text, load=broken_load)
    assert len(caught) == 1
    assert str(tmp_path) in str(caught[0].message)


@all_modes
def test_tensors_on_another_device(tmp_path, graph):
    """They are a TypeError at every build, with any lifetime, never a miss."""
    for lifetime in (1, 3):
        settings = variant(graph, lifetime=lifetime)
        for _ in range(2):
            with (
                settings.loader(tmp_path / str(lifetime), on_meta_device, finish=None) as loader,
                pytest.raises(TypeError, match="meta"),
            ):
                list(loader)


BAD_ITEMS = [5, None, "5", (5, 0), IndexEpoch, [5], [IndexEpoch(0, 0), 5], {"index": 5}]


@pytest.mark.parametrize("prebatch", [None, 3])
@pytest.mark.parametrize("item", BAD_ITEMS, ids=repr)
@pytest.mark.parametrize("graph", [INLINE, THREADS], ids=["inline", "threads"])
def test_an_item_that_is_no_pair(tmp_path, graph, item, prebatch):
    """A TypeError points to WithEpoch and shows the item, after all that came before it."""
    check_bad_item(variant(graph, prebatch=prebatch), tmp_path, item)


def test_an_item_that_is_no_pair_before_processes(tmp_path):
    """The same where builds go to processes."""
    check_bad_item(variant(PROCESSES, prebatch=3), tmp_path, 5)
    check_bad_item(PROCESSES, tmp_path, [5])


def check_bad_item(graph, tmp_path, item):
    before = [IndexEpoch(i, 0) for i in range(5)]
    with graph.mapper(tmp_path, source=listed([*before, item, IndexEpoch(6, 0)])) as mapper:
        for pair in before:
            assert next(mapper) == expected(graph.policy, *pair)
        for _ in range(2):
            with pytest.raises(TypeError, match="WithEpoch") as caught:
                next(mapper)
            assert repr(item) in str(caught.value)


@pytest.mark.parametrize("prebatch", [None, 3])
@all_modes
def test_an_error_in_the_source(tmp_path, graph, prebatch):
    """What the source gave before its error is delivered first, in order or not."""
    pairs = [IndexEpoch(i, 0) for i in range(5)]
    for in_order in (True, False):
        settings = variant(graph, prebatch=prebatch, in_order=in_order)
        source = IterableWrapper(Failing(pairs, OSError("no more")))
        with settings.mapper(tmp_path, source=source) as mapper:
            for _ in range(2):
                mapper.reset()
                got = [next(mapper) for _ in pairs]
                assert sorted(got) == [expected(settings.policy, *pair) for pair in pairs]
                for _ in range(2):
                    with pytest.raises(OSError, match="no more"):
                        next(mapper)


@all_modes
def test_indices_out_of_range(tmp_path, graph):
    """With a size, an index beyond it is an IndexError; a negative one is always an error."""
    for item, error in ((IndexEpoch(6, 0), IndexError), (IndexEpoch(-1, 0), Exception)):
        for listing in (item, [item]):
            source = listed([IndexEpoch(5, 0), listing])
            with graph.mapper(tmp_path, source=source, size=6) as mapper:
                assert next(mapper) == expected(graph.policy, 5, 0)
                with pytest.raises(error, match=str(item.index)):
                    next(mapper)
    assert {file.name for file in tmp_path.glob("*.pt")} <= {"00000005.pt"}


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "flipped": lambda file: file.write_bytes(
        file.read_bytes()[:100] + bytes([file.read_bytes()[100] ^ 1]) + file.read_bytes()[101:]
    ),
    "zeroed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "foreign": lambda file: file.write_bytes(b"not of ours" * 100),
}


@pytest.mark.parametrize("hop", [None, 3])
@all_modes
def test_damaged_files(tmp_path, graph, hop):
    """Right samples whatever happens to the files; one warning, at the end of the pass."""
    graph = variant(graph, size=9, lifetime=10**9, hop=hop)
    with graph.loader(tmp_path) as loader:
        list(loader)
        for epoch in range(1, 4):
            for index, damage in enumerate(DAMAGES.values()):
                damage(tmp_path / f"{index:08}.pt")
            with warnings.catch_warnings(record=True, action="always") as caught:
                assert flat(list(loader)) == expected_pass(graph.policy, epoch, 9)
            assert [warning.category for warning in caught] == [ReuseWarning] * (epoch == 1)
            if caught:
                assert "could not be read" in str(caught[0].message)
                assert str(tmp_path) in str(caught[0].message)
        assert not list(tmp_path.glob("*.tmp"))


@all_modes
def test_a_file_that_cannot_be_replaced(tmp_path, graph):
    """A directory in the place of a file: built at each use, one warning of each kind."""
    graph = variant(graph, lifetime=10**9)
    (tmp_path / "00000003.pt").mkdir()
    with pytest.warns(ReuseWarning, match="This is said once") as caught:
        passes_are_right(graph, 3, tmp_path)
    assert sorted("could not be stored" in str(warning.message) for warning in caught) == [
        False,
        True,
    ]


@all_modes
def test_files_that_get_lost_are_not_worth_a_warning(tmp_path, graph):
    """A file that is gone, or of another generation, is simply built anew."""
    with variant(graph, lifetime=4).loader(tmp_path) as loader:
        for epoch in range(6):
            assert list(loader) == expected_pass(ReusePolicy(4, 7), epoch, graph.size)
            (tmp_path / "00000001.pt").unlink(missing_ok=True)
            if (tmp_path / "00000002.pt").exists():
                os.replace(tmp_path / "00000002.pt", tmp_path / "00000003.pt")


# Workers that are threads


def test_worker_init_fn_in_threads(tmp_path):
    """It is called once in each thread, with the numbers from 0 on, over all epochs."""
    log = str(tmp_path / "log")
    graph = Graph(workers=3)
    with graph.loader(tmp_path / "samples", worker_init_fn=LoggedInit(log, expect=3)) as loader:
        for epoch in range(3):
            assert list(loader) == expected_pass(graph.policy, epoch, graph.size)
    calls = [line.split() for line in lines(log)]
    assert sorted(int(worker) for worker, *_ in calls) == [0, 1, 2]
    assert len({thread for *_, thread in calls}) == 3
    assert threading.get_ident() not in {int(thread) for *_, thread in calls}


def test_worker_init_fn_after_close(tmp_path):
    """Workers that are started anew are numbered from 0 again."""
    for graph in (variant(THREADS, workers=1), variant(PROCESSES, workers=1)):
        log = str(tmp_path / f"log of {graph.method}")
        mapper = graph.mapper(tmp_path / "samples", worker_init_fn=LoggedInit(log))
        for _ in range(2):
            mapper.reset()
            list(mapper)
            mapper.close()
        assert [line.split()[0] for line in lines(log)] == ["0", "0"]


@pytest.mark.parametrize("error", ["ordinary", "awkward", "unpicklable", "stop"])
@pytest.mark.parametrize("graph", [THREADS, PROCESSES], ids=["threads", "processes"])
def test_a_failing_worker_init_fn(tmp_path, graph, error):
    """Its own error is raised in every pass that needs workers, with the worker's number."""
    init = LoggedInit(str(tmp_path / "log"), error=error)
    with graph.loader(tmp_path / "samples", worker_init_fn=init) as loader:
        for _ in range(2):
            with pytest.raises(Exception, match="the reason") as caught:
                list(loader)
            assert "worker_init_fn of worker" in told(caught.value)


def test_worker_init_fn_without_workers(tmp_path):
    """Without workers there is nothing to initialise."""
    log = str(tmp_path / "log")
    with INLINE.loader(tmp_path / "samples", worker_init_fn=LoggedInit(log)) as loader:
        assert list(loader) == expected_pass(INLINE.policy, 0, INLINE.size)
    assert lines(log) == []


def test_lambdas_and_closures_in_threads_and_forked_processes(tmp_path):
    """Nothing need be picklable where nothing is pickled."""
    offset = 3
    for name, graph in MODES.items():
        with graph.loader(
            tmp_path / name,
            lambda key: key.index + offset,
            finish=lambda sample, key: (sample, key.epoch),
            worker_init_fn=lambda worker: append(str(tmp_path / "log"), str(worker + offset)),
        ) as loader:
            for epoch in range(3):
                assert sorted(loader) == [(i + 3, epoch) for i in range(graph.size)]


# Arguments


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (TypeError, "source", [IndexEpoch(0, 0)]),
        (TypeError, "source", None),
        (TypeError, "build", None),
        (TypeError, "build", "build"),
        (TypeError, "path", None),
        (TypeError, "path", 3),
        (TypeError, "path", b"path"),
        (ValueError, "path", ""),
        (TypeError, "policy", 3),
        (ValueError, "size", -1),
        (TypeError, "size", 1.0),
        (TypeError, "size", True),
        (TypeError, "fingerprint", None),
        (TypeError, "fingerprint", b"x"),
        (TypeError, "save", 1),
        (TypeError, "load", "load"),
        (TypeError, "finish", 1),
        (ValueError, "format", "npy"),
        (ValueError, "format", None),
        (ValueError, "num_workers", -1),
        (TypeError, "num_workers", 1.0),
        (TypeError, "num_workers", True),
        (TypeError, "num_workers", None),
        (TypeError, "in_order", 1),
        (TypeError, "in_order", None),
        (ValueError, "method", "threads"),
        (ValueError, "method", None),
        (ValueError, "max_concurrent", 0),
        (ValueError, "max_concurrent", -3),
        (TypeError, "max_concurrent", 1.5),
        (TypeError, "max_concurrent", True),
        (ValueError, "snapshot_frequency", -1),
        (TypeError, "snapshot_frequency", 0.5),
        (TypeError, "snapshot_frequency", None),
        (ValueError, "prebatch", 0),
        (TypeError, "prebatch", 2.0),
        (TypeError, "worker_init_fn", 1),
        (ValueError, "multiprocessing_context", "threads"),
        (ValueError, "multiprocessing_context", 3),
    ],
    ids=repr,
)
def test_bad_arguments(tmp_path, error, name, value):
    """One error at once that names the argument and shows the value, whatever the method."""
    policy = ReusePolicy(2)
    for method in ("thread", "process"):
        options = {
            "source": ReuseSampler(3, policy),
            "build": sample_of,
            "path": tmp_path,
            "policy": policy,
            "num_workers": 1,
            "method": method,
            name: value,
        }
        with pytest.raises(error, match=name) as caught:
            ReuseMapper(*[options.pop(n) for n in ("source", "build", "path", "policy")], **options)
        assert repr(value) in str(caught.value)


class Items(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([1])


@pytest.mark.parametrize(("build", "word"), [(Items(), "Dataset"), (Stream(), "stream")])
def test_a_dataset_is_no_build(tmp_path, build, word):
    """A dataset in the place of build is a TypeError that says what to pass instead."""
    with pytest.raises(TypeError, match=word):
        INLINE.mapper(tmp_path, build)


def test_an_unusable_path(tmp_path):
    """It fails at construction, with the path in the message."""
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(OSError, match=str(file)):
            INLINE.mapper(path)


def test_options_are_keywords(tmp_path):
    """What follows the policy is given by name."""
    policy = ReusePolicy(2)
    with pytest.raises(TypeError):
        ReuseMapper(ReuseSampler(3, policy), sample_of, tmp_path, policy, 3)


def test_integers_of_any_type(tmp_path):
    """Numbers may be NumPy or torch integers; a path may be a str or a Path."""
    policy = ReusePolicy(2)
    for path in (tmp_path, str(tmp_path)):
        mapper = ReuseMapper(
            ReuseSampler(3, policy),
            sample_of,
            path,
            policy,
            size=np.int64(3),
            num_workers=torch.tensor(1),
            max_concurrent=np.uint8(2),
            snapshot_frequency=np.int32(1),
            prebatch=np.int64(2),
        )
        with mapper:
            assert len(list(mapper)) == 3


def test_the_directory_is_made_absolute(tmp_path, monkeypatch):
    """A change of the working directory does not move the samples."""
    monkeypatch.chdir(tmp_path)
    with INLINE.loader("samples") as loader:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        list(loader)
    assert list(Path("..").glob("samples/*.pt"))
    assert not os.listdir(".")


def test_two_mappers_side_by_side(tmp_path):
    """Graphs that are alive at the same time do not know of each other."""
    graphs = [PROCESSES, variant(THREADS, lifetime=2), variant(PROCESSES, seed=1)]
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(variant(graph, prefetch=2).loader(tmp_path / str(number)))
            for number, graph in enumerate(graphs)
        ]
        for epoch in range(3):
            iterators = [iter(loader) for loader in loaders]
            rows = list(zip(*iterators, strict=True))
            for graph, samples in zip(graphs, zip(*rows, strict=True), strict=True):
                assert list(samples) == expected_pass(graph.policy, epoch, graph.size)
