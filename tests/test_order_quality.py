"""Whether the orders are as good as drawn ones, by statistics whose null distribution is known.

All seeds are fixed, so a test passes or fails always. A limit of |z| < 4.5 is passed by a truly
random order with probability 1 - 7e-6, and p > 1e-5 with 1 - 1e-5.
"""

from functools import cache
from itertools import product
from math import factorial, isqrt

import numpy as np
import pytest
from scipy import stats

from reuseloader.policy import ReusePolicy

Z = 4.5
P = 1e-5
EPOCHS = {5: 20000, 17: 15000, 25: 25000, 64: 10000, 1000: 3000, 65537: 150}
sizes = pytest.mark.parametrize("size", EPOCHS)


def orders(policy, size, epochs):
    """The orders of the epochs 0, 1, 2, ..., one a row."""
    positions = np.arange(size)
    return np.stack([policy.order(positions, e, size).astype(np.int32) for e in range(epochs)])


@cache
def plain(size):
    return orders(ReusePolicy(1, seed=11, balanced=False), size, EPOCHS[size])


def z_of_mean(values, mean):
    """The mean of independent values against an expected one, in standard errors."""
    return (np.mean(values) - mean) / (np.std(values) / len(values) ** 0.5)


def z_of_variance(values, variance):
    """The variance of independent values against an expected one, in standard errors."""
    squares = (values - np.mean(values)) ** 2
    return z_of_mean(squares, variance)


def z_of_difference(values, others):
    """The means of two independent sets of values against each other, in standard errors."""
    error = np.var(values) / len(values) + np.var(others) / len(others)
    return (np.mean(values) - np.mean(others)) / error**0.5


def z_of_variances(values, others):
    """The variances of two independent sets of values against each other, in standard errors."""
    return z_of_difference((values - np.mean(values)) ** 2, (others - np.mean(others)) ** 2)


def p_of_even_counts(values, kinds):
    """The chi-square probability of the counts of ``values``, even over range(kinds)."""
    counts = np.bincount(values, minlength=kinds)
    assert len(counts) == kinds
    return stats.chisquare(counts).pvalue


def codes(rows):
    """Each row as the number of its kind; the count of kinds."""
    width = rows.shape[1]
    kinds, code = np.unique(rows @ width ** np.arange(width), return_inverse=True)
    return code, len(kinds)


def steps(rows, lag=1, step=1):
    """In each row, how many places hold the index of ``lag`` places before, plus ``step``."""
    return (rows[:, lag:] - rows[:, :-lag] == step).sum(axis=1)


# ------------------------------------------------ the plain order against a uniform shuffle


@sizes
@pytest.mark.parametrize("step", [1, -1])
def test_successor_pairs_are_as_many_as_in_a_uniform_shuffle(size, step):
    """How often i is followed by i + 1 (or i - 1) has the mean and variance of a uniform shuffle.

    Null: k given pairs hold together with probability (n - k)! / n!, so the mean is (n - 1) / n
    and the second factorial moment (n - 2) / n: nearly Poisson(1).
    """
    pairs = steps(plain(size), step=step)
    mean = (size - 1) / size
    assert abs(z_of_mean(pairs, mean)) < Z
    assert abs(z_of_variance(pairs, (size - 2) / size + mean - mean**2)) < Z


