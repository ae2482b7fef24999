"""Worker processes, and how threads and processes of a pipeline end."""

import dataclasses
import functools
import gc
import json
import os
import resource
import signal
import threading
import warnings
from contextlib import contextmanager
from multiprocessing import get_context

import psutil
import pytest
import torch
from nodes_helpers import (
    MARKS,
    PATIENCE,
    GatedBuild,
    Graph,
    KilledOnce,
    LoggedInit,
    a_lambda,
    descendants,
    eventually,
    expected_pass,
    flat,
    global_random,
    kill_tree,
    lines,
    load_text,
    many_tensors,
    no_worker_is_left,
    run_python,
    sample_of,
    save_text,
    start_python,
    told,
    torch_threads,
    variant,
)
from torchdata.nodes import Loader

from reuseloader.nodes import worker as worker_side

pytestmark = MARKS

FORK = Graph(workers=2, method="process", context="fork")
SPAWN = variant(FORK, context="spawn")
FORKSERVER = variant(FORK, context="forkserver")


# Workers


def test_workers_live_across_epochs(tmp_path):
    """The same processes work in every epoch, numbered from 0, each set up once."""
    for graph in (FORK, SPAWN):
        log = str(tmp_path / f"log {graph.context}")
        graph = variant(graph, lifetime=1)
        with graph.loader(
            tmp_path / "samples", torch_threads, finish=None, worker_init_fn=LoggedInit(log, 2)
        ) as loader:
            seen = set()
            for _ in range(3):
                answers = list(loader)
                assert {threads for _, threads in answers} == {1}
                seen |= {pid for pid, _ in answers}
                seen.add(next(iter(loader))[0])  # a break changes nothing
        calls = [line.split() for line in lines(log)]
        assert sorted(worker for worker, *_ in calls) == ["0", "1"]
        assert seen <= {int(pid) for _, pid, _ in calls}
        assert os.getpid() not in seen


def test_workers_have_random_streams_of_their_own(tmp_path):
    """The global generators of two workers differ, from each other and from the consumer's."""
    log = str(tmp_path / "log")
    with FORK.mapper(
        tmp_path, global_random, finish=None, worker_init_fn=LoggedInit(log, 2)
    ) as mapper:
        torch.manual_seed(0)
        samples = list(mapper)
    assert len(set(samples)) == FORK.size
    torch.manual_seed(0)
    assert float(torch.rand(())) not in samples


@pytest.mark.parametrize("graph", [FORK, variant(FORK, hop=3), variant(SPAWN, workers=1)], ids=str)
def test_a_killed_worker(tmp_path, graph):
    """It is an error that says so, not a hang; the next pass is whole, with new workers."""
    log = str(tmp_path / "log")
    build = KilledOnce(str(tmp_path / "killed"), index=6)
    graph = variant(graph, prefetch=2 if graph.hop else None)
    with graph.loader(tmp_path / "samples", build, worker_init_fn=LoggedInit(log)) as loader:
        with pytest.raises(Exception, match="abruptly") as caught:
            list(loader)
        assert "worker process of ReuseMapper died" in told(caught.value)
        for epoch in range(1, 4):
            assert flat(list(loader)) == expected_pass(graph.policy, epoch, graph.size)
    assert {line.split()[0] for line in lines(log)} <= {"0", "1"}
    assert not list(tmp_path.glob("samples/*.tmp"))


def test_workers_killed_from_outside(tmp_path):
    """Killed while they build, or while they have nothing to do: an error, or nobody notices."""
    build = GatedBuild(str(tmp_path))
    with FORK.loader(tmp_path / "samples", build) as loader:
        iterator = iter(loader)
        outcome = []

        def consume():
            try:
                list(iterator)
            except Exception as error:
                outcome.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        eventually(lambda: len(build.waiting()) == 2, "builds to begin")
        for line in build.waiting():
            os.kill(int(line.split()[1]), signal.SIGKILL)
        consumer.join(PATIENCE)
        assert "worker process of ReuseMapper died" in told(outcome[0])
        build.open()
        assert list(loader) == expected_pass(FORK.policy, 1, FORK.size)
        workers = descendants(os.getpid())
        assert workers
        for worker in workers:
            worker.kill()
        psutil.wait_procs(workers, PATIENCE)
        assert list(loader) == expected_pass(FORK.policy, 2, FORK.size)


def test_other_forked_processes_end_no_worker(tmp_path, monkeypatch):
    """What ends in a process forked meanwhile, such as a DataLoader's worker, is not this pool."""
    monkeypatch.setattr(worker_side, "_GRACE", 0.0)  # what is told to end does so at once
    with FORK.loader(tmp_path) as loader:
        iterator = iter(loader)
        samples = [next(iterator)]
        workers = descendants(os.getpid())
        other = get_context("fork").Process(target=int)
        other.start()
        other.join()
        gone, _ = psutil.wait_procs(workers, 1)
        assert workers
        assert not gone
        assert samples + list(iterator) == expected_pass(FORK.policy, 0, FORK.size)


