import itertools
import pickle
import random
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reuseloader.order import IndexEpoch, Pass, SampleOrder
from reuseloader.policy import ReusePolicy

LIFETIMES = [1, 2, 3, 4, 5, 7, 8, 16, 17, 100, 1000]
POLICIES = [
    *(ReusePolicy(lifetime, seed=lifetime) for lifetime in LIFETIMES),
    ReusePolicy(3, seed=-1, balanced=False),
]
POWERS = sorted({2**k + d for k in range(18) for d in (-1, 0, 1)} - {0})
BIG = [10**9, 10**12, 2**32 - 1, 2**32 + 1, 2**62 + 1, 2**63 - 1]
policies = pytest.mark.parametrize("policy", POLICIES, ids=str)


def whole(policy, epoch, size):
    return policy.order(np.arange(size), epoch, size)


def pairs(order, epoch, start=0):
    return Pass(order, start).begin(epoch)


def sample_order(policy, size, *, shuffle=True):
    return SampleOrder(size, policy.seed, policy.lifetime, policy.balanced, shuffle)


def check_balanced(indices, lifetime):
    """Hold an order against the definition of balanced, in plain Python."""
    size = len(indices)
    cut = size - size % lifetime
    classes = [index % lifetime for index in indices]
    for start in range(0, cut, lifetime):
        assert sorted(classes[start : start + lifetime]) == list(range(lifetime))
    assert sorted(classes[cut:]) == list(range(size % lifetime))


@policies
def test_every_small_size_is_permuted(policy):
    """For every size from 1 to 300 the order is a bijection of range(size)."""
    for size in range(1, 301):
        order = whole(policy, size % 3, size)
        assert np.array_equal(np.sort(order), np.arange(size))


@policies
def test_sizes_around_powers_of_two_are_permuted(policy):
    """For sizes 2**k - 1, 2**k, 2**k + 1 up to 2**17 + 1 the order is a bijection."""
    for size in POWERS:
        assert (np.bincount(whole(policy, 2, size), minlength=size) == 1).all()


@given(
    size=st.integers(1, 500),
    lifetime=st.integers(1, 600),
    seed=st.integers(),
    epoch=st.integers(0, 2**63 - 1),
    balanced=st.booleans(),
)
def test_any_seed_and_epoch_give_a_permutation(size, lifetime, seed, epoch, balanced):
    """For any seed, epoch, size and lifetime the order is a bijection, balanced if asked for."""
    order = whole(ReusePolicy(lifetime, seed, balanced=balanced), epoch, size).tolist()
    assert sorted(order) == list(range(size))
    if balanced:
        check_balanced(order, lifetime)


