"""ReuseDataLoader with worker processes: start methods, what cannot be sent, and death."""

import functools
import gc
import os
import pickle
import signal
import tempfile
import threading
import traceback
from contextlib import suppress
from multiprocessing import get_all_start_methods, get_context

import psutil
import pytest
import torch
from helpers import (
    FORKS,
    ODD_ERRORS,
    START_METHODS,
    Caught,
    DictStore,
    Log,
    assert_right,
    bits,
    children,
    due,
    expected,
    fails,
    flat,
    forked,
    keys,
    odd_at_two,
    python,
    sample_of,
    temps,
    with_present,
)
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from reuseloader import ReuseDataLoader, ReusePolicy

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE = 8
POLICY = ReusePolicy(3, 5)


def loader_of(build, path, **options):
    options = {"lifetime": 3, "seed": 5, "batch_size": 2, "collate_fn": list, **options}
    return ReuseDataLoader(build, SIZE, path, **options)


def plain(samples):
    """The samples without what `with_present` added."""
    added = ("present", "pid")
    return [{name: s[name] for name in s if name not in added} for s in samples]


# --- start methods --------------------------------------------------------------------------------


@pytest.mark.parametrize("as_object", [False, True], ids=["str", "object"])
@pytest.mark.parametrize("method", START_METHODS)
def test_persistent_workers_follow_every_epoch(method, as_object, store, log):
    """Under any start method the same workers see each epoch, forth and back; builds are exact."""
    assert method in get_all_start_methods()
    loader = loader_of(
        log.build,
        store,
        finish=with_present,
        num_workers=2 if method == "fork" else 1,
        persistent_workers=True,
        multiprocessing_context=get_context(method) if as_object else method,
    )
    pids = set()
    for epoch in (0, 1, 2, 3):
        samples = flat(loader)
        assert_right(plain(samples), POLICY, epoch)
        assert {sample["present"][0] for sample in samples} == {epoch}
        assert log.take() == keys(POLICY, epoch, due(POLICY, epoch, SIZE))
        pids.add(frozenset(sample["pid"] for sample in samples))
    for act in (loader.set_epoch, loader.dataset.set_epoch, loader.sampler.set_epoch):
        act(1)
        samples = flat(loader)
        assert {sample["present"][0] for sample in samples} == {1}
        assert_right(plain(samples), POLICY, 1)
        pids.add(frozenset(sample["pid"] for sample in samples))
    assert len(pids) == 1
    assert os.getpid() not in pids.pop()
    loader.close()


class Maker:
    """A build that is an instance, or one of its methods."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, key):
        return key.index * self.factor

    def method(self, key):
        return key.index * self.factor


def save_text(sample, file, end):
    file.write(f"{sample}{end}".encode())


class Reader:
    def load(self, file):
        return int(file.read())


def add(sample, key, more):
    return sample + more


def test_anything_picklable_goes_to_spawned_workers(store):
    """Partials, instances of module-level classes and their bound methods work under spawn."""
    loader = ReuseDataLoader(
        Maker(3).method,
        SIZE,
        store,
        lifetime=3,
        save=functools.partial(save_text, end="\n"),
        load=Reader().load,
        finish=functools.partial(add, more=1000),
        collate_fn=functools.partial(sorted, reverse=True),
        worker_init_fn=Maker(1),
        batch_size=3,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    with pytest.raises(AttributeError):  # Maker(1)(number): its argument is no key
        Maker(1)(0)
    del loader.worker_init_fn
    loader.worker_init_fn = functools.partial(add, key=None, more=0)
    assert list(loader) == [[1006, 1003, 1000], [1015, 1012, 1009], [1021, 1018]]


SCRIPT = """
import multiprocessing, sys
import torch
from helpers import assert_right, flat, sample_of
from reuseloader import ReuseDataLoader, ReusePolicy

loader = ReuseDataLoader(sample_of, 4, sys.argv[1], lifetime=3, seed=5, collate_fn=list,
                         num_workers=1)
