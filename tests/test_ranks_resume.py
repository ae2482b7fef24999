"""States of ranks: exact resume by as many ranks, and by more or fewer where that is possible."""

import itertools
import json
from collections import Counter

import pytest
from torchdata.nodes import Batcher, Loader

from reuseloader import ReusePolicy, ReuseSampler, StateMismatchError, nodes

SIZES = [31, 61]
EPOCH = 3
SHARED = [
    pytest.param(ReusePolicy(3, 5), {"shuffle": True}, 3, id="balanced"),
    pytest.param(ReusePolicy(3, 5), {"shuffle": False}, 3, id="unshuffled"),
    pytest.param(ReusePolicy(3, 5, balanced=False), {"shuffle": True}, 1, id="plain"),
]
shared = pytest.mark.parametrize(("policy", "options", "period"), SHARED)


def samplers(size, policy, world_size, state=None, **options):
    """The samplers of all ranks, told to go on from ``state``."""
    made = [
        ReuseSampler(size, policy, start_epoch=EPOCH, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    if state is not None:
        for sampler in made:
            sampler.load_state_dict(json.loads(json.dumps(state)))
    return made


def take(ranks, count):
    """The next indices of every rank, together, and the one state that all ranks then have."""
    pairs = [list(itertools.islice(iter(sampler), count)) for sampler in ranks]
    states = [sampler.state_dict() for sampler in ranks]
    assert all(state == states[0] for state in states)
    assert {pair.epoch for pair in itertools.chain(*pairs)} <= {EPOCH}
    return [pair.index for pair in itertools.chain(*pairs)], states[0]


def places(size, world_size, period, origin=0):
    """The positions of a rank at which another number of ranks may take over."""
    return range(0, (size - origin) // period // world_size * period + 1, period)


def assert_complete(indices, size, world_size):
    """Every index once, but for fewer repetitions than there are ranks."""
    assert set(indices) == set(range(size))
    assert len(indices) - size < world_size


def rest(ranks):
    """What is left of the epoch, of all ranks; each then goes on with the next, as a whole."""
    passes = [list(sampler) for sampler in ranks]
    assert len({len(pairs) for pairs in passes}) == 1
    for sampler in ranks:
        pairs = list(sampler)
        assert {pair.epoch for pair in pairs} == {EPOCH + 1}
        assert len(pairs) == len(sampler)
    pairs = list(itertools.chain(*passes))
    assert {pair.epoch for pair in pairs} == {EPOCH}
    return [pair.index for pair in pairs]


@pytest.mark.parametrize("placement", ["shared", "local"])
@pytest.mark.parametrize("drop_last", [True, False])
@shared
def test_each_rank_goes_on_exactly(policy, options, period, drop_last, placement):
    """As many ranks go on from every position, each exactly where it stopped."""
    for size, rank in itertools.product((0, 2, 7, 30, 31), range(4)):
        arguments = {"rank": rank, "world_size": 4, "placement": placement, "drop_last": drop_last}
        whole = ReuseSampler(size, policy, start_epoch=1, **arguments, **options)
        passes = [list(whole), list(whole), list(whole)]
        for position in range(len(whole) + 1):
            sampler = ReuseSampler(size, policy, start_epoch=1, **arguments, **options)
            seen = list(itertools.islice(iter(sampler), position))
            state = json.loads(json.dumps(sampler.state_dict()))
            resumed = ReuseSampler(size, policy, **arguments, **options)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            node = nodes.ReuseSampler(size, policy, **arguments, **options)
            node.reset(state)
            left = list(node)
            assert list(resumed) == left
            node.reset()
            left += list(node)
            assert seen + left == [*passes[0], *passes[1], *passes[2]][: len(seen + left)]
            assert len(seen + left) >= 2 * len(whole)


@shared
def test_four_then_two_then_three_ranks(policy, options, period):
    """Other numbers of ranks take over at every legal position: together every index once."""
    for size in SIZES:
        for first in places(size, 4, period):
            done, state = take(samplers(size, policy, 4, **options), first)
            if len(done) == size:  # the epoch has ended
                continue
            origin = len(done)
            for second in places(size, 2, period, origin):
                ranks = samplers(size, policy, 2, state, **options)
                more, later = take(ranks, second)
                if origin + len(more) == size:
                    continue
                last = rest(samplers(size, policy, 3, later, **options))
                assert_complete(done + more + last, size, 3)


@shared
def test_who_takes_over_may_stop_anywhere(policy, options, period):
    """Ranks that took over resume exactly themselves, at every position, twice in one epoch."""
    size = 61
    done, state = take(samplers(size, policy, 4, **options), places(size, 4, period)[3])
    whole = [list(sampler) for sampler in samplers(size, policy, 3, state, **options)]
    for position in range(len(whole[0])):
        for stop in (position, 1):
            seen, again = take(samplers(size, policy, 3, state, **options), position)
            ranks = samplers(size, policy, 3, again, **options)
            if stop == 1 and position + 1 < len(whole[0]):
                more, again = take(ranks, 1)
                seen += more
                ranks = samplers(size, policy, 3, again, **options)
            assert_complete(done + seen + rest(ranks), size, 3)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@shared
def test_elsewhere_the_nearest_position_is_named(policy, options, period, world_size):
    """At any other position another number of ranks is refused, with the nearest that is legal."""
    for size in SIZES:
        legal = places(size, 4, period)
        for position in range(1, -(-size // 4)):
            _, state = take(samplers(size, policy, 4, **options), position)
            if position in legal:
                samplers(size, policy, world_size, state, **options)
                continue
            (sampler, *_) = samplers(size, policy, world_size, **options)
            node = nodes.ReuseSampler(size, policy, rank=0, world_size=world_size, **options)
            for load in (sampler.load_state_dict, node.reset):
                with pytest.raises(StateMismatchError, match="world_size") as caught:
                    load(state)
                text = str(caught.value)
                named = int(text.partition("the nearest position is ")[2].partition(".")[0])
                assert named in legal
                assert abs(named - position) == min(abs(place - position) for place in legal)
                assert f"world_size = 4 at position {position}," in text
                assert f"world_size = {world_size}," in text
            assert next(iter(sampler)).epoch == EPOCH


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@shared
def test_an_ended_epoch_goes_on_with_the_next_on_any_number(policy, options, period, world_size):
    """Between epochs the number of ranks may change freely, for the sampler and for the node."""
    for size, drop_last in itertools.product((4, 40, 61), (True, False)):
        arguments = {**options, "drop_last": drop_last}
        (sampler, *_) = samplers(size, policy, 4, **arguments)
        list(sampler)
        node = nodes.ReuseSampler(
            size, policy, start_epoch=EPOCH, rank=2, world_size=4, **arguments
        )
        list(node)
        for state in (sampler.state_dict(), node.state_dict()):
            ranks = samplers(size, policy, world_size, state, **arguments)
            assert all(rank.epoch == EPOCH + 1 for rank in ranks)
            fresh = samplers(size, policy, world_size, **arguments)
            for one, other in zip(ranks, fresh, strict=True):
                other.set_epoch(EPOCH + 1)
                assert list(one) == list(other)


def test_empty_passes_count():
    """Where all are dropped a pass is empty, and its state goes on with the next epoch, once."""
    for size in (0, 3):
        sampler = ReuseSampler(size, ReusePolicy(3), rank=1, world_size=4, drop_last=True)
        for epoch in range(3):
            sampler.load_state_dict(sampler.state_dict())
            assert sampler.epoch == epoch
            assert list(sampler) == []


def test_fewer_samples_than_ranks_are_left():
    """With drop_last a rest that does not go round is dropped; else some repeat the first ones."""
    policy, size = ReusePolicy(1), 11
    done, state = take(samplers(size, policy, 2), 4)
    assert_complete(done + rest(samplers(size, policy, 8, state)), size, 8)
    for sampler in samplers(size, policy, 8, state, drop_last=True):
        assert sampler.epoch == EPOCH + 1


def test_builds_stay_even_after_others_took_over():
    """Ranks that took over build equally many within one, and one in each of their blocks."""
    policy, size = ReusePolicy(4, 1), 203
    _, state = take(samplers(size, policy, 4), 8)
    numbers = []
    for rank, sampler in enumerate(samplers(size, policy, 3, state)):
        pairs = list(sampler)
        left = size - 32
        own = pairs[: left // 3 + (rank < left % 3)]
        fresh = [(pair.index + EPOCH) % 4 == 0 for pair in own]
        assert all(sum(fresh[at : at + 4]) == 1 for at in range(0, left // 12 * 4, 4))
        numbers.append(sum(fresh))
    assert max(numbers) - min(numbers) <= 1


@pytest.mark.parametrize(
    ("name", "change"), [("rank", {"rank": 1}), ("world_size", {"world_size": 3})]
)
def test_a_local_state_belongs_to_its_rank(name, change):
    """With stores of their own neither rank nor number can change; both values are told."""
    arguments = {"rank": 0, "world_size": 2, "placement": "local"}
    for kind in (ReuseSampler, nodes.ReuseSampler):
        state = kind(40, ReusePolicy(3), **{**arguments, **change}).state_dict()
        here = ReuseSampler(40, ReusePolicy(3), **arguments)
        with pytest.raises(StateMismatchError, match=f"{name} = {state[name]}") as caught:
            here.load_state_dict(state)
        assert f"{name} = {arguments[name]}" in str(caught.value)


def test_a_state_of_another_placement_is_refused():
    """Shared and local orders are two."""
    states = {}
    for placement in ("shared", "local"):
        sampler = ReuseSampler(40, ReusePolicy(3), rank=0, world_size=2, placement=placement)
        states[placement] = sampler
    for here, there in itertools.permutations(states):
        with pytest.raises(StateMismatchError, match=f"placement = '{there}'.*'{here}'"):
            states[here].load_state_dict(states[there].state_dict())


@pytest.mark.parametrize(
    "damage",
    [
        *({"world_size": value} for value in (None, 0, -1, "4", 4.0, True)),
        *({"origin": value} for value in (None, -1, 41, 4, "0", True)),
    ],
    ids=repr,
)
def test_impossible_ranks_in_a_state_are_refused(damage):
    """A missing or impossible number of ranks or origin is named, and changes nothing."""
    sampler = ReuseSampler(40, ReusePolicy(3), rank=1, world_size=4)
    with pytest.raises(StateMismatchError, match=next(iter(damage))):
        sampler.load_state_dict({**sampler.state_dict(), **damage})
    assert list(sampler) == list(ReuseSampler(40, ReusePolicy(3), rank=1, world_size=4))


@pytest.mark.parametrize("batch", [3, 6])
def test_a_graph_is_handed_to_another_number_of_ranks(tmp_path, batch):
    """Batches of a multiple of lifetime end where other ranks take over: any checkpoint will do."""
    policy, size = ReusePolicy(3, 5), 61

    def graph(rank, world_size):
        node = nodes.ReuseSampler(size, policy, rank=rank, world_size=world_size)
        node = nodes.ReuseMapper(node, lambda key: key.index, tmp_path, policy, num_workers=2)
        return Loader(Batcher(node, batch, drop_last=False))

    for steps in range(1, size // 4 // batch + 1):
        seen = []
        for rank in range(4):
            loader = graph(rank, 4)
            seen += list(itertools.islice(iter(loader), steps))
            state = json.loads(json.dumps(loader.state_dict()))
        for rank in range(2):
            loader = graph(rank, 2)
            loader.load_state_dict(state)
            seen += list(loader)
        counts = Counter(itertools.chain(*seen))
        assert set(counts) == set(range(size))
        assert counts.total() == size + 1
