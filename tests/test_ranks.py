"""What several ranks draw: lengths, union, builds per rank and step, against the closed form."""

import itertools
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from helpers import DictStore, due
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from reuseloader import IndexEpoch, ReuseDataLoader, ReusePolicy, ReuseSampler, nodes

WORLD_SIZES = [1, 2, 3, 4, 8]
LIFETIMES = [1, 2, 3, 4, 5]
SIZES = [0, 1, 2, 3, 7, 8, 24, 31, 40, 59, 60, 61, 97]
EPOCHS = [0, 1, 2, 7]
ORDERS = [
    pytest.param({"shuffle": True}, id="shuffled"),
    pytest.param({"shuffle": False}, id="unshuffled"),
]
worlds = pytest.mark.parametrize("world_size", WORLD_SIZES)
lifetimes = pytest.mark.parametrize("lifetime", [*LIFETIMES, 100])
orders = pytest.mark.parametrize("options", ORDERS)


def drawn(size, policy, world_size, epoch=1, **options):
    """The indices of one pass, a list for each rank."""
    passes = []
    for rank in range(world_size):
        sampler = ReuseSampler(
            size, policy, start_epoch=epoch, rank=rank, world_size=world_size, **options
        )
        pairs = list(sampler)
        assert len(pairs) == len(sampler)
        assert all(pair.epoch == epoch for pair in pairs)
        passes.append([pair.index for pair in pairs])
    return passes


def dealt(passes, size):
    """The same without padding: the ranks that got one index less repeat one at their end."""
    short = -size % len(passes)
    whole = passes[: len(passes) - short]
    return [*whole, *(indices[:-1] for indices in passes[len(passes) - short :])]


def whole_order(size, policy, epoch, shuffle):
    """The indices of one pass of a single rank."""
    return policy.order(np.arange(size), epoch, size).tolist() if shuffle and size else range(size)


chain = itertools.chain.from_iterable


def builds(indices, policy, epoch):
    return len(set(due(policy, epoch, max(indices, default=0) + 1)) & set(indices))