assert_right(flat(loader), ReusePolicy(3, 5), 0)
multiprocessing.set_start_method("spawn", force=True)
torch.multiprocessing.set_start_method("spawn", force=True)
assert_right(flat(loader), ReusePolicy(3, 5), 1)
print("right")
"""


def test_the_start_method_may_change_after_the_loader_exists(store):
    """A loader works when set_start_method comes later than it."""
    result = python(SCRIPT, store)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "right"


# --- what cannot be sent --------------------------------------------------------------------------


class Holder:
    """An object that cannot be pickled."""

    def __init__(self):
        self.lock = threading.Lock()

    def build(self, key):
        return sample_of(key)

    save = staticmethod(pickle.dump)
    load = staticmethod(pickle.load)

    def __call__(self, *args):
        return args[0] if args else None


def unpicklable(name):
    """A lambda, a closure, a local class's instance, a bound method and a partial."""
    right = {
        "build": sample_of,
        "save": pickle.dump,
        "load": pickle.load,
        "finish": lambda sample, key: sample,
        "collate_fn": list,
        "worker_init_fn": lambda number: None,
    }[name]

    def closure(*args):
        return right(*args)

    class Local:
        def __call__(self, *args):
            return right(*args)

    holder = Holder()
    holder.right = right
    return {
        "lambda": lambda *args: right(*args),
        "closure": closure,
        "local class": Local(),
        "bound method": functools.partial(call_of, holder).__call__,
        "partial": functools.partial(call_of, holder),
    }


def call_of(holder, *args):
    return holder.right(*args)


NAMES = ["build", "save", "load", "finish", "collate_fn", "worker_init_fn"]


def arguments_with(name, value):
    arguments = {"build": sample_of, "num_workers": 1, name: value}
    if name in ("save", "load"):
        arguments = {"save": pickle.dump, "load": pickle.load, **arguments}
    return arguments


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")  # DataLoader's own
@pytest.mark.parametrize("kind", ["lambda", "closure", "local class", "bound method", "partial"])
@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_sent_is_named(name, kind, tmp_path):
    """Under spawn and forkserver a function that cannot be pickled is a TypeError that names it."""
    before = children()
    value = unpicklable(name)[kind]
    for method in ("spawn", "forkserver"):
        loader = loader_of(
            path=tmp_path / method,
            multiprocessing_context=method,
            **arguments_with(name, value),
        )
        for _ in range(2):
            with fails(TypeError, match=f"^{name} must be picklable") as caught:
                iter(loader)
            assert "module-level function" in str(caught.value)
            assert repr(value) in str(caught.value)
            assert "\n" not in str(caught.value)
    assert children() <= before


@pytest.mark.parametrize("kind", ["lambda", "closure", "local class", "bound method", "partial"])
def test_everything_can_be_forked(kind, store):
    """Under fork lambdas, closures, local classes and bound methods are as good as any."""
    functions = {name: unpicklable(name)[kind] for name in NAMES}
    loader = loader_of(path=store, num_workers=2, multiprocessing_context="fork", **functions)
    for epoch in range(3):
        samples = flat(loader)
        assert len(samples) == SIZE
        assert_right(samples, POLICY, epoch)


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")  # DataLoader's own
def test_a_store_that_cannot_be_sent_is_named():
    """A store of the user's that cannot be pickled is a TypeError that names path."""
    mine = DictStore()
    mine.lock = threading.Lock()
    loader = loader_of(sample_of, mine, num_workers=1, multiprocessing_context="spawn")
    with fails(TypeError, match="^path must be picklable"):
        iter(loader)


class Broken:
    """A sampler whose passes fail at their beginning."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        raise self.error("of the sampler")

    def __len__(self):
        return 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # DataLoader's own
@pytest.mark.parametrize("error", [LookupError, TypeError, AttributeError, pickle.PicklingError])
@pytest.mark.parametrize("workers", [0, 1])
def test_other_errors_are_not_blamed_on_pickling(workers, error, store):
    """An error of the user's sampler comes as it is, also where build is a lambda."""
    loader = ReuseDataLoader(
        lambda key: key.index,
        SIZE,
        store,
        lifetime=3,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        batch_size=None,
        sampler=Broken(error),
    )
    with fails(error, match="^of the sampler"):
        list(loader)


# --- death ----------------------------------------------------------------------------------------


def error_of(loader):
    """The error of a pass in which a worker dies, here or at DataLoader's signal handler's whim."""
    try:
        for _ in loader:
            pass
    except RuntimeError as error:
        traceback.clear_frames(error.__traceback__)
        return str(error)
    return None


def seed_of(key):
    """A sample without tensors: those that a dead worker sent cannot be received any more."""
    return {"index": key.index, "seed": key.seed}


def seeds(epoch):
    return [(i, POLICY.key(i, epoch).seed) for i in range(SIZE)]


def pairs(loader):
    return [(sample["index"], sample["seed"]) for sample in flat(loader)]


