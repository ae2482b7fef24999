"""A loader that a trainer makes anew to put a sampler around its sampler, as Lightning does."""

import inspect
import pickle

import pytest
from helpers import Caught, flat, index_of, other_build
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from reuseloader import IndexEpoch, ReuseDataLoader, ReusePolicy, ReuseSampler

POLICY = ReusePolicy(3, 5)
SIZE = 10


def with_epoch(sample, key):
    return IndexEpoch(sample, key.epoch)


def loader_of(store, **options):
    options = {"lifetime": 3, "seed": 5, "finish": with_epoch, "collate_fn": list, **options}
    return ReuseDataLoader(index_of, SIZE, store, **options)


class EverySecond(DistributedSampler):
    """Every second item of a sampler, whose set_epoch it passes on: Lightning's, in short."""

    def __init__(self, sampler, rank):
        self._sampler = sampler
        super().__init__(self, 2, rank, shuffle=False)

    def __len__(self):
        return len(self._sampler) // 2

    def __iter__(self):
        return iter(list(self._sampler)[self.rank :: 2])

    def set_epoch(self, epoch):
        super().set_epoch(epoch)
        getattr(self._sampler, "set_epoch", int)(epoch)


def anew(loader, **changes):
    """``loader`` made anew from its attributes, in the way of Lightning."""
    names = {**inspect.signature(type(loader)).parameters}
    names |= inspect.signature(DataLoader).parameters
    arguments = {name: value for name, value in vars(loader).items() if name in names}
    return type(loader)(**{**arguments, "batch_sampler": None, **changes})


def halves(loader):
    """The loader made anew for each of two ranks."""
    return [anew(loader, sampler=EverySecond(loader.sampler, rank)) for rank in (0, 1)]


def order(epoch):
    return [IndexEpoch(POLICY.order(p, epoch, SIZE), epoch) for p in range(SIZE)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_loader_made_anew_goes_on_in_the_same_epochs(batch_size, workers, store):
    """The new loader has the old one's order, samples, settings and clock: no epoch is lost."""
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    loader = loader_of(store, shuffle=True, start_epoch=3, batch_size=batch_size, **options)
    assert flat(loader) == order(3)
    for rank, half in enumerate(halves(loader)):
        loader.set_epoch(4)
        for epoch in (4, 5, 6):
            assert half.next_epoch == epoch
            assert flat(half) == order(epoch)[rank::2]
            assert loader.state_dict() == half.state_dict() == {"epoch": epoch + 1}
    assert half.dataset is loader.dataset
    assert flat(loader) == order(7)


@pytest.mark.parametrize("act", ["loader", "dataset", "sampler", "old loader", "old sampler"])
def test_an_epoch_may_be_set_on_any_of_them(act, store):
    """Old and new loader count with one clock, which set_epoch of all their parts moves."""
    loader = loader_of(store, shuffle=True)
    half, _ = halves(loader)
    parts = {"loader": half, "dataset": half.dataset, "sampler": half.sampler}
    parts |= {"old loader": loader, "old sampler": loader.sampler}
    for epoch in (5, 2, 0):
        parts[act].set_epoch(epoch)
        assert flat(half) == order(epoch)[::2]
        assert flat(half) == order(epoch + 1)[::2]


def test_iterators_of_a_loader_made_anew_stay_in_their_epochs(store):
    """Two iterators alive side by side, drawn from in turn, keep their order and epoch."""
    half, _ = halves(loader_of(store, shuffle=True))
    both = list(zip(half, half, strict=True))
    assert flat(batch for batch, _ in both) == order(0)[::2]
    assert flat(batch for _, batch in both) == order(1)[::2]


@pytest.mark.parametrize("batched", [True, False])
def test_a_dataset_alone_keeps_the_epoch(batched, store):
    """With a sampler that is not around the loader's own, the dataset brings the clock."""
    loader = loader_of(store, start_epoch=8)
    sampler = SequentialSampler(range(SIZE))
    if batched:
        given = {"batch_sampler": BatchSampler(sampler, 4, drop_last=False), "sampler": None}
    else:
        given = {"sampler": sampler}
    again = anew(loader, **given)
    for epoch in (8, 9):
        assert flat(again) == [IndexEpoch(index, epoch) for index in range(SIZE)]
    assert loader.next_epoch == 10


def test_a_sampler_alone_keeps_the_epoch(store):
    """Made anew from the arguments, without a dataset, it counts with the old loader's sampler."""
    loader = loader_of(store, shuffle=True)
    half = loader_of(store, sampler=EverySecond(loader.sampler, 1))
    loader.sampler.set_epoch(4)
    assert flat(half) == order(4)[1::2]
    assert loader.next_epoch == half.next_epoch == 5


def test_a_loader_made_anew_survives_pickle(store):
    """A rank that is spawned gets a copy with a clock of its own."""
    loader = loader_of(store, shuffle=True, start_epoch=2)
    copy = pickle.loads(pickle.dumps(loader))
    half, _ = halves(copy)
    assert flat(half) == order(2)[::2]
    assert (copy.next_epoch, loader.next_epoch) == (3, 2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"build": other_build}, {"size": SIZE + 1}, {"seed": 6}, {"lifetime": 4}],
    ids=repr,
)
def test_another_loaders_dataset_is_refused(changes, store):
    """Without a sampler, or with other arguments than its own, ``dataset=`` is a TypeError."""
    loader = loader_of(store)
    sampler = {"sampler": range(3)} if changes else {"sampler": None}
    with pytest.raises(TypeError, match="dataset must not be given, got"):
        anew(loader, **sampler, **changes)