def test_a_state_after_a_killed_worker(tmp_path):
    """The state that was saved last resumes the pass that a killed worker has ended."""
    graph = variant(FORK, batch=2, prefetch=2)
    build = KilledOnce(str(tmp_path / "killed"), index=graph.policy.order(9, 0, graph.size))
    delivered, states = [], []
    with graph.loader(tmp_path / "samples", build) as loader:

        def train():
            for batch in loader:
                delivered.extend(batch)
                states.append(json.dumps(loader.state_dict()))

        with pytest.raises(Exception, match="abruptly"):
            train()
        assert delivered == expected_pass(graph.policy, 0, graph.size)[: len(delivered)]
        loader.load_state_dict(json.loads(states[-1]))
        assert delivered + flat(list(loader)) == expected_pass(graph.policy, 0, graph.size)
        assert flat(list(loader)) == expected_pass(graph.policy, 1, graph.size)


# What travels


def test_samples_cost_no_file_descriptors(tmp_path):
    """Samples of many tensors, all kept, and passes over them leave no descriptor open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for lifetime, hop in ((1, None), (2, None), (1, 4)):
        graph = variant(FORK, lifetime=lifetime, hop=hop)
        with graph.loader(tmp_path / str((lifetime, hop)), many_tensors, finish=None) as loader:
            kept = [list(loader)]
            before = len(os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + 64, hard))
            try:
                for _ in range(3):
                    kept.append(list(loader))
                    assert len(os.listdir("/proc/self/fd")) <= before
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for items in kept:
            samples = items if hop is None else [sample for item in items for sample in item]
            assert {int(sample[0][0]) for sample in samples} == set(range(graph.size))
            assert all((tensor == sample[0][0]).all() for sample in samples for tensor in sample)


def test_workers_that_come_and_go_leave_nothing(tmp_path):
    """Graphs made and dropped again, in mid-pass and not, leave no descriptor and no process."""
    before = None
    for number in range(4):
        with FORK.loader(tmp_path, sample_of) as loader:
            next(iter(loader))
            if number % 2:
                list(loader)
        del loader
        gc.collect()
        no_worker_is_left()
        after = len(os.listdir("/proc/self/fd"))
        if before is not None:
            assert after <= before
        before = after


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("hop", [None, 2])
def test_a_sample_that_cannot_be_sent(tmp_path, hop, prefetch):
    """It is an error that names the sample, with any lifetime, not a hang; a reset goes on."""
    for lifetime in (1, 3):
        graph = variant(FORK, lifetime=lifetime, hop=hop, prefetch=prefetch)
        with graph.loader(tmp_path / str(lifetime), a_lambda, finish=None) as loader:
            for _ in range(2):
                with pytest.raises(Exception, match=r"lambda") as caught:
                    list(loader)
            if hop is None:
                assert "index" in told(caught.value)


def test_a_custom_format_also_travels(tmp_path):
    """What is not stored, at its last use, goes through save and load all the same."""
    for lifetime in (1, 2):
        graph = variant(FORK, lifetime=lifetime)
        with graph.loader(tmp_path / str(lifetime), save=save_text, load=load_text) as loader:
            for epoch in range(4):
                assert list(loader) == expected_pass(graph.policy, epoch, graph.size)


@pytest.mark.parametrize("graph", [SPAWN, FORKSERVER], ids=str)
@pytest.mark.parametrize("name", ["build", "save", "load", "finish", "worker_init_fn"])
def test_what_spawned_workers_cannot_get(tmp_path, graph, name):
    """A lambda, closure or local class is a TypeError at once, that says which and what helps."""
    offset = 3

    class Local:
        def __call__(self, *args):
            return offset

    given = {
        "build": lambda key: offset,
        "save": functools.partial(lambda sample, file: file.write(b"1")),
        "load": Local(),
        "finish": Local().__call__,
        "worker_init_fn": lambda worker: offset,
    }
    options = {"save": save_text, "load": load_text, "build": sample_of, name: given[name]}
    graph = variant(graph, prefetch=2)
    with graph.loader(tmp_path, **options) as loader:
        for _ in range(2):
            with pytest.raises(TypeError, match=f"{name} must.*module-level function"):
                iter(loader)
    no_worker_is_left()


def test_a_script_without_a_guard_is_told_so(tmp_path):
    """Under spawn a script that lacks the main guard ends with an error, not in a hang."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from nodes_helpers import *\n"
        f"graph = Graph(workers=1, method='process', context='spawn')\n"
        f"with graph.loader({str(tmp_path / 'samples')!r}) as loader:\n"
        "    list(loader)\n"
    )
    with start_python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')") as run:
        try:
            err = run.communicate(timeout=PATIENCE)[1]
        finally:
            kill_tree(run)
    assert run.returncode == 1
    assert "worker process of ReuseMapper died" in err
    assert "if __name__ == '__main__'" in err