def die_once(sample, key, flag):
    """Die here: killed from outside, a worker may hold a lock of DataLoader's, and all hang."""
    with suppress(FileNotFoundError):
        os.unlink(flag)
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def lose_a_worker(path, persistent):
    flag = f"{path}.die"
    options = {
        "num_workers": 2,
        "multiprocessing_context": "fork",
        "persistent_workers": persistent,
        "finish": functools.partial(die_once, flag=flag),
        "batch_size": 1,
        "prefetch_factor": 1,
    }
    loader = loader_of(seed_of, path, **options)
    iterator = iter(loader)
    next(iterator)
    open(flag, "x").close()
    error = error_of(iterator)
    del iterator
    loader.close()
    next_epoch = loader.next_epoch
    passes = [pairs(loader), pairs(loader)]
    loader.close()
    with loader_of(seed_of, path, **options) as again:
        return error, next_epoch, passes, [pairs(again) for _ in range(3)]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_and_the_next_pass_is_right(persistent, store):
    """DataLoader's error comes, not a hang; after close, or in a new loader, all goes on."""
    error, next_epoch, passes, again = forked(lose_a_worker, store, persistent)
    assert "DataLoader worker" in error
    assert next_epoch == 1
    assert passes == [seeds(1), seeds(2)]
    assert again == [seeds(0), seeds(1), seeds(2)]
    assert temps(store) == []


def die(key, index):
    if key.index == index:
        os.kill(os.getpid(), signal.SIGKILL)
    return seed_of(key)


def lose_a_build(path):
    build = functools.partial(die, index=5)
    error = error_of(loader_of(build, path, num_workers=1, multiprocessing_context="fork"))
    with Caught(), loader_of(seed_of, path) as again:
        return error, pairs(again)


def test_a_build_that_kills_its_worker_is_an_error(store):
    """A worker that dies in a build, as when memory runs out, is DataLoader's error."""
    error, again = forked(lose_a_build, store)
    assert "DataLoader worker" in error
    assert again == seeds(0)


def train_until_killed(build, path, pipe):
    loader = loader_of(
        build,
        path,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=True,
        finish=with_present,
    )
    for batch in loader:
        pipe.send(batch[0]["pid"])


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_no_workers_and_a_good_directory(sign, store, log):
    """When the main process is killed its workers end; a start at once in its place is right."""
    here, there = get_context("fork").Pipe(duplex=False)
    main = get_context("fork").Process(target=train_until_killed, args=(log.build, store, there))
    main.start()
    # both have begun: one orphaned before it first looked at its parent would wait for ever
    workers = [psutil.Process(here.recv()) for _ in range(2)]
    assert workers[0].pid != workers[1].pid
    os.kill(main.pid, sign)
    main.join()
    assert main.exitcode == -sign
    loader = loader_of(log.build, store, start_epoch=0)
    for epoch in range(3):
        assert_right(flat(loader), POLICY, epoch)
    if sign == signal.SIGKILL:
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert alive == []
    else:  # which takes DataLoader's workers seconds
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
    assert temps(store) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_main_process_ends_the_pass(error, store):
    """Ctrl-C within a build of this process comes through, and the next pass is whole."""
    failing = [error]

    def build(key):
        if key.index == 5 and failing:
            raise failing.pop()
        return sample_of(key)

    loader = loader_of(build, store)
    with pytest.raises(error):
        list(loader)
    assert loader.next_epoch == 1
    assert_right(flat(loader), POLICY, 1)