def test_a_sharded_loader_is_not_sharded_again(store):
    """Ranks beside a sampler that a trainer put there: the error says how to tell the trainer."""
    loader = loader_of(store, rank=0, world_size=2)
    with pytest.raises(ValueError, match=r"^rank must not .*use_distributed_sampler=False"):
        halves(loader)


def test_a_sharded_loader_keeps_its_share(store):
    """With new batches of the same sampler, as for predict, it goes on with its ranks."""
    for rank in (0, 1):
        loader = loader_of(store, rank=rank, world_size=2, shuffle=True, start_epoch=1)
        new = BatchSampler(loader.sampler, 4, drop_last=False)
        sampler = ReuseSampler(SIZE, POLICY, rank=rank, world_size=2, start_epoch=1)
        assert flat(anew(loader, batch_sampler=new, sampler=None)) == list(sampler)


def test_arguments_are_attributes(store):
    """Every argument by name is kept as it was given, but digest: the dataset has that."""
    given = {"fingerprint": "f", "format": "tensors", "balanced": False, "start_epoch": 4}
    loader = loader_of(store, **given)
    named = inspect.signature(ReuseDataLoader).parameters
    wanted = {name: p.default for name, p in named.items() if p.kind is not p.VAR_KEYWORD}
    wanted |= {"build": index_of, "size": SIZE, "path": store, "lifetime": 3, "seed": 5}
    wanted |= {"finish": with_epoch, **given}
    del wanted["digest"]
    assert {name: getattr(loader, name) for name in wanted} == wanted


def test_the_new_loader_has_a_digest_too(store):
    """Of the same samples."""
    loader = loader_of(store, digest=True, finish=lambda sample, key: (sample, key.epoch))
    list(loader)
    new = anew(loader, sampler=None, batch_sampler=BatchSampler(loader.sampler, 2, drop_last=False))
    new.set_epoch(0)
    list(new)
    assert new.digest() == loader.digest()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_set_too_late_is_told(workers, store):
    """Set between iter() and the first batch, it moves the next pass, and a warning says so."""
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    loader = loader_of(store, shuffle=True, **options)
    first = iter(loader)
    loader.sampler.set_epoch(3)
    with Caught() as caught:
        assert flat(first) == order(0)
        assert flat(loader) == order(3)
    (text,) = caught
    assert "epoch 3 was set after iter(loader) had begun a pass of epoch 0" in text
    first = iter(loader)
    loader.set_epoch(4)
    with Caught() as caught:
        assert flat(first) == order(4)  # the same epoch: nothing to say
    assert caught == []


def test_a_sampler_of_the_users_own_is_told_each_epoch(store):
    """A ReuseSampler that no loader made is no sign of a loader made anew."""
    loader = loader_of(store, sampler=ReuseSampler(SIZE, POLICY, start_epoch=9), start_epoch=2)
    assert flat(loader) == order(2)
    assert flat(loader) == order(3)
