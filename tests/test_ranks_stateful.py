"""Ranks under StatefulDataLoader: exact resume in mid-epoch, also by another number of ranks."""

from collections import Counter
from itertools import chain, islice

import pytest
from helpers import FORKS, index_of
from torchdata.stateful_dataloader import StatefulDataLoader

from reuseloader import IndexEpoch, ReuseDataset, ReusePolicy, ReuseSampler, StateMismatchError

pytestmark = [
    pytest.mark.filterwarnings(FORKS),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's own
]

SIZE, BATCH = 31, 3
POLICY = ReusePolicy(3, 5)
workers = pytest.mark.parametrize(
    ("num_workers", "persistent"),
    [(0, False), (2, False), (2, True)],
    ids=["main", "workers", "persistent"],
)


def with_epoch(sample, key):
    return IndexEpoch(sample, key.epoch)


def loader_of(store, rank, world_size, num_workers, persistent, batch_size=BATCH, **options):
    return StatefulDataLoader(
        ReuseDataset(index_of, SIZE, store, POLICY, finish=with_epoch),
        batch_size=batch_size,
        sampler=ReuseSampler(SIZE, POLICY, rank=rank, world_size=world_size, **options),
        collate_fn=list if batch_size else None,
        num_workers=num_workers,
        persistent_workers=persistent,
        multiprocessing_context="fork" if num_workers else None,
    )


def resumed(loader, state):
    loader.load_state_dict(state)
    return loader


@workers
@pytest.mark.parametrize("batch_size", [BATCH, None])
@pytest.mark.parametrize("placement", ["shared", "local"])
def test_a_rank_resumes_at_every_position(placement, batch_size, num_workers, persistent, store):
    """Stopped after any step, twice in one epoch, a rank goes on exactly; then whole epochs."""
    settings = (store, 1, 4, num_workers, persistent, batch_size)
    sampler = ReuseSampler(SIZE, POLICY, rank=1, world_size=4, placement=placement)
    whole = list(chain(*(list(sampler) for _ in range(3))))
    steps = -(-len(sampler) // (batch_size or 1))
    for stop in range(steps):
        loader = loader_of(*settings, placement=placement)
        seen = []
        for more in (stop, 1):
            batches = iter(loader)
            seen += islice(batches, more)
            state = loader.state_dict()
            del batches
            loader = resumed(loader_of(*settings, placement=placement), state)
        passes = [list(loader) for _ in range(3)]
        if stop + 1 == steps and not passes[0]:
            passes = passes[1:]  # at an epoch's end there may be one empty pass after a load
        seen += chain(*passes[:2])
        drawn = list(chain(*seen)) if batch_size else seen
        assert drawn == whole[: len(drawn)]
        assert len(drawn) >= 2 * len(sampler)


@workers
def test_other_ranks_take_over(num_workers, persistent, store):
    """After batches of a multiple of lifetime 2 ranks go on where 4 stopped, from one state."""
    for stop in (1, 2):
        drawn = []
        for rank in range(4):
            loader = loader_of(store, rank, 4, num_workers, persistent)
            drawn += islice(iter(loader), stop)
            state = loader.state_dict()
        for rank in range(2):
            loader = resumed(loader_of(store, rank, 2, num_workers, persistent), state)
            drawn += loader
            assert {pair.epoch for pair in chain(*loader)} == {1}
        counts = Counter(chain(*drawn))
        assert set(counts) == {IndexEpoch(index, 0) for index in range(SIZE)}
        assert counts.total() == SIZE + 1


def test_other_ranks_are_refused_elsewhere(store):
    """Batches that are no multiple of lifetime end where no other number of ranks can go on."""
    loader = loader_of(store, 0, 4, 0, False, batch_size=2)
    next(iter(loader))
    with pytest.raises(StateMismatchError, match="the nearest position is 3"):
        iter(resumed(loader_of(store, 0, 2, 0, False, batch_size=2), loader.state_dict()))