# Endings

PIPELINE = """
folder, fields = sys.argv[1], json.loads(sys.argv[2])
build = GatedBuild(folder, tuple(fields.pop("gated")))
mapper = Graph(**fields).mapper(folder + "/samples", build)
loader = Loader(Graph(**fields).root(mapper))
iterator = iter(loader)
next(iterator)
print("begun", flush=True)
sys.stdin.readline()
"""
SOON = 20  # seconds in which everything must have ended
KINDS = {
    "inline": {"workers": 0},
    "threads": {"workers": 2},
    "fork": {"workers": 2, "method": "process", "context": "fork"},
    "spawn": {"workers": 2, "method": "process", "context": "spawn"},
}


class Running:
    """A process in mid-epoch, with builds that wait at a gate, and its workers' processes.

    It goes on with ``code`` when told to.
    """

    def __init__(self, folder, kind, code="", *, stuck=True, **options):
        folder.mkdir()
        self.graph = Graph(40, lifetime=1, **KINDS[kind], **options)
        gated = [self.graph.policy.order(p, 0, 40) for p in (1, 2)] if stuck else []
        fields = {**dataclasses.asdict(self.graph), "gated": gated}
        self.build = GatedBuild(str(folder), tuple(gated))
        arguments = [str(folder), json.dumps(fields)]
        self.process = start_python(PIPELINE + code, arguments=arguments, start_new_session=True)
        self.workers = []

    def begun(self):
        """Wait until it is in mid-epoch."""
        assert self.process.stdout.readline() == "begun\n"
        if self.build.indices and self.graph.workers:
            eventually(lambda: len(self.build.waiting()) == 2, "builds to begin")
        self.workers = descendants(self.process.pid)
        assert len(self.workers) == (2 if self.graph.method == "process" else 0)

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finished(self):
        """Wait for its end and that of its workers: (return code, stderr)."""
        err = self.process.communicate(timeout=SOON)[1]
        assert psutil.wait_procs(self.workers, SOON)[1] == []
        return self.process.returncode, err

    def kill(self):
        for worker in self.workers:
            if worker.is_running():
                worker.kill()
        kill_tree(self.process)
        with self.process:
            pass


@contextmanager
def running(tmp_path, kinds, *args, **options):
    """Several of them side by side, in mid-epoch."""
    processes = [Running(tmp_path / kind, kind, *args, **options) for kind in kinds]
    try:
        for process in processes:
            process.begun()
        yield processes
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("options", [{}, {"batch": 2, "prefetch": 2}], ids=["bare", "prefetch"])
def test_leaving_the_interpreter_in_mid_epoch(tmp_path, options):
    """A script that just ends, ends well, with all its threads and processes."""
    with running(tmp_path, ["threads", "fork"], stuck=False, **options) as processes:
        for process in processes:
            process.go_on()
        assert [process.finished() for process in processes] == [(0, "")] * 2


def test_leaving_the_interpreter_while_processes_build(tmp_path):
    """Builds that would take for ever in other processes do not keep a script from ending."""
    with running(tmp_path, ["fork", "spawn"], prefetch=2) as processes:
        for process in processes:
            process.go_on()
        assert [process.finished() for process in processes] == [(0, "")] * 2


LEAVING = """
built = []
def build(key):
    time.sleep(0.1)
    built.append(key.index)

import atexit
atexit.register(lambda: print(len(built)))
mapper = Graph(100, workers=1, max_concurrent=40).mapper(sys.argv[1], build, finish=None)
next(mapper)
"""


def test_leaving_the_interpreter_while_threads_build(tmp_path):
    """The build that runs in a thread is waited for; those behind it are not begun."""
    assert 1 <= int(run_python(LEAVING, arguments=[str(tmp_path)])) < 20


def test_ending_by_an_exception(tmp_path):
    """An error in the training loop ends the script as it always does."""
    code = "raise ValueError('training')"
    with running(tmp_path, ["threads", "fork"], code, stuck=False, prefetch=2) as processes:
        for process in processes:
            process.go_on()
        for process in processes:
            status, err = process.finished()
            assert status == 1
            assert err.strip().endswith("ValueError: training")


