"""A run that starts anywhere, on whatever is on disk, goes on like the uninterrupted one."""

import shutil

import pytest
from helpers import FORKS, Caught, bits, due, flat, keys, logged, sample_files

from reuseloader import ReuseDataLoader, ReusePolicy, StateMismatchError

pytestmark = pytest.mark.filterwarnings(FORKS)

SIZE = 12
LAST = 10
WORKERS = [0, 2]


def loader_of(log, path, lifetime=3, workers=0, **options):
    return ReuseDataLoader(
        log.build,
        SIZE,
        path,
        lifetime=lifetime,
        seed=9,
        shuffle=True,
        batch_size=5,
        collate_fn=list,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        **options,
    )


def stream(loader, passes):
    """The bits of every batch of so many passes."""
    return [[bits(batch) for batch in loader] for _ in range(passes)]


@pytest.fixture
def reference(tmp_path, log):
    """The uninterrupted run, and its directory after each epoch."""
    runs = {}

    def run(lifetime):
        if lifetime not in runs:
            path = tmp_path / f"reference {lifetime}"
            loader = loader_of(log, path, lifetime)
            batches = []
            for epoch in range(LAST + 1):
                batches += stream(loader, 1)
                shutil.copytree(path, tmp_path / f"after {lifetime} {epoch}")
            loader.close()
            log.take()
            runs[lifetime] = batches
        return runs[lifetime]

    return run


def stored(policy, epoch):
    """Which generation of each index is on disk after an uninterrupted run up to ``epoch``."""
    found = {}
    for index in range(SIZE):
        for past in range(epoch + 1):
            key = policy.key(index, past)
            if key.first_epoch == past and key.use < policy.lifetime - 1:
                found[index] = key.generation
    return found


def halve(path):
    for name in sample_files(path)[::2]:
        (path / name).unlink()


def spoil(path):
    for name in sample_files(path)[::3]:
        (path / name).write_bytes(b"rubbish")


def empty(path):
    shutil.rmtree(path)
    path.mkdir()


DISKS = {
    "older": (lambda start: max(0, start - 4), lambda path: None),
    "just right": (lambda start: start - 1, lambda path: None),
    "in its middle": (lambda start: start, lambda path: None),
    "newer": (lambda start: LAST, lambda path: None),
    "half": (lambda start: start - 1, halve),
    "newer and half": (lambda start: LAST, halve),
    "damaged": (lambda start: start - 1, spoil),
    "empty": (lambda start: start - 1, empty),
    "not there": (lambda start: start - 1, shutil.rmtree),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("disk", DISKS)
def test_a_resumed_run_equals_the_uninterrupted_one(disk, workers, reference, tmp_path, log):
    """From any epoch, over any directory, every batch is equal; just what is missing is built."""
    policy = ReusePolicy(3, 9)
    wanted = reference(3)
    for start in (1, 2, 7) if workers == 0 else (7,):
        age, change = DISKS[disk]
        path = tmp_path / f"resumed {start}"
        shutil.copytree(tmp_path / f"after 3 {age(start)}", path)
        change(path)
        there = stored(policy, age(start))
        lost = {i for i in there if not (path / f"{i:08}.pt").exists()}
        if change is spoil:
            lost = {int(name[:8]) for name in sample_files(path)[::3]}
        with Caught() as caught, loader_of(log, path, workers=workers, start_epoch=start) as loader:
            for epoch in range(start, LAST + 1):
                assert stream(loader, 1) == [wanted[epoch]], (start, epoch)
                if epoch == start:
                    missing = [
                        i
                        for i in range(SIZE)
                        if i in lost or there.get(i) != policy.key(i, epoch).generation
                    ]
                    assert log.take() == keys(policy, epoch, missing)
                elif epoch >= start + 3:
                    assert log.take() == keys(policy, epoch, due(policy, epoch, SIZE))
                else:
                    log.take()
        assert len(caught) == (1 if disk == "damaged" else 0)


@pytest.mark.parametrize("lifetime", [1, 2, 5, 10**9])
def test_an_intact_directory_costs_just_the_expired(lifetime, reference, tmp_path, log):
    """Resumed on its own directory a run builds what the uninterrupted one builds, no more."""
    policy = ReusePolicy(lifetime, 9)
    wanted = reference(lifetime)
    for start in (1, 4, 9):
        path = tmp_path / f"resumed {start}"
        shutil.copytree(tmp_path / f"after {lifetime} {start - 1}", path)
        with loader_of(log, path, lifetime, start_epoch=start) as loader:
            for epoch in range(start, LAST + 1):
                assert stream(loader, 1) == [wanted[epoch]]
                assert log.take() == keys(policy, epoch, due(policy, epoch, SIZE))


def test_going_back_and_forth_in_one_directory_stays_right(reference, tmp_path, log):
    """Epochs in any order, in one loader and in new ones on its directory, are always right."""
    wanted = reference(3)
    path = tmp_path / "store"
    loader = loader_of(log, path)
    for epoch in (10, 0, 7, 7, 2, 1, 9, 3):
        loader.set_epoch(epoch)
        assert stream(loader, 1) == [wanted[epoch]]
        assert stream(loader_of(log, path, start_epoch=epoch), 1) == [wanted[epoch]]


def test_a_run_with_other_settings_in_between_changes_nothing(reference, tmp_path, log):
    """Another lifetime, seed or fingerprint in one directory costs builds, never right samples."""
    wanted = reference(3)
    path = tmp_path / "store"
    for epoch in range(4):
        assert stream(loader_of(log, path, start_epoch=epoch), 1) == [wanted[epoch]]
        stream(loader_of(log, path, lifetime=4, start_epoch=epoch), 1)
        stream(loader_of(log, path, fingerprint="other", start_epoch=epoch), 1)


def test_a_broken_off_epoch_is_repeated_with_hits(tmp_path, log):
    """The epoch that a run stopped in is read where it had come to, and built beyond."""
    policy = ReusePolicy(10**9, 9)
    path = tmp_path / "store"
    loader = loader_of(log, path, lifetime=10**9)
    iterator = iter(loader)
    seen = flat([next(iterator)])
    assert len(log.take()) == len(seen) == 5
    state = loader.state_dict()
    resumed = loader_of(log, path, lifetime=10**9)
    resumed.load_state_dict(state)
    samples = flat(resumed)
    assert [bits(sample) for sample in samples[:5]] == [bits(sample) for sample in seen]
    assert log.take() == keys(policy, 0, [sample["index"] for sample in samples[5:]])


def test_the_log_of_builds_notes_every_build(tmp_path, log):
    """The oracle of these tests itself: one line a build, with the key of the first use."""
    policy = ReusePolicy(3, 9)
    for index in (4, 2):
        logged(policy.key(index, 5).first, str(log.path))
    assert log.take() == keys(policy, 5, [2, 4])
    assert log.take() == []


@pytest.mark.parametrize(
    "wrong", [None, 3, {}, {"epoch": 1, "position": 4}, [("epoch", 1)]], ids=repr
)
def test_a_state_that_is_none_of_a_loader_is_refused(wrong, log, store):
    """Nor is that of a sampler, whose position it would lose."""
    loader = loader_of(log, store)
    with pytest.raises(StateMismatchError, match="must be a dict of a ReuseDataLoader"):
        loader.load_state_dict(wrong)
    assert loader.next_epoch == 0
