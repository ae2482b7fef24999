"""key.seeded(): libraries that draw from the global random states."""

import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from helpers import FORKS, START_METHODS, bits, fails
from hypothesis import given
from hypothesis import strategies as st
from nodes_helpers import INLINE, PROCESSES, THREADS, flat, told, variant

from reuseloader import ReuseDataLoader, ReusePolicy

pytestmark = [pytest.mark.filterwarnings(FORKS), pytest.mark.usefixtures("no_worker_left")]

POLICY = ReusePolicy(3, 7)
SIZE = 11  # that of a Graph
EPOCHS = 4
KEY = POLICY.key(5, 4)


def drawn():
    """Something of every global state, with what each keeps between two draws."""
    return {
        "random": (random.random(), random.gauss(0, 1), random.getrandbits(8)),
        "numpy": (np.random.rand(2), np.random.standard_normal(), np.random.randint(9)),
        "torch": (torch.rand(2), torch.randn(3), torch.randint(9, ())),
    }


def drawn_with(key, seed=None):
    with key.seeded(seed):
        return drawn()


def build(key):
    """A build whose randomness is all of the global states."""
    with key.seeded():
        return {"index": key.index, **drawn()}


def finish(sample, key):
    """Another random part, a different one at every use."""
    with key.seeded(key.use_seed):
        return {**sample, "finish": drawn()}


def finished_epoch(policy, epoch):
    """The samples of an epoch, by index, as the closed form has them."""
    keys = [policy.key(index, epoch) for index in range(SIZE)]
    return {key.index: bits(finish(build(key.first), key)) for key in keys}


def by_index(samples):
    return {sample["index"]: bits(sample) for sample in samples}