@policies
@pytest.mark.parametrize("size", BIG)
def test_huge_sizes_have_random_access(policy, size):
    """Any of 10**12 or more positions can be had: distinct, in range, the same as int and array."""
    rng = random.Random(size)
    at = {*range(3000), *range(size - 3000, size), *(rng.randrange(size) for _ in range(3000))}
    positions = np.array(sorted(at))
    indices = policy.order(positions, 5, size)
    assert indices.min() >= 0
    assert indices.max() < size
    assert len(np.unique(indices)) == len(positions)
    some = slice(None, None, 997)
    assert [policy.order(p, 5, size) for p in positions[some].tolist()] == indices[some].tolist()


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 100, 1001, 65537])
@policies
def test_int_and_array_agree_in_any_grouping(policy, size):
    """One position gives a plain int, equal to that of the whole order and of any part of it."""
    order = whole(policy, 1, size)
    for position in {0, size // 2, size - 1}:
        index = policy.order(position, 1, size)
        assert type(index) is int
        assert index == order[position]
    shuffled = np.random.default_rng(size).permutation(size)
    assert np.array_equal(policy.order(shuffled, 1, size), order[shuffled])
    assert np.array_equal(policy.order(shuffled[:7], 1, size), order[shuffled[:7]])
    assert np.array_equal(policy.order(np.array([0, 0]), 1, size), order[[0, 0]])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
@pytest.mark.parametrize("shape", [(0,), (6,), (2, 3), (3, 1, 2), (2, 0), (1,)])
def test_any_integer_dtype_and_shape(dtype, shape):
    """The result is int64 in native byte order and has the shape of the positions."""
    policy = ReusePolicy(3)
    positions = np.arange(np.prod(shape)).reshape(shape)
    indices = policy.order(positions.astype(dtype), 1, 100)
    assert indices.dtype == np.dtype("int64")
    assert indices.dtype.isnative
    assert indices.shape == shape
    assert np.array_equal(indices, whole(policy, 1, 100)[positions])


def test_strided_and_read_only_positions_are_left_alone():
    """Views and read-only arrays are positions too, and nothing is written to them."""
    policy = ReusePolicy(4)
    positions = np.arange(100)
    positions.flags.writeable = False
    for view in (positions[::-3], positions.reshape(10, 10).T, np.asfortranarray(positions)):
        assert np.array_equal(policy.order(view, 2, 100), whole(policy, 2, 100)[view])
    assert np.array_equal(positions, np.arange(100))
    zero_dimensional = policy.order(np.array(7), 2, 100)
    assert zero_dimensional.shape == ()
    assert zero_dimensional == policy.order(7, 2, 100)


@pytest.mark.parametrize("position", [np.int64(7), np.uint8(7), torch.tensor(7)])
def test_any_integer_type_is_a_position(position):
    """NumPy and torch integers are positions like plain ints and give plain ints."""
    index = ReusePolicy(3).order(position, np.int64(1), torch.tensor(10))
    assert index == ReusePolicy(3).order(7, 1, 10)
    assert type(index) is int


@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 17, 40, 99, 100, 101, 999, 1000, 2345])
def test_blocks_hold_each_phase_once_and_the_tail_the_first_ones(lifetime, size):
    """Each full block has one index of each phase class, the tail one of each of the first."""
    for epoch in range(3):
        check_balanced(whole(ReusePolicy(lifetime, 9), epoch, size).tolist(), lifetime)


@pytest.mark.parametrize("lifetime", [1, 2, 3, 4, 5, 7, 8, 16, 17, 100])
def test_each_block_builds_exactly_one_sample(lifetime):
    """In every epoch but the first, a block of L positions begins exactly one generation."""
    policy = ReusePolicy(lifetime, seed=3)
    size = 12 * lifetime + lifetime // 2
    for epoch in range(1, min(2 * lifetime, 20) + 1):
        indices = whole(policy, epoch, size).tolist()
        built = [policy.key(index, epoch).first_epoch == epoch for index in indices]
        for start in range(0, 12 * lifetime, lifetime):
            assert sum(built[start : start + lifetime]) == 1
        assert sum(built[12 * lifetime :]) <= 1
        assert sum(built) == policy.builds(epoch, size)


def test_lifetime_beyond_size_is_a_permutation_all_the_same():
    """A lifetime longer than the data leaves one tail, which is shuffled anew at every epoch."""
    for lifetime in (11, 1000, 10**9, 2**63 - 1):
        orders = {tuple(whole(ReusePolicy(lifetime), epoch, 10).tolist()) for epoch in range(50)}
        assert len(orders) == 50
        assert all(sorted(order) == list(range(10)) for order in orders)


def test_with_lifetime_one_balanced_means_nothing():
    """With a single phase class the balanced order is the plain permutation."""
    plain, balanced = ReusePolicy(1, 5, balanced=False), ReusePolicy(1, 5)
    assert np.array_equal(whole(plain, 3, 1000), whole(balanced, 3, 1000))


def test_epochs_and_seeds_have_orders_of_their_own():
    """Another epoch or seed, however near or far, gives another order."""
    orders = {
        tuple(whole(ReusePolicy(4, seed), epoch, 100).tolist())
        for seed in (0, 1, -1, 2**63, 2**64)
        for epoch in (0, 1, 2**32, 2**63 - 1)
    }
    assert len(orders) == 5 * 4


@pytest.mark.parametrize("position", [-1, 10, 2**62, np.array([0, 10]), np.array([-1, 3])])
def test_position_out_of_range_is_an_index_error(position):
    """A position outside range(size), alone or in an array, is an IndexError with the range."""
    for policy in (ReusePolicy(3), ReusePolicy(3, balanced=False)):
        with pytest.raises(IndexError, match=r"position must be in range\(10\), got "):
            policy.order(position, 0, 10)