@sizes
def test_no_distance_of_indices_is_favoured(size):
    """An index k later stands j places later as often as in a uniform shuffle.

    j and k are also the side of the Feistel network's rectangle. Null: the mean is
    (n - j) (n - k) / (n (n - 1)).
    """
    side = -(-size // (isqrt(size - 1) + 1))
    for lag, step in product({1, 2, side}, {2, side, side + 1}):
        mean = (size - lag) * (size - step) / (size * (size - 1))
        for sign in (1, -1):
            assert abs(z_of_mean(steps(plain(size), lag, sign * step), mean)) < Z


@sizes
def test_fixed_points_are_as_many_as_in_a_uniform_shuffle(size):
    """How many indices stand at their own place has mean 1 and variance 1, exactly in the null."""
    fixed = (plain(size) == np.arange(size)).sum(axis=1)
    assert abs(z_of_mean(fixed, 1)) < Z
    assert abs(z_of_variance(fixed, 1)) < Z


@pytest.mark.parametrize("size", [5, 17, 25, 64])
def test_every_index_comes_to_every_place_evenly(size):
    """The table of index by place is even.

    Null: the counts of N random permutation matrices have covariance N / (n - 1) times a
    projection of rank (n - 1)**2, so their squared deviations times (n - 1) / N are chi-square.
    """
    rows = plain(size)
    table = np.stack([np.bincount(column, minlength=size) for column in rows.T])
    squares = ((table - len(rows) / size) ** 2).sum() * (size - 1) / len(rows)
    assert P < stats.chi2.sf(squares, (size - 1) ** 2) < 1 - P


@sizes
@pytest.mark.parametrize("later", [1, 2])
def test_an_epoch_says_nothing_about_a_later_one(size, later):
    """Places that agree between epochs, and the correlation of places, are those of chance.

    Null: agreeing places have mean and variance 1; the correlation of two uniform permutations
    has mean 0 and variance 1 / (n - 1), and is uncorrelated from pair to pair of epochs.
    """
    rows = plain(size)
    before, after = rows[:-later], rows[later:]
    same = (before == after).sum(axis=1)
    assert abs(z_of_mean(same, 1)) < Z
    assert abs(z_of_variance(same, 1)) < Z
    centre, variance = (size - 1) / 2, (size**2 - 1) / 12
    correlation = ((before - centre) * (after - centre)).mean(axis=1) / variance
    assert abs(correlation.sum()) * ((size - 1) / len(before)) ** 0.5 < Z
    assert abs(z_of_variance(correlation, 1 / (size - 1))) < Z


@pytest.mark.parametrize(
    ("size", "epochs"), [(2, 5000), (3, 5000), (4, 20000), (5, 12000), (6, 21600)]
)
def test_all_orders_of_a_few_are_equally_likely(size, epochs):
    """All n! orders come equally often, by chi-square with n! - 1 degrees of freedom."""
    code, kinds = codes(orders(ReusePolicy(1, seed=1, balanced=False), size, epochs))
    assert kinds == factorial(size)
    assert p_of_even_counts(code, kinds) > P


def test_successive_orders_of_four_are_independent():
    """All 576 pairs of orders of successive epochs come equally often, by chi-square."""
    code, kinds = codes(orders(ReusePolicy(1, seed=1, balanced=False), 4, 20000))
    assert p_of_even_counts(code[:-1] * kinds + code[1:], kinds**2) > P


@pytest.mark.parametrize("policy", [(1, False), (2, True), (4, True)], ids=str)
def test_neighbouring_seeds_and_epochs_share_nothing(policy):
    """Orders of 40 neighbouring seeds and 30 epochs agree in as many places as chance lets them.

    Null: two orders agree in 1 place on average with variance nearly 1 (that of a balanced pair is
    a little larger), and pairs are uncorrelated: 100000 pairs tell a mean 1.4 % off from 1.
    """
    lifetime, balanced = policy
    seeds, epochs, size = range(-8, 32), 30, 1000
    rows = np.stack(
        [orders(ReusePolicy(lifetime, s, balanced=balanced), size, epochs) for s in seeds]
    ).astype(np.int16)
    flat = rows.reshape(-1, size)
    assert len({row.tobytes() for row in flat}) == len(flat)
    same = np.concatenate([(flat[k:] == flat[:-k]).sum(axis=1) for k in range(1, len(flat), 7)])
    assert abs(z_of_mean(same, 1)) < Z
    assert same.max() <= 11  # Poisson(1) exceeds 11 once in 1.2e9 pairs
    for seed, epoch in product((1, 2, 8), (-4, -2, -1, 0, 1, 2, 4)):
        here = rows[seed:, max(0, epoch) : epochs + min(0, epoch)]
        there = rows[:-seed, max(0, -epoch) : epochs - max(0, epoch)]
        assert abs(z_of_mean((here == there).sum(axis=2).ravel(), 1)) < Z


# --------------------------------- the balanced order against an ideally drawn balanced shuffle


def ideal(rng, size, lifetime, epochs):
    """Balanced orders drawn as they should be, one a row."""
    blocks, rest = divmod(size, lifetime)
    rows = np.empty((epochs, size), dtype=np.int64)
    for row in rows:
        members = [rng.permutation(blocks + (c < rest)) for c in range(lifetime)]
        classes = [rng.permutation(lifetime) for _ in range(blocks)] + [rng.permutation(rest)]
        row[:] = [members[c][j] * lifetime + c for j, block in enumerate(classes) for c in block]
    return rows


@pytest.mark.parametrize("lifetime", [2, 3, 4, 5, 8])
def test_balanced_has_one_and_one_lth_successor_pairs(lifetime):
    """The mean number of successor pairs is 1 + 1 / L.

    Null: with m blocks it is (L - 1) / L + (m - 1) / (m L) inside the blocks and
    (m - 1) ((L - 1) / (L L m) + (m - 1) / (L L m m)) across their bounds.
    """
    blocks, size = 500, 500 * lifetime
    inside = (lifetime - 1) / lifetime + (blocks - 1) / (blocks * lifetime)
    across = (blocks - 1) * ((lifetime - 1) * blocks + blocks - 1) / (lifetime * blocks) ** 2
    assert inside + across == pytest.approx(1 + 1 / lifetime, abs=2 / blocks)
    pairs = steps(orders(ReusePolicy(lifetime, seed=9), size, 1500))
    assert abs(z_of_mean(pairs, inside + across)) < Z


@pytest.mark.parametrize(
    ("lifetime", "size"), [(2, 51), (3, 50), (4, 103), (5, 23), (8, 90), (20, 107), (60, 50)]
)
def test_balanced_is_like_an_ideally_drawn_one(lifetime, size):
    """Successor pairs, fixed points and agreement of epochs have the ideal means and variances.

    Null: both samples have one law; the differences of their means and of their variances, in
    standard errors, are standard normal.
    """
    drawn = ideal(np.random.default_rng(size), size, lifetime, 1500)
    made = orders(ReusePolicy(lifetime, seed=9), size, 2500)
    distance = lifetime if lifetime < size else 2
    for count in (
        steps,
        lambda rows: steps(rows, step=-1),
        lambda rows: steps(rows, distance, distance),
        lambda rows: (rows == np.arange(size)).sum(axis=1),
        lambda rows: (rows[1:] == rows[:-1]).sum(axis=1),
    ):
        assert abs(z_of_difference(count(made), count(drawn))) < Z
        assert abs(z_of_variances(count(made), count(drawn))) < Z


@pytest.mark.parametrize(
    ("lifetime", "size", "kinds"), [(2, 4, 16), (2, 5, 48), (2, 6, 288), (3, 6, 288), (4, 5, 48)]
)
def test_all_balanced_orders_of_a_few_are_equally_likely(lifetime, size, kinds):
    """Every order that the definition of balanced allows comes equally often, by chi-square."""
    code, seen = codes(orders(ReusePolicy(lifetime, seed=3), size, 30 * kinds + 2000))
    assert seen == kinds
    assert p_of_even_counts(code, kinds) > P


@pytest.mark.parametrize(("lifetime", "blocks"), [(2, 50000), (3, 50000), (4, 50000), (5, 150000)])
def test_class_orders_of_blocks_are_uniform_and_independent(lifetime, blocks):
    """In one epoch all L! orders of classes come equally often, whatever the block before had.

    Null: chi-square over the L! orders, and over all pairs of orders of blocks 1 to 8 apart.
    """
    size = blocks * lifetime
    indices = ReusePolicy(lifetime, seed=5).order(np.arange(size), 7, size)
    code, kinds = codes((indices % lifetime).reshape(blocks, lifetime))
    assert kinds == factorial(lifetime)
    assert p_of_even_counts(code, kinds) > P
    for apart in (1, 2, 3, 4, 8):
        assert p_of_even_counts(code[:-apart] * kinds + code[apart:], kinds**2) > P


@pytest.mark.parametrize("lifetime", [2, 3, 4])
def test_class_orders_of_a_block_are_independent_from_epoch_to_epoch(lifetime):
    """All pairs of class orders of one block in successive epochs come equally often."""
    size = lifetime * 4000
    rows = [ReusePolicy(lifetime, seed=5).order(np.arange(size), e, size) for e in range(9)]
    code, kinds = codes((np.concatenate(rows) % lifetime).reshape(-1, lifetime))
    assert p_of_even_counts(code[:-4000] * kinds + code[4000:], kinds**2) > P


@pytest.mark.parametrize("lifetime", [17, 20, 32, 50, 100])
def test_class_orders_of_long_blocks_are_like_a_uniform_shuffle(lifetime):
    """In blocks of many classes, c is followed by c + 1 as often as in a uniform shuffle.

    Null: mean (L - 1) / L as for the plain order; 80000 blocks tell 1.6 % from it.
    """
    size = lifetime * 80000
    indices = ReusePolicy(lifetime, seed=5).order(np.arange(size), 7, size)
    classes = (indices % lifetime).reshape(-1, lifetime)
    assert abs(z_of_mean(steps(classes), (lifetime - 1) / lifetime)) < Z
    assert abs(z_of_mean((classes == np.arange(lifetime)).sum(axis=1), 1)) < Z


@pytest.mark.parametrize("members", [3, 4, 5, 17, 25, 49, 100])
def test_each_class_is_permuted_within_itself_like_a_uniform_shuffle(members):
    """The members of 2000 classes come in orders like uniform shuffles, independent of each other.

    Null: as for the plain order; at 3 to 5 members chi-square over all orders, and over all pairs
    of orders of neighbouring classes.
    """
    lifetime, epochs = 2000, 40
    found = []
    for epoch in range(epochs):
        size = lifetime * members
        indices = ReusePolicy(lifetime, seed=6).order(np.arange(size), epoch, size)
        by_class = np.argsort(indices.reshape(members, lifetime) % lifetime, axis=1)
        found.append(np.take_along_axis(indices.reshape(members, lifetime), by_class, axis=1).T)
    rows = np.concatenate(found) // lifetime
    assert abs(z_of_mean(steps(rows), (members - 1) / members)) < Z
    assert abs(z_of_mean(steps(rows, step=-1), (members - 1) / members)) < Z
    assert abs(z_of_mean((rows[1:] == rows[:-1]).sum(axis=1), 1)) < Z
    if members <= 5:
        code, kinds = codes(rows)
        assert kinds == factorial(members)
        assert p_of_even_counts(code, kinds) > P
        if members < 5:
            assert p_of_even_counts(code[:-1] * kinds + code[1:], kinds**2) > P


def test_the_tail_is_drawn_like_everything_else():
    """The classes in the tail come in every order, and every member comes there, evenly.

    Null: chi-square over the 24 orders of 4 classes, and over the 8 members of each class.
    """
    lifetime, size = 5, 39
    positions = np.arange(35, 39)
    policy = ReusePolicy(lifetime, seed=4)
    rows = np.stack([policy.order(positions, epoch, size) for epoch in range(8000)])
    code, kinds = codes(rows % lifetime)
    assert kinds == 24
    assert p_of_even_counts(code, kinds) > P
    for c in range(4):
        assert p_of_even_counts(rows[rows % lifetime == c] // lifetime, 8) > P