@pytest.fixture(autouse=True)
def states_in_mid_stream():
    """Every state holds a number that it has drawn and not given yet, and is left as it was."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    drawn()
    yield
    # a test has drawn nothing outside of its blocks
    now = bits(drawn())
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    drawn()
    assert now == bits(drawn())


# One block


def test_a_block_gives_the_same_for_the_same_key():
    """All three states, whatever was drawn before; another index or generation gives another."""
    once = bits(drawn_with(KEY))
    assert bits(drawn_with(KEY)) == once
    assert bits(drawn_with(POLICY.key(5, 6))) == once  # the same generation
    for key in POLICY.key(5, 7), POLICY.key(6, 4):
        for name, value in drawn_with(key).items():
            assert bits(value) != bits(drawn_with(KEY)[name])


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_every_key_can_seed(seed, index):
    """Whatever its seed."""
    key = ReusePolicy(2, seed).key(index, 1)
    assert bits(drawn_with(key)) == bits(drawn_with(key))


def test_the_streams_stay_what_they_are():
    """Seeds of the three states on every version; the first numbers of those that are frozen."""
    with KEY.seeded():
        assert torch.initial_seed() == 4962921047925727706
        assert random.getrandbits(64) == 8339272188187458249
        assert np.random.randint(0, 2**63 - 1, dtype=np.int64) == 7769789811431237246


def test_the_three_streams_have_nothing_in_common():
    """Random and NumPy are the same Mersenne Twister: from one seed they would draw the same."""
    with KEY.seeded():
        state = random.getstate()[1][:-1]
        assert state != tuple(np.random.get_state()[1].tolist())
        assert state != random.Random(torch.initial_seed()).getstate()[1][:-1]


def test_blocks_can_be_nested():
    """The outer one goes on as if the inner one had not been."""
    other = POLICY.key(8, 2)
    with KEY.seeded():
        whole = [bits(drawn()), bits(drawn())]
    with KEY.seeded():
        first = bits(drawn())
        with other.seeded():
            inner = bits(drawn())
            with KEY.seeded():
                assert bits(drawn()) == first
        assert [first, bits(drawn())] == whole
    assert inner == bits(drawn_with(other))


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_states_are_restored_after_an_error(kind):
    """Whatever is raised in the block; that they are restored is checked after every test here."""

    def block():
        with KEY.seeded():
            drawn()
            raise kind

    with pytest.raises(kind):
        block()


def test_a_block_may_seed_by_itself():
    """A library that calls the seed functions changes nothing outside of the block."""
    with KEY.seeded():
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)


def test_no_device_is_seeded():
    """torch.manual_seed would make every CUDA device seed itself, now or when it is first used."""
    waiting = len(torch.cuda._queued_calls)
    drawn_with(KEY)
    assert len(torch.cuda._queued_calls) == waiting


def test_finish_has_streams_of_its_own_at_every_use():
    """use_seed gives each use other numbers, none of which are what build drew."""
    uses = [POLICY.key(4, epoch) for epoch in (2, 3, 4)]
    assert len({key.seed for key in uses}) == 1
    streams = [drawn_with(uses[0]), *(drawn_with(key, key.use_seed) for key in uses)]
    for name in "random", "numpy", "torch":
        assert len({bits(stream[name]) for stream in streams}) == 4


@pytest.mark.parametrize("seed", [1.5, "1", True])
def test_only_an_int_is_a_seed(seed):
    """Of any size, but an int."""
    assert bits(drawn_with(KEY, 2**70)) != bits(drawn_with(KEY, 2**70 + 1))
    with pytest.raises(TypeError, match=f"seed must be an int, got {seed!r}"):
        KEY.seeded(seed)


def test_a_key_is_as_light_as_it_was():
    """Picklable, and made of its six numbers alone."""
    assert pickle.loads(pickle.dumps(KEY)) == KEY
    assert len(KEY) == 6


# Threads


def test_other_threads_are_refused():
    """With a message that says what to do; the states are not touched."""
    with ThreadPoolExecutor(1, thread_name_prefix="painter") as executor:
        future = executor.submit(drawn_with, KEY)
        with fails(RuntimeError, "in the main thread of a process.*got thread 'painter_0'") as got:
            future.result()
    for way_out in "method='process'", "DataLoader workers", "key.generator() or key.rng()":
        assert way_out in str(got.value)


def test_a_process_forked_in_a_thread_has_a_main_thread():
    """The thread that forks is the main thread of the child."""
    codes = []

    def fork():
        process = get_context("fork").Process(target=drawn_with, args=(KEY,))
        process.start()
        process.join()
        codes.append(process.exitcode)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert codes == [0]


@pytest.mark.parametrize(
    "graph",
    [THREADS, variant(INLINE, prefetch=1)],
    ids=["threads", "inline behind a Prefetcher"],
)
def test_a_mapper_that_builds_in_threads_says_so(graph, store):
    """The error of the first sample names the cause, which is not always num_workers."""
    with graph.loader(store, build, finish=None) as loader:
        with fails(RuntimeError, "key.seeded.. must be entered in the main thread") as caught:
            list(loader)
        assert "if num_workers=0" in str(caught.value)
        assert "in build for index" in told(caught.value)


# The same everywhere


@pytest.mark.parametrize(
    ("workers", "context", "lifetime"),
    [(0, None, 1), (0, None, 3), (2, "fork", 1), *((2, method, 3) for method in START_METHODS)],
)
def test_a_loader_gives_the_same_with_any_workers(workers, context, lifetime, store):
    """Also where torch seeds its workers at random; build and finish."""
    with ReuseDataLoader(
        build,
        SIZE,
        store,
        lifetime=lifetime,
        seed=7,
        finish=finish,
        batch_size=4,
        shuffle=True,
        collate_fn=list,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
    ) as loader:
        for epoch in range(EPOCHS):
            with KEY.seeded():  # a DataLoader draws the seed of its workers from torch's state
                samples = flat(list(loader))
            assert by_index(samples) == finished_epoch(loader.policy, epoch)


@pytest.mark.parametrize("lifetime", [1, 3])
@pytest.mark.parametrize("hop", [None, 4])
@pytest.mark.parametrize("graph", [INLINE, PROCESSES], ids=["inline", "processes"])
def test_a_mapper_gives_the_same_inline_and_in_processes(graph, hop, lifetime, store):
    """Pair by pair, where finish runs in the consumer, and in lists, where a worker runs it."""
    graph = variant(graph, lifetime=lifetime, hop=hop)
    with graph.loader(store, build, finish=finish) as loader:
        for epoch in range(EPOCHS):
            assert by_index(flat(list(loader))) == finished_epoch(graph.policy, epoch)


def test_lists_of_pairs_are_finished_in_processes_behind_a_prefetcher(store):
    """As the message of a refused finish says."""
    graph = variant(PROCESSES, hop=4, prefetch=1)
    with graph.loader(store, build, finish=finish) as loader:
        assert by_index(flat(list(loader))) == finished_epoch(graph.policy, 0)