@pytest.mark.parametrize(
    "position",
    [
        1.0,
        True,
        "1",
        None,
        [1, 2],
        np.array([1.0]),
        np.array([], dtype=float),
        np.array([True]),
        np.array(["1"]),
        np.array([1], dtype=object),
    ],
    ids=repr,
)
def test_only_integers_are_positions(position):
    """Floats, bools, strings and lists are a TypeError that names the argument."""
    with pytest.raises(TypeError, match=r"^position must be an int"):
        ReusePolicy(3).order(position, 0, 10)


@pytest.mark.parametrize(
    ("epoch", "size", "error", "text"),
    [
        (-1, 10, ValueError, "^epoch must be .*, got -1$"),
        (2**63, 10, ValueError, f"^epoch must be .*, got {2**63}$"),
        (1.0, 10, TypeError, "^epoch must be an int, got 1.0$"),
        (True, 10, TypeError, "^epoch must be an int, got True$"),
        (0, 0, ValueError, "^size must be .*, got 0$"),
        (0, -1, ValueError, "^size must be .*, got -1$"),
        (0, 2**63, ValueError, f"^size must be .*, got {2**63}$"),
        (0, 10.0, TypeError, "^size must be an int, got 10.0$"),
        (0, None, TypeError, "^size must be an int, got None$"),
    ],
)
def test_bad_epoch_or_size_is_named_and_shown(epoch, size, error, text):
    """The message names the argument, states the rule and shows the value."""
    for position in (0, np.array([0])):
        with pytest.raises(error, match=text):
            ReusePolicy(3).order(position, epoch, size)


@pytest.mark.parametrize("size", [1, 2, 17, 8192, 20001])
@policies
def test_pairs_are_the_order_of_the_policy_from_any_start(policy, size):
    """The sequence of pairs from any start on is the policy's order from that position on."""
    order = sample_order(policy, size)
    expected = whole(policy, 4, size).tolist()
    for start in {0, 1, size // 2, size - 1, size, min(size, 8191), min(size, 8193)}:
        assert list(pairs(order, 4, start)) == [(index, 4) for index in expected[start:]]


def test_pairs_start_anywhere_in_a_small_pass():
    """Every start from 0 to the size gives exactly the rest of the pass."""
    policy = ReusePolicy(4, 2)
    expected = [(index, 6) for index in whole(policy, 6, 50).tolist()]
    for start in range(51):
        assert list(pairs(sample_order(policy, 50), 6, start)) == expected[start:]


def test_pairs_are_index_epochs_of_plain_ints():
    """Each pair is an IndexEpoch with named fields, plain ints, hashable and picklable."""
    for pair in pairs(sample_order(ReusePolicy(3), 20), 2):
        assert type(pair) is IndexEpoch
        assert type(pair.index) is type(pair.epoch) is int
        assert pair == IndexEpoch(pair.index, 2)
        twin = pickle.loads(pickle.dumps(pair))
        assert twin == pair
        assert type(twin) is IndexEpoch
        assert hash(twin) == hash(pair)


@policies
def test_without_shuffle_the_indices_come_in_their_own_order(policy):
    """shuffle=False gives 0, 1, 2, ... in every epoch."""
    order = sample_order(policy, 9000, shuffle=False)
    assert list(pairs(order, 3)) == [(index, 3) for index in range(9000)]
    assert list(pairs(order, 0, 8995)) == [(index, 0) for index in range(8995, 9000)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("balanced", [True, False])
def test_a_billion_samples_start_at_once_in_flat_memory(shuffle, balanced):
    """20000 pairs of a pass of 10**9 take below 4 MB, wherever the pass is entered."""
    order = SampleOrder(10**9, seed=1, lifetime=4, balanced=balanced, shuffle=shuffle)
    next(pairs(order, 1))  # what is loaded or cached once does not count
    tracemalloc.start()
    try:
        for start in (0, 10**9 - 20000):
            seen = sum(1 for _ in itertools.islice(pairs(order, 1, start), 20000))
            assert seen == 20000
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_passes_side_by_side_do_not_mix():
    """Two passes of one order, advanced in turn, each give their own epoch's pairs."""
    order = sample_order(ReusePolicy(2, 8), 100)
    turns = list(zip(pairs(order, 0), pairs(order, 1), strict=True))
    assert [first for first, _ in turns] == list(pairs(order, 0))
    assert [second for _, second in turns] == list(pairs(order, 1))