def assert_spread(passes, policy, epoch, size, stepwise=True):
    """Every rank builds the same number within one, and one in each of its whole blocks."""
    numbers = [builds(indices, policy, epoch) for indices in passes]
    assert max(numbers) - min(numbers) <= 1
    assert sum(numbers) == policy.builds(epoch, size)
    if stepwise and epoch > 0:
        lifetime = policy.lifetime
        for indices in passes:
            for step in range(0, size // lifetime // len(passes) * lifetime, lifetime):
                assert builds(indices[step : step + lifetime], policy, epoch) == 1


# --- a shared store -------------------------------------------------------------------------------


@worlds
@lifetimes
@orders
def test_shared_ranks_share_one_order_out(options, lifetime, world_size):
    """All yield equally many; together every index once; what is missing repeats the first ones."""
    policy = ReusePolicy(lifetime, 5)
    for size, epoch in itertools.product(SIZES, EPOCHS):
        passes = drawn(size, policy, world_size, epoch, **options)
        assert {len(indices) for indices in passes} == {-(-size // world_size)}
        shares = dealt(passes, size)
        assert sorted(chain(shares)) == list(range(size))
        if size:
            in_rounds = size >= lifetime * world_size
            order = (
                whole_order(size, policy, epoch, **options) if in_rounds else list(chain(shares))
            )
            short = -size % world_size
            repeated = [indices[-1] for indices in passes[world_size - short :]]
            assert repeated == [order[number % size] for number in range(short)]
            assert_spread(shares, policy, epoch, size)


@worlds
@lifetimes
@orders
def test_shared_ranks_take_whole_blocks_in_turn(options, lifetime, world_size):
    """Block j of the order of a single rank goes to rank j % world_size, in every whole round."""
    policy = ReusePolicy(lifetime, 6)
    for size, epoch in itertools.product(SIZES, EPOCHS):
        order = list(whole_order(size, policy, epoch, **options))
        rounds = size // lifetime // world_size
        passes = drawn(size, policy, world_size, epoch, **options)
        for block in range(rounds * world_size):
            turn, rank = divmod(block, world_size)
            mine = passes[rank][turn * lifetime : (turn + 1) * lifetime]
            assert mine == order[block * lifetime : (block + 1) * lifetime]


@worlds
@lifetimes
@pytest.mark.parametrize("placement", ["shared", "local"])
@orders
def test_drop_last_repeats_nothing(options, placement, lifetime, world_size):
    """With drop_last all yield the same smaller number, none twice, builds as evenly spread."""
    policy = ReusePolicy(lifetime, 5)
    for size, epoch in itertools.product(SIZES, EPOCHS):
        passes = drawn(
            size, policy, world_size, epoch, placement=placement, drop_last=True, **options
        )
        assert {len(indices) for indices in passes} == {size // world_size}
        together = Counter(chain(passes))
        assert set(together) <= set(range(size))
        assert set(together.values()) <= {1}
        numbers = [builds(indices, policy, epoch) for indices in passes]
        assert max(numbers) - min(numbers) <= 1


@worlds
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_plain_orders_are_dealt_one_by_one(lifetime, drop_last, world_size):
    """A plain permutation has no blocks: it is dealt as DistributedSampler deals its own."""
    policy = ReusePolicy(lifetime, 7, balanced=False)
    for size in SIZES[1:]:
        order = whole_order(size, policy, 3, shuffle=True)
        for rank, mine in enumerate(drawn(size, policy, world_size, 3, drop_last=drop_last)):
            theirs = DistributedSampler(order, world_size, rank, shuffle=False, drop_last=drop_last)
            assert mine == [order[position] for position in theirs]


def test_strided_sharding_is_what_blocks_avoid():
    """Dealt one by one, lifetime 2 on 2 ranks lets one rank build all; dealt in blocks, half."""
    policy, size, epoch = ReusePolicy(2), 40, 1
    strided = [list(DistributedSampler(range(size), 2, rank, shuffle=False)) for rank in (0, 1)]
    assert [builds(indices, policy, epoch) for indices in strided] == [0, 20]
    for options in ({"shuffle": True}, {"shuffle": False}):
        passes = drawn(size, policy, 2, epoch, **options)
        assert [builds(indices, policy, epoch) for indices in passes] == [10, 10]


# --- stores of their own --------------------------------------------------------------------------


@worlds
@lifetimes
@pytest.mark.parametrize("balanced", [True, False])
@orders
def test_local_ranks_own_a_fixed_part(options, balanced, lifetime, world_size):
    """Each rank yields its own indices in every epoch; what is missing repeats one of its own."""
    policy = ReusePolicy(lifetime, 5, balanced=balanced)
    for size in SIZES:
        owned = None
        for epoch in EPOCHS:
            passes = drawn(size, policy, world_size, epoch, placement="local", **options)
            assert {len(indices) for indices in passes} == {-(-size // world_size)}
            shares = dealt(passes, size)
            assert sorted(chain(shares)) == list(range(size))
            for mine, share in zip(passes, shares, strict=True):
                assert set(mine) == set(share) or not share
                assert mine == share or not share or mine[-1] == share[0]
                if not options["shuffle"]:
                    assert share == sorted(share)
            owned = owned or [set(share) for share in shares]
            assert [set(share) for share in shares] == owned
            stepwise = balanced or not options["shuffle"]
            assert_spread(shares, policy, epoch, size, stepwise)


def test_local_ranks_own_whole_blocks():
    """Rank r owns block j of ``lifetime`` consecutive indices if j % world_size == r."""
    passes = drawn(24, ReusePolicy(3), 4, placement="local")
    for rank, indices in enumerate(passes):
        blocks = [*range(rank * 3, rank * 3 + 3), *range(12 + rank * 3, 12 + rank * 3 + 3)]
        assert sorted(indices) == blocks


def test_local_orders_differ_between_epochs_and_ranks():
    """Each rank shuffles by itself, anew in every epoch."""
    policy = ReusePolicy(4)
    orders = []
    for epoch in range(3):
        passes = drawn(4 * 80, policy, 4, epoch, placement="local")
        for rank, indices in enumerate(passes):  # as places among the rank's own
            ranked = sorted(indices)
            orders.append(tuple(ranked.index(index) for index in indices))
            assert len(indices) == 80, rank
    assert len(set(orders)) == 12


@pytest.mark.parametrize("lifetime", [2, 4, 5])
def test_local_stores_keep_their_hits(lifetime):
    """In epochs 1 to 10 ranks with stores of their own hit (L-1)/L, without ownership 1/4 of it."""
    world_size, size = 4, 400
    rates = {}
    for placement in ("shared", "local"):
        built = Counter()

        def build(key, built=built):
            built[key.epoch] += 1
            return key.index

        for rank in range(world_size):
            loader = ReuseDataLoader(
                build,
                size,
                DictStore(),
                lifetime=lifetime,
                shuffle=True,
                batch_size=20,
                rank=rank,
                world_size=world_size,
                placement=placement,
            )
            before = built.total()
            for _ in range(11):
                for _ in loader:
                    pass
                if loader.epoch == 0:
                    first = built.total() - before
            rates[placement, rank] = 1 - (built.total() - before - first) / (10 * len(loader) * 20)
    for rank in range(world_size):
        assert rates["local", rank] == pytest.approx((lifetime - 1) / lifetime, abs=0.01)
        assert rates["shared", rank] < 0.45


# --- everything else ------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["shared", "local"])
@pytest.mark.parametrize("balanced", [True, False])
@orders
def test_one_rank_of_one_draws_the_whole_order(options, balanced, placement):
    """world_size=1 is the order of a sampler that knows of no ranks, whatever the placement."""
    policy = ReusePolicy(3, 5, balanced=balanced)
    for size in SIZES:
        one = list(ReuseSampler(size, policy, rank=0, world_size=1, placement=placement, **options))
        assert one == list(ReuseSampler(size, policy, placement=placement, **options))
        assert [i for i, _ in one] == list(whole_order(size, policy, 0, **options))


@pytest.mark.parametrize("placement", ["shared", "local"])
@pytest.mark.parametrize("drop_last", [True, False])
@orders
def test_the_node_draws_the_same(options, drop_last, placement):
    """nodes.ReuseSampler yields what the torch sampler of the same arguments yields."""
    for size, rank in itertools.product((1, 7, 40, 61), range(3)):
        arguments = {"rank": rank, "world_size": 3, "placement": placement, "drop_last": drop_last}
        sampler = ReuseSampler(size, ReusePolicy(4), **arguments, **options)
        node = nodes.ReuseSampler(size, ReusePolicy(4), **arguments, **options)
        for _ in range(3):
            node.reset()
            assert list(node) == list(sampler)


@settings(deadline=None)
@given(
    size=st.integers(0, 3000),
    lifetime=st.integers(1, 40),
    world_size=st.integers(1, 40),
    seed=st.integers(),
    epoch=st.integers(0, 2**40),
    shuffle=st.booleans(),
    placement=st.sampled_from(["shared", "local"]),
)
def test_any_share_is_fair(size, lifetime, world_size, seed, epoch, shuffle, placement):
    """Whatever the numbers: equal lengths, every index once but for padding, builds within one."""
    policy = ReusePolicy(lifetime, seed)
    options = {"shuffle": shuffle, "placement": placement}
    passes = drawn(size, policy, world_size, epoch, **options)
    assert {len(indices) for indices in passes} == {-(-size // world_size)}
    shares = dealt(passes, size)
    assert sorted(chain(shares)) == list(range(size))
    assert_spread(shares, policy, epoch, size)


@pytest.mark.parametrize("placement", ["shared", "local"])
@orders
def test_a_thousand_ranks_of_a_billion_samples(options, placement):
    """Passes of 1,024 ranks over 10**9 samples begin anywhere at once, in flat memory."""
    arguments = {"rank": 1000, "world_size": 1024, "placement": placement, **options}
    sampler = ReuseSampler(10**9, ReusePolicy(4), **arguments)
    next(iter(sampler))  # what is loaded or cached once does not count
    state, length = sampler.state_dict(), len(sampler)
    assert length == -(-(10**9) // 1024)
    tracemalloc.start()
    try:
        for position in (0, length // 2, length - 20_000):
            sampler.load_state_dict({**state, "position": position})
            assert len(list(itertools.islice(iter(sampler), 20_000))) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("placement", ["shared", "local"])
@pytest.mark.parametrize("size", [2**62 + 1, 2**63 - 1])
@pytest.mark.parametrize("lifetime", [1, 4, 2**61, 2**63 - 1])
@orders
def test_numbers_up_to_the_largest(options, lifetime, size, placement):
    """No product of size, lifetime and rank overflows: first and last pairs are in range, apart."""
    seen = []
    for rank in (0, 1, 6):
        arguments = {"rank": rank, "world_size": 7, "placement": placement, **options}
        sampler = ReuseSampler(size, ReusePolicy(lifetime), **arguments)
        state, length = sampler.state_dict(), -(-size // 7)
        for position in (0, length - 4):
            sampler.load_state_dict({**state, "position": position})
            pairs = list(itertools.islice(iter(sampler), 3))
            assert all(type(pair) is IndexEpoch and 0 <= pair.index < size for pair in pairs)
            seen += [pair.index for pair in pairs]
    assert len(set(seen)) == len(seen) == 18
