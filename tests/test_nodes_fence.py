"""A pass that is broken off, while a slow build is under way, takes nothing from the next one."""

import dataclasses
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from nodes_helpers import (
    MARKS,
    PATIENCE,
    GatedBuild,
    Graph,
    eventually,
    expected_pass,
    flat,
    loading,
    sample_of,
    variant,
    what_is_left,
)
from torchdata.nodes import BaseNode, Batcher, Loader, ParallelMapper, Prefetcher

from reuseloader.nodes import ReuseMapper, ReuseSampler

pytestmark = MARKS

SIZE = 24
INLINE = Graph(SIZE, batch=4, prefetch=2)
THREADS = Graph(SIZE, batch=4, prefetch=2, workers=2)
PROCESSES = Graph(SIZE, batch=4, prefetch=2, workers=2, method="process", context="fork")
GRAPHS = [
    INLINE,
    variant(INLINE, prebatch=3),
    variant(INLINE, hop=2, batch=2, with_epoch=True),
    THREADS,
    variant(THREADS, in_order=False),
    variant(THREADS, prebatch=3, batch=3),
    variant(THREADS, hop=2, batch=2, with_epoch=True),
    PROCESSES,
    variant(PROCESSES, in_order=False, prebatch=2),
    variant(PROCESSES, hop=4, batch=None, with_epoch=True),
]


def readers():
    """The threads of torchdata that read a graph."""
    return [t for t in threading.enumerate() if "_populate_queue" in t.name]


def wait_for(threads):
    """Let threads that were abandoned do all that they are going to do."""
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def gated(folder, graph, position=9, epoch=0):
    """A build that waits at one position of one epoch, where a generation of one epoch begins."""
    index = graph.policy.order(position, epoch, SIZE)
    return GatedBuild(str(folder), (index,), epoch)


def single(graph):
    """The same graph without reuse: every epoch builds all, and a stuck build concerns one."""
    return variant(graph, lifetime=1)


each_kind = pytest.mark.parametrize(
    "graph", [single(graph) for graph in (INLINE, THREADS, PROCESSES)], ids=str
)


def same(samples, graph, epoch):
    whole = expected_pass(graph.policy, epoch, SIZE)
    return (samples if graph.in_order else sorted(samples)) == (
        whole if graph.in_order else sorted(whole)
    )


@pytest.mark.parametrize("graph", [single(graph) for graph in GRAPHS], ids=str)
def test_a_break_during_a_slow_build(tmp_path, graph):
    """The next pass, begun meanwhile, has every sample once, and so has the one after it."""
    build = gated(tmp_path, graph)
    with graph.loader(tmp_path / "samples", build) as loader:
        next(iter(loader))
        eventually(build.waiting, "the slow build to begin")
        left_over = readers()
        iterator = iter(loader)
        samples = flat([next(iterator)])
        assert build.waiting()
        build.open()
        wait_for(left_over)
        samples += flat(list(iterator))
        assert same(samples, graph, 1)
        for epoch in (2, 3):
            assert same(flat(list(loader)), graph, epoch)


@each_kind
def test_the_slow_build_ends_late(tmp_path, graph):
    """A whole pass comes and goes while a build of the one before still runs."""
    build = gated(tmp_path, graph)
    with graph.loader(tmp_path / "samples", build) as loader:
        next(iter(loader))
        eventually(build.waiting, "the slow build to begin")
        left_over = readers()
        assert same(flat(list(loader)), graph, 1)
        build.open()
        wait_for(left_over)
        assert same(flat(list(loader)), graph, 2)


@each_kind
def test_many_resets_during_a_slow_build(tmp_path, graph):
    """Each counts as an epoch; the last is whole."""
    build = gated(tmp_path, graph)
    with graph.loader(tmp_path / "samples", build) as loader:
        next(iter(loader))
        eventually(build.waiting, "the slow build to begin")
        left_over = readers()
        for _ in range(4):
            iterator = iter(loader)
        samples = flat([next(iterator)])
        build.open()
        wait_for(left_over)
        assert same(samples + flat(list(iterator)), graph, 4)
        assert same(flat(list(loader)), graph, 5)


@each_kind
def test_every_pass_is_broken_off(tmp_path, graph):
    """Several passes in a row that are each left in a slow build, all of them still running."""
    builds = [gated(tmp_path, graph, epoch=epoch) for epoch in range(2)]
    graph = variant(graph, workers=4 if graph.workers else 0)
    with graph.loader(tmp_path / "samples", EachOnce(builds)) as loader:
        for number in range(2):
            next(iter(loader))
            eventually(lambda n=number: len(builds[0].waiting()) == n + 1, "a slow build")
        left_over = readers()
        iterator = iter(loader)
        samples = flat([next(iterator)])
        builds[0].open()
        wait_for(left_over)
        assert same(samples + flat(list(iterator)), graph, 2)
        assert same(flat(list(loader)), graph, 3)


