"""nodes.ReuseMapper: what happens when build, the source, a worker or a file fails."""

import dataclasses
import json
import os
import threading
import warnings
from pathlib import Path

import pytest
from helpers import ODD_ERRORS, Thing
from nodes_helpers import (
    ERRORS,
    INLINE,
    MARKS,
    MODES,
    PROCESSES,
    THREADS,
    Failing,
    FailingBuild,
    Graph,
    LoggedInit,
    all_modes,
    append,
    broken_finish,
    broken_load,
    broken_save,
    expected,
    expected_pass,
    flat,
    lines,
    listed,
    load_text,
    on_meta_device,
    passes_are_right,
    run_python,
    sample_of,
    save_text,
    told,
    variant,
)
from torchdata.nodes import IterableWrapper

from reuseloader import IndexEpoch, ReuseError, ReusePolicy, ReuseWarning

pytestmark = MARKS


# Failures

MUTE = ("__str__ raises", "neither text nor pickle")


@pytest.mark.parametrize("hop", [None, 2])
@pytest.mark.parametrize("error", ["ordinary", "reduced", "chained", *ODD_ERRORS])
@all_modes
def test_an_error_in_build(tmp_path, graph, error, hop):
    """It is raised with its text, index and epoch, after the samples before it; a reset goes on."""
    graph = variant(graph, shuffle=False, size=6, hop=hop)
    with graph.loader(tmp_path, FailingBuild(error, 4), finish=None) as loader:
        for epoch in range(2):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                list(loader)
            assert type(ERRORS[error]()).__name__ in told(caught.value)
            assert "the reason" in told(caught.value) or error in MUTE
            assert "index 4" in told(caught.value)
            assert f"epoch {epoch}" in told(caught.value) or graph.policy.key(4, epoch).use
            lost = error in ODD_ERRORS and error != "__str__ raises" and graph.method == "process"
            assert caught.type is (RuntimeError if lost else type(ERRORS[error]()))
            loader.state_dict()
        iterator = iter(loader)
        items = [next(iterator) for _ in range(4 // (hop or 1))]
        assert [sample["index"] for sample in flat(items)] == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                next(iterator)
            assert "index 4" in told(caught.value)


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
def consume(name, graph, kind):
    try:
        with graph.loader(tempfile.mkdtemp(dir=sys.argv[1]), FailingBuild(kind, 4)) as loader:
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
    consumer = threading.Thread(target=consume, args=(*pair, sys.argv[2]), daemon=True)
    consumer.start()
    consumer.join(10)
print(json.dumps(outcomes), flush=True)
for child in descendants(os.getpid()):
    child.kill()
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["exit", "panic"])
def test_what_is_no_exception_in_build(kind, tmp_path):
    """It is raised, as it is or as an error, also under a Prefetcher; nobody waits for ever."""
    outcomes = json.loads(run_python(EXITS, arguments=[str(tmp_path), kind]))
    raised = ("SystemExit", "Panic", "RuntimeError")
    assert {
        name: outcome
        for name, outcome in outcomes.items()
        if "the reason" not in outcome or not outcome.startswith(raised)
    } == {}


@pytest.mark.parametrize("hop", [None, 3])
@all_modes
def test_errors_in_finish_and_save(tmp_path, graph, hop):
    """They carry the index and epoch too; what is not stored need not be saved."""
    for lifetime in (1, 3):
        settings = variant(graph, hop=hop, lifetime=lifetime)
        with settings.loader(tmp_path / f"finish {lifetime}", finish=broken_finish) as loader:
            with pytest.raises(ValueError, match="finish is broken") as caught:
                list(loader)
            assert "index" in told(caught.value)
            assert "epoch 0" in told(caught.value)
        options = {"save": broken_save, "load": load_text}
        if lifetime == 1:
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


def thing_of(key):
    return Thing(key.index)


@all_modes
def test_weights_only_forced_by_the_environment(tmp_path, graph, monkeypatch):
    """What torch.load then refuses is an error that names the variable, not built for ever."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with (
        graph.loader(tmp_path, thing_of, finish=None) as loader,
        pytest.raises(ReuseError, match="TORCH_FORCE_WEIGHTS_ONLY_LOAD") as caught,
    ):
        [list(loader) for _ in range(2)]  # threads read nothing before the second pass
    assert "index" in told(caught.value)
    assert str(tmp_path) in told(caught.value)


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


@pytest.mark.parametrize("error", ["ordinary", "keyword only", "unpicklable attribute", "stop"])
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


@pytest.mark.parametrize("hop", [None, 3])
@pytest.mark.parametrize("in_order", [True, False])
@all_modes
def test_who_asks_again_has_it_tried_again(tmp_path, graph, in_order, hop):
    """Once the cause of an error is gone, the pass goes on where it was, as without workers."""
    graph = variant(graph, hop=hop, in_order=in_order)
    build = FailsWhile(str(tmp_path / "cause"), index=5)
    Path(build.cause).touch()
    with graph.loader(tmp_path / "samples", build) as loader:
        iterator = iter(loader)
        items, errors = [], 0
        while True:
            try:
                items.append(next(iterator))
            except ValueError:
                errors += 1
                if errors == 2:
                    os.unlink(build.cause)
            except StopIteration:
                break
        assert errors == 2
        assert flat(items) == expected_pass(graph.policy, 0, graph.size) or not in_order
        assert sorted(map(repr, flat(items))) == sorted(
            map(repr, expected_pass(graph.policy, 0, graph.size))
        )


@dataclasses.dataclass(frozen=True)
class FailsWhile:
    """Raises at one index as long as a file is there."""

    cause: str
    index: int

    def __call__(self, key):
        if key.index == self.index and os.path.exists(self.cause):
            raise ValueError("the cause is still there")
        return sample_of(key)
