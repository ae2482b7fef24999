"""nodes.ReuseMapper: which samples come, which are built, and that it is a node."""

import copy
import json
import os

import pytest
from nodes_helpers import (
    FALSY,
    INLINE,
    MARKS,
    PROCESSES,
    THREADS,
    Graph,
    LoggedBuild,
    LoggedStore,
    all_modes,
    expected,
    expected_pass,
    falsy,
    flat,
    lines,
    listed,
    load_text,
    new_generations,
    no_worker_is_left,
    only_none,
    pairs_of,
    sample_of,
    save_text,
    variant,
    with_key,
)
from torchdata.nodes import BaseNode

from reuseloader import IndexEpoch, ReuseDataLoader
from reuseloader.nodes import WithEpoch

pytestmark = MARKS


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