@dataclasses.dataclass(frozen=True)
class EachOnce:
    """Waits wherever one of several builds would."""

    builds: list[GatedBuild]

    def __call__(self, key):
        for build in self.builds:
            if key.epoch == build.epoch and key.index in build.indices:
                return build(key)
        return sample_of(key)


@each_kind
def test_a_resume_during_a_slow_build(tmp_path, graph):
    """Going back to a state of the pass that is stuck reads it again, whole."""
    build = gated(tmp_path, graph)
    with graph.loader(tmp_path / "samples", build) as loader:
        iterator = iter(loader)
        samples = flat([next(iterator)])
        state = loader.state_dict()
        eventually(build.waiting, "the slow build to begin")
        left_over = readers()
        loader.load_state_dict(state)
        iterator = iter(loader)
        samples += flat([next(iterator)])
        build.open()
        wait_for(left_over)
        samples += flat(list(iterator))
        assert same(samples, graph, 0)
        assert same(flat(list(loader)), graph, 1)


@each_kind
def test_a_new_loader_over_the_same_graph(tmp_path, graph):
    """A second Loader, or a second Prefetcher, takes the graph over; the first gets no more."""
    build = gated(tmp_path, graph)
    with graph.mapper(tmp_path / "samples", build) as mapper:
        root = graph.root(mapper)
        with loading(root) as first:
            next(iter(first))
            eventually(build.waiting, "the slow build to begin")
            left_over = readers()
            second = iter(Loader(root))
            samples = flat([next(second)])
            build.open()
            wait_for(left_over)
            assert same(samples + flat(list(second)), graph, 1)
        with loading(Prefetcher(mapper, 2)) as first, loading(Prefetcher(mapper, 3)) as second:
            iterator = iter(first)
            next(iterator)
            assert same(list(second), graph, 3)
            assert len(what_is_left(iterator)) <= 3  # what it had read before
            assert same(list(second), graph, 4)


@each_kind
def test_an_older_thread_cannot_steal(tmp_path, graph):
    """A thread that waits for a sample of an older pass gets nothing, of this pass or that one."""
    build = gated(tmp_path, graph, position=1)
    got = []

    def read():
        got.append(next(node))
        for _ in range(3):
            got.extend(what_is_left(node))

    with graph.mapper(tmp_path / "samples", build) as node:
        node.reset()
        reader = threading.Thread(target=read)
        reader.start()
        eventually(lambda: got and build.waiting(), "the slow build to begin")
        node.reset()
        samples = [next(node)]
        build.open()
        wait_for([reader])
        assert same([*samples, *node], graph, 1)
        assert got == expected_pass(graph.policy, 0, SIZE)[:1]
        with pytest.raises(StopIteration):
            next(node)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_source(tmp_path, workers):
    """A reset waits for a thread that is just pulling; its pair is not one of the new pass."""
    graph = Graph(SIZE, lifetime=1, workers=workers)
    source = SlowNode(graph.pairs(), position=3)
    with (
        graph.mapper(tmp_path, source=source) as mapper,
        loading(Prefetcher(Batcher(mapper, 2), 2)) as loader,
    ):
        iter(loader)
        source.waiting.wait(PATIENCE)
        left_over = readers()
        passes = []
        second = threading.Thread(target=lambda: passes.append(flat(list(loader))))
        second.start()
        source.go.set()
        second.join(PATIENCE)
        wait_for(left_over)
        assert same(passes[0], graph, 1)
        assert same(flat(list(loader)), graph, 2)


class SlowNode(BaseNode):
    """Waits once, before one of its items."""

    def __init__(self, source, position):
        super().__init__()
        self.source = source
        self.position = position
        self.waiting = threading.Event()
        self.go = threading.Event()

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.source.reset(initial_state and initial_state["source"])
        self.count = 0

    def next(self):
        self.count += 1
        if self.count > self.position:
            self.waiting.set()
            self.go.wait(PATIENCE)
        return next(self.source)

    def get_state(self):
        return {"source": self.source.state_dict()}


def double(pair):
    return pair


