"""nodes.ReuseMapper: how much it builds, pulls and holds at a time."""

import threading

import pytest
from nodes_helpers import (
    MARKS,
    CrowdBuild,
    GatedBuild,
    Graph,
    LoggedBuild,
    Pulled,
    all_modes,
    eventually,
    expected_pass,
    lines,
    listed,
    sample_of,
    variant,
)

from reuseloader.nodes import WithEpoch

pytestmark = MARKS


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