def test_the_main_process_is_killed(tmp_path):
    """With kill -9 nothing can be tidied up; the workers end by themselves within seconds."""
    with running(tmp_path, ["fork", "spawn"], prefetch=2) as processes:
        for process in processes:
            process.process.kill()
        assert [process.finished()[0] for process in processes] == [-signal.SIGKILL] * 2


def test_the_main_process_is_killed_between_epochs(tmp_path):
    """Workers with nothing to do end too, also when the job is only asked to end."""
    code = "list(iterator)\nprint('idle', flush=True)\nsys.stdin.readline()"
    with running(tmp_path, ["fork"], code, stuck=False) as (process,):
        process.go_on()
        assert process.process.stdout.readline() == "idle\n"
        process.process.kill()
        assert process.finished()[0] == -signal.SIGKILL


def test_sigterm_in_mid_epoch(tmp_path):
    """A preempted job leaves no process behind."""
    with running(tmp_path, ["fork"], prefetch=2) as (process,):
        process.process.terminate()
        assert process.finished()[0] == -signal.SIGTERM


def test_ctrl_c(tmp_path):
    """It is a KeyboardInterrupt in the main process alone, and ends all."""
    code = "print('reading', flush=True)\nlist(iterator)"
    with running(tmp_path, ["inline", "threads", "fork"], code, prefetch=2) as processes:
        for process in processes:
            process.go_on()
            assert process.process.stdout.readline() == "reading\n"
            os.killpg(process.process.pid, signal.SIGINT)
            if process.graph.method == "thread":
                process.build.open()  # running thread builds are waited for
        for process in processes:
            status, err = process.finished()
            assert "KeyboardInterrupt" in err
            assert status != 0
            assert "Process " not in err  # no worker has anything to say


@pytest.mark.parametrize("graph", [Graph(workers=2), FORK, variant(FORK, hop=2)], ids=str)
def test_dropping_a_graph_in_mid_epoch(tmp_path, graph):
    """Once nobody holds the graph, its threads and processes end, with and without Prefetcher."""
    for prefetch in (None, 2):
        loader = Loader(variant(graph, prefetch=prefetch).root(graph.mapper(tmp_path)))
        next(iter(loader))
        gc.disable()  # see `loading`
        try:
            del loader
            gc.collect()
        finally:
            gc.enable()
        no_worker_is_left()
        eventually(
            lambda: not [t for t in threading.enumerate() if "_populate_queue" in t.name],
            "threads to end",
        )


def test_dropping_and_closing_a_graph_while_it_builds(tmp_path):
    """Processes whose builds do not end are ended a few seconds after their graph has gone."""
    graph = variant(FORK, in_order=False)
    build = GatedBuild(str(tmp_path), (graph.policy.order(1, 0, 11),))
    dropped = graph.mapper(tmp_path / "dropped", build)
    closed = graph.mapper(tmp_path / "closed", build)
    for mapper in (dropped, closed):
        next(mapper)
    eventually(lambda: len(build.waiting()) == 2, "the builds to begin")
    del dropped, mapper
    closer = threading.Thread(target=closed.close)
    closer.start()
    closer.join(SOON)
    assert not closer.is_alive()
    no_worker_is_left()


# Warnings in other threads and processes

DAMAGED = """
import tempfile, warnings
warnings.simplefilter("error")
graph = Graph(workers=2, method="process", context=sys.argv[1], batch=2, prefetch=2)
with tempfile.TemporaryDirectory() as folder, graph.loader(folder) as loader:
    for epoch in range(4):
        for index in (2, 5):
            Path(folder, f"{index:08}.pt").write_bytes(b"damaged")
        samples = flat(list(loader))
        assert samples == expected_pass(graph.policy, epoch, graph.size), epoch
print("right")
"""


def test_warnings_as_errors_break_no_pass():
    """Under -W error damaged files cost no sample and no pass; the text is logged instead."""
    with start_python(DAMAGED, "-W", "error::UserWarning", arguments=["fork"]) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            kill_tree(process)
    assert (process.returncode, out) == (0, "right\n"), err
    assert err.count("could not be read") == 1


def test_workers_count_and_the_consumer_warns(tmp_path):
    """A worker that cannot store does not warn itself; its count reaches the one warning."""
    graph = variant(FORK, lifetime=10**9, hop=2)
    (tmp_path / "00000003.pt").mkdir()
    with (
        graph.loader(tmp_path) as loader,
        warnings.catch_warnings(record=True, action="always") as caught,
    ):
        for epoch in range(3):
            assert flat(list(loader)) == expected_pass(graph.policy, epoch, graph.size)
    texts = [str(warning.message) for warning in caught]
    assert sum("could not be stored" in text for text in texts) == 1