@pytest.mark.parametrize("workers", [0, 2])
def test_between_other_threads(tmp_path, workers):
    """Prefetchers and ParallelMappers before and after the mapper change nothing."""
    graph = Graph(SIZE, lifetime=1, workers=workers)
    build = gated(tmp_path, graph)
    source = ParallelMapper(Prefetcher(ReuseSampler(SIZE, graph.policy), 3), double, 2)
    with (
        graph.mapper(tmp_path / "samples", build, source=source) as mapper,
        loading(Prefetcher(Batcher(ParallelMapper(mapper, double, 2), 4), 2)) as loader,
    ):
        next(iter(loader))
        eventually(build.waiting, "the slow build to begin")
        left_over = readers()
        iterator = iter(loader)
        samples = flat([next(iterator)])
        build.open()
        wait_for(left_over)
        assert same(samples + flat(list(iterator)), graph, 1)
        assert same(flat(list(loader)), graph, 2)


@pytest.mark.parametrize(
    "graph",
    [
        variant(INLINE, lifetime=2),
        variant(THREADS, prebatch=2, in_order=False),
        variant(THREADS, with_epoch=True, hop=3),
    ],
    ids=str,
)
def test_breaks_anywhere(tmp_path, graph):
    """Broken off at whatever point, with builds of any duration, the next pass is whole."""
    rng = random.Random(0)
    durations = {index: rng.choice([0, 0, 0.001, 0.01]) for index in range(SIZE)}

    def build(key):
        time.sleep(durations[key.index])
        return sample_of(key)

    with graph.loader(tmp_path, build) as loader:
        epoch = 0
        for _ in range(6):
            for _ in range(rng.randrange(3)):
                iterator = iter(loader)
                for _ in range(rng.randrange(5)):
                    next(iterator, None)
                epoch += 1
            samples = flat(list(loader))
            if graph.in_order and not graph.with_epoch:
                assert samples == expected_pass(graph.policy, epoch, SIZE)
            assert sorted(samples) == sorted(expected_pass(graph.policy, epoch, SIZE))
            epoch += 1


def test_the_states_of_the_new_pass_are_right(tmp_path):
    """States taken while an old thread is stuck, or just got free, resume the new pass exactly."""
    for graph in map(single, (INLINE, THREADS)):
        folder = tmp_path / str(graph)
        folder.mkdir()
        build = gated(folder, graph)
        states = []
        with graph.loader(folder / "samples", build) as loader:
            next(iter(loader))
            eventually(build.waiting, "the slow build to begin")
            left_over = readers()
            samples = []
            for number, batch in enumerate(loader):
                samples += batch
                if number == 2:
                    build.open()
                    wait_for(left_over)
                states.append((list(samples), loader.state_dict()))
        for delivered, state in states[:-1]:
            with graph.loader(folder / "samples", build) as loader:
                loader.load_state_dict(state)
                assert same(delivered + flat(list(loader)), graph, 1)
                assert same(flat(list(loader)), graph, 2)


def test_reuse_goes_on_after_a_break(tmp_path):
    """What the broken-off pass built and stored is read by the next one, not built again."""
    graph = Graph(SIZE, lifetime=10**9, workers=2, batch=4, prefetch=2)
    counts = []

    def build(key):
        counts.append(key.index)
        return sample_of(key)

    with graph.loader(tmp_path, build) as loader:
        next(iter(loader))
        list(loader)
        list(loader)
    assert set(counts) == set(range(SIZE))
    assert len(counts) <= SIZE + graph.workers  # builds of both passes may have met


def test_a_reset_in_the_thread_that_reads(tmp_path):
    """One thread may do it all, also one that is not the main thread."""
    graph = Graph(SIZE)
    passes = []

    def train():
        mapper = ReuseMapper(graph.pairs(), sample_of, tmp_path, graph.policy)
        for _ in range(2):
            mapper.reset()
            passes.append([sample["index"] for sample in mapper])

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert passes == [[s[0] for s in expected_pass(graph.policy, e, SIZE)] for e in range(2)]


@pytest.mark.parametrize("node", ["sampler", "with_epoch", "mapper"])
def test_no_epoch_is_silently_empty(tmp_path, node):
    """A long-lived thread that reads what another resets gets whole passes or is told why not."""
    graph = Graph(SIZE, with_epoch=node == "with_epoch")
    root = graph.mapper(tmp_path) if node == "mapper" else graph.pairs()
    loader = Loader(root)
    with ThreadPoolExecutor(1) as reader:
        for _ in range(3):
            iterator = iter(loader)
            try:
                items = reader.submit(list, iterator).result()
            except RuntimeError:
                continue
            assert len(items) == SIZE
