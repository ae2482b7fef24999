import pytest
from hypothesis import given
from hypothesis import strategies as st

from reuseloader import ReusePolicy
from reuseloader.model import (
    AHEAD,
    CONSUMER,
    WORKERS,
    Costs,
    Pipeline,
    first_epoch,
    smallest_hiding,
    steady_epoch,
)

COSTS = Costs(build=8.0, hit=1.0, store=2.0, finish=0.5)
SECONDS = st.floats(0, 10)
ALL_COSTS = st.builds(Costs, SECONDS, SECONDS, SECONDS, SECONDS)
PIPELINES = st.builds(
    Pipeline, st.integers(0, 5), st.sampled_from([WORKERS, AHEAD, CONSUMER]), st.booleans()
)
SITUATIONS = {
    "costs": ALL_COSTS,
    "pipeline": PIPELINES,
    "training": SECONDS,
    "size": st.integers(1, 60),
}

# 12 samples at lifetime 4, training 30 s: 3 builds with storing are 30 s, 9 hits are 9 s, 12 times
# finish is 6 s
BY_HAND = {
    "DataLoader, no workers: all adds up": (Pipeline(0), 30 + 30 + 9 + 6),
    "DataLoader, 1 worker does it all": (Pipeline(1), 30 + 9 + 6),
    "DataLoader, 3 workers: training is longer": (Pipeline(3), 30),
    "DataLoader, 3 workers that get 0.9 of one done": (
        Pipeline(3, speedup=0.9),
        (30 + 9 + 6) / 0.9,
    ),
    "graph, no workers: beside training": (Pipeline(0, AHEAD), 30 + 9 + 6),
    "graph, no workers, no Prefetcher": (Pipeline(0, CONSUMER), 30 + 30 + 9 + 6),
    "graph, 1 thread: hits beside training": (Pipeline(1, AHEAD), 30),
    "graph, 2 threads, no Prefetcher: hits are waited for": (Pipeline(2, CONSUMER), 30 + 9 + 6),
    "graph, 2 processes, no Prefetcher: all are read": (
        Pipeline(2, CONSUMER, rereads=True),
        30 + 12 + 6,
    ),
    "graph, none to reread from": (Pipeline(0, AHEAD, rereads=True), 30 + 9 + 6),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_steady_epochs_by_hand(case):
    """An epoch takes what the busiest place has to do; waiting is what it takes beyond training."""
    pipeline, expected = BY_HAND[case]
    found = steady_epoch(COSTS, pipeline, training=30.0, size=12, lifetime=4)
    assert found.seconds == pytest.approx(expected)
    assert found.wait == pytest.approx(expected - 30)
    assert (found.lifetime, found.builds) == (4, 3)


def test_nothing_is_stored_without_reuse():
    """At lifetime 1 an epoch is builds alone, epoch 0 too."""
    for epoch in (steady_epoch, first_epoch):
        found = epoch(Costs(8.0, 1.0, 2.0), Pipeline(0), training=0.0, size=10, lifetime=1)
        assert found.seconds == 80


@given(st.integers(1, 200), st.integers(1, 12))
def test_epochs_have_the_builds_and_stores_of_the_rule(size, lifetime):
    """Builds and stores, each alone at a cost of one second, are those that the policy says."""
    policy = ReusePolicy(lifetime)
    numbers = {"training": 0.0, "size": size, "lifetime": lifetime}

    def counts(predict, first, last):
        built = stored = 0
        for epoch in range(first, last):
            due = [
                key
                for key in (policy.key(i, epoch) for i in range(size))
                if key.first_epoch == epoch
            ]
            assert len(due) == policy.builds(epoch, size)
            built += len(due)
            stored += sum(not policy.is_last_use(key) for key in due)
        assert predict(Costs(1.0, 0.0), Pipeline(0), **numbers).seconds * (
            last - first
        ) == pytest.approx(built)
        assert predict(Costs(0.0, 0.0, 1.0), Pipeline(0), **numbers).seconds * (
            last - first
        ) == pytest.approx(stored)
        return built

    assert counts(first_epoch, 0, 1) == size
    assert counts(steady_epoch, 1, 1 + lifetime) == size


@given(lifetime=st.integers(1, 80), **SITUATIONS)
def test_predictions_keep_within_bounds(costs, pipeline, training, size, lifetime):
    """An epoch takes at least training, and at most all work one after another."""
    for predict in (steady_epoch, first_epoch):
        found = predict(costs, pipeline, training=training, size=size, lifetime=lifetime)
        alone = training + size * (costs.build + costs.hit + costs.store + costs.finish)
        assert training <= found.seconds <= alone * (1 + 1e-9)
        assert found.wait == found.seconds - training


@given(lifetime=st.integers(1, 80), **SITUATIONS)
def test_a_longer_lifetime_never_has_more_builds(costs, pipeline, training, size, lifetime):
    """Builds fall with the lifetime; so does the time, from 2 on, if a hit is free."""
    free = Costs(costs.build, 0.0, costs.store, costs.finish)
    one, longer = (
        steady_epoch(free, pipeline, training=training, size=size, lifetime=each)
        for each in (lifetime, lifetime + 1)
    )
    assert longer.builds < one.builds
    if lifetime > 1:
        assert longer.seconds <= one.seconds


@given(**SITUATIONS)
def test_smallest_hiding_is_what_trying_each_lifetime_finds(costs, pipeline, training, size):
    """It is the first lifetime at which nothing but the consumer's own work fills the epoch."""

    def hidden(lifetime):
        found = steady_epoch(costs, pipeline, training=training, size=size, lifetime=lifetime)
        own = training
        if pipeline.reads == CONSUMER:
            reads = size if pipeline.rereads else size - found.builds
            own += reads * costs.hit + size * costs.finish
        return found.seconds == own

    expected = None
    if pipeline.num_workers or pipeline.reads == AHEAD:
        expected = next(filter(hidden, range(1, max(2, size) + 1)), None)
    found = smallest_hiding(costs, pipeline, training=training, size=size)
    if expected is None and found is not None:  # beyond what was tried
        assert found > size
        assert hidden(found)
        assert not hidden(found - 1)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("pipeline", "training", "expected"),
    [
        (Pipeline(1), 96.0 + 6, 1),  # all builds and finish, just so
        (Pipeline(1), 90.0, 2),  # (10 / L + (1 - 1 / L) + 0.5) * 12: 72 s at lifetime 2
        (Pipeline(1), 30.0, 9),
        (Pipeline(1), 18.0, None),  # hits and finish alone: only in the limit
        (Pipeline(3), 34.0, 1),
        (Pipeline(1, AHEAD), 30.0, 4),
        (Pipeline(1, AHEAD), 17.0, 8),  # builds 15 s, hits and finish 16.5 s
        (Pipeline(1, AHEAD), 16.0, None),  # too many hits where builds are few enough
        (Pipeline(1, AHEAD, rereads=True), 13.0, None),  # all are read: 18 s
        (Pipeline(0, AHEAD), 30.0, 9),
        (Pipeline(0), 1000.0, None),
        (Pipeline(0, CONSUMER), 1000.0, None),
        (Pipeline(1, CONSUMER), 13.0, 5),  # 120 / L beside 13 + 12 * (1 - 1 / L) + 6
    ],
)
def test_smallest_hiding_by_hand(pipeline, training, expected):
    """The shortest lifetime at which training does not wait for builds, if there is one."""
    assert smallest_hiding(COSTS, pipeline, training=training, size=12) == expected