class Plain:
    """The dataset of one's own that does what `odd_at_two` does."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return odd_at_two(POLICY.key(index, 0), self.error)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("error", ODD_ERRORS)
def test_an_error_in_a_worker_comes_as_from_a_plain_dataset(error, persistent, store):
    """Of whatever class, it is what DataLoader makes of it, and tells index, epoch, generation."""
    options = {
        "batch_size": 2,
        "collate_fn": list,
        "num_workers": 2,
        "multiprocessing_context": "fork",
        "persistent_workers": persistent,
    }
    with fails(Exception) as wanted:
        list(DataLoader(Plain(error), **options))
    build = functools.partial(odd_at_two, error=error)
    with ReuseDataLoader(build, SIZE, store, lifetime=3, seed=5, **options) as loader:
        for epoch in range(2):
            batches = iter(loader)
            assert_right(next(batches), POLICY, epoch)
            with fails(wanted.type) as caught:
                list(batches)
            (text,) = caught.value.args
            generation = POLICY.key(2, epoch).generation
            assert f"in build for index 2, epoch {epoch}, generation {generation}" in text
            assert "odd_at_two" in text
            assert type(ODD_ERRORS[error]()).__name__ in text
            del batches, caught


# --- resources ------------------------------------------------------------------------------------


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def fifty_tensors(key):
    return [torch.full((2,), float(key.index)) for _ in range(50)]


@pytest.mark.parametrize("workers", [0, 2])
def test_passes_open_no_descriptors(workers, store):
    """Descriptors do not grow from pass to pass beyond those of a plain DataLoader."""
    loader = loader_of(
        fifty_tensors,
        store,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    list(loader)
    gc.collect()  # what earlier tests left must not end, or last, within this one
    before = descriptors()
    for _ in range(10):
        for batch in loader:
            assert len(batch[0]) == 50
        del batch  # it holds a descriptor for each of its tensors
    # the pipes of a pass's workers may still be closing: fewer than the passes are no growth
    assert descriptors() <= before + (8 if workers else 0)


def run_with_sharing(strategy, path):
    torch.multiprocessing.set_sharing_strategy(strategy)
    loader = loader_of(
        sample_of,
        path,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=True,
        finish=with_present,
    )
    for epoch in (0, 1, 2, 1):
        loader.set_epoch(epoch)
        samples = flat(loader)
        assert {sample["present"][0] for sample in samples} == {epoch}
        for sample, base in zip(samples, plain(samples), strict=True):
            assert bits(base) == expected(POLICY, sample["index"], epoch)
    loader.close()
    return True


@pytest.mark.parametrize("strategy", sorted(torch.multiprocessing.get_all_sharing_strategies()))
def test_any_sharing_strategy_will_do(strategy, store):
    """Workers see the epochs under each strategy by which torch shares tensors."""
    assert forked(run_with_sharing, strategy, store)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no /dev/shm")
def test_a_store_in_shared_memory_works():
    """A directory in /dev/shm is a directory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        log = Log(folder)
        loader = loader_of(log.build, f"{folder}/store", num_workers=1)
        for epoch in range(3):
            assert_right(flat(loader), POLICY, epoch)
            assert log.take() == keys(POLICY, epoch, due(POLICY, epoch, SIZE))


def rank_of_two(rank, path, gate, pipe):
    """Passes of a rank with its share of the indices, padded, in step with the other rank."""
    sampler = DistributedSampler(range(7), num_replicas=2, rank=rank, shuffle=True)
    loader = ReuseDataLoader(
        sample_of, 7, path, lifetime=3, seed=5, sampler=sampler, collate_fn=list
    )
    good = []
    with Caught() as caught:
        for epoch in range(4):
            gate.wait(60)
            for sample in flat(loader):
                good.append(bits(sample) == expected(POLICY, sample["index"], epoch))
        loader.close()
    pipe.send((good, list(caught)))


def test_ranks_share_a_directory(store):
    """Ranks that start together on one directory, padding and all, get right samples alone."""
    context = get_context("fork")
    gate = context.Barrier(2)
    answers = []
    for rank in (0, 1):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=rank_of_two, args=(rank, store, gate, there))
        child.start()
        there.close()
        answers.append((child, here))
    for child, here in answers:
        assert here.recv() == ([True] * 16, [])
        child.join()
    assert temps(store) == []


def test_workers_of_two_loaders_do_not_meet(tmp_path):
    """Two loaders with persistent workers, drawn from in turn, each count for themselves."""
    loaders = [
        loader_of(
            sample_of,
            tmp_path / str(number),
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context="fork",
            start_epoch=number * 4,
        )
        for number in (0, 1)
    ]
    for step in range(3):
        drawn = list(zip(*loaders, strict=True))
        for number in (0, 1):
            assert_right(flat([pair[number] for pair in drawn]), POLICY, 4 * number + step)
    for loader in loaders:
        loader.close()


def test_loaders_inside_of_workers_are_plain_data(store):
    """A ReuseDataset can be an ingredient of another dataset's samples in workers."""
    loader = loader_of(sample_of, store)
    assert isinstance(loader, DataLoader)
    outer = DataLoader(loader.dataset, batch_size=2, collate_fn=list, num_workers=1)
    assert_right(flat(outer), POLICY, 0)
    loader.set_epoch(2)
    assert_right(flat(outer), POLICY, 2)
