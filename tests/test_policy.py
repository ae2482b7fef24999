import copy
import dataclasses
import pickle
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reuseloader.key import ReuseKey
from reuseloader.policy import ReusePolicy

LIFETIMES = st.one_of(st.integers(1, 20), st.integers(1, 2**63 - 1))
COUNTS = st.one_of(st.integers(0, 50), st.integers(0, 2**62))
SEEDS = st.one_of(st.integers(-3, 3), st.integers(-(2**80), 2**80))
ODD_SEEDS = [0, -1, 1, 2**31, 2**32, 2**63, 2**64, -(2**64), 10**30]


def life(index, lifetime, epochs):
    """Live through the epochs one by one: (generation, use, first_epoch) of each."""
    generation, use, first_epoch = 0, index % lifetime, 0
    for epoch in range(epochs):
        if epoch > 0 and (epoch + index) % lifetime == 0:
            generation, use, first_epoch = generation + 1, 0, epoch
        yield generation, use, first_epoch
        use += 1


@given(index=st.integers(0, 100), lifetime=st.integers(1, 12), seed=SEEDS)
def test_key_is_what_living_epoch_by_epoch_gives(index, lifetime, seed):
    """generation, use and first_epoch follow from building anew where (epoch + index) % L == 0."""
    policy = ReusePolicy(lifetime, seed)
    for epoch, lived in enumerate(life(index, lifetime, 3 * lifetime + 2)):
        key = policy.key(index, epoch)
        assert (key.index, key.epoch) == (index, epoch)
        assert (key.generation, key.use, key.first_epoch) == lived


@given(index=COUNTS, epoch=COUNTS, lifetime=LIFETIMES, seed=SEEDS)
def test_key_is_the_closed_form(index, epoch, lifetime, seed):
    """Every field is a plain int and equals the documented formula, also for huge numbers."""
    key = ReusePolicy(lifetime, seed).key(index, epoch)
    phase = index % lifetime
    assert key.generation * lifetime + key.use == epoch + phase
    assert 0 <= key.use < lifetime
    assert key.first_epoch == max(0, key.generation * lifetime - phase) <= epoch
    assert 0 <= key.seed < 2**63
    assert 0 <= key.use_seed < 2**63
    assert all(type(value) is int for value in key)


@given(index=st.integers(0, 100), lifetime=st.integers(1, 12), seed=SEEDS)
def test_generations_begin_and_end_as_promised(index, lifetime, seed):
    """Generation 0 lives L - phase epochs, each later one L, with one seed and one first key."""
    policy = ReusePolicy(lifetime, seed)
    lives = {}
    for epoch in range(5 * lifetime - index % lifetime):
        key = policy.key(index, epoch)
        lives.setdefault(key.generation, []).append(key)
    assert [len(keys) for keys in lives.values()] == [lifetime - index % lifetime] + [lifetime] * 4
    for keys in lives.values():
        assert len({key.seed for key in keys}) == 1
        assert {key.first for key in keys} == {keys[0]}
        assert [policy.is_last_use(key) for key in keys] == [False] * (len(keys) - 1) + [True]
    assert len({keys[0].seed for keys in lives.values()}) == 5


@given(index=COUNTS, epoch=COUNTS, lifetime=LIFETIMES, seed=SEEDS)
def test_first_is_the_key_of_the_first_epoch(index, epoch, lifetime, seed):
    """The first key of any use is the policy's key at first_epoch, and is its own first."""
    policy = ReusePolicy(lifetime, seed)
    key = policy.key(index, epoch)
    assert key.first == policy.key(index, key.first_epoch)
    assert key.first.first == key.first
    assert type(key.first) is ReuseKey


@given(index=COUNTS, epoch=COUNTS, lifetime=LIFETIMES)
def test_last_use_is_the_one_before_a_new_generation(index, epoch, lifetime):
    """is_last_use says exactly that the next epoch has another generation."""
    policy = ReusePolicy(lifetime)
    key, following = policy.key(index, epoch), policy.key(index, epoch + 1)
    assert policy.is_last_use(key) == (key.generation != following.generation)


def test_use_seed_differs_at_every_use():
    """A thousand uses of one generation have a thousand use seeds, none the sample's seed."""
    keys = [ReusePolicy(1000, 7).key(0, epoch) for epoch in range(1000)]
    seeds = {key.use_seed for key in keys}
    assert len(seeds) == 1000
    assert keys[0].seed not in seeds
    assert keys[3].use_seed == ReusePolicy(1000, 7).key(0, 3).use_seed


@given(size=st.integers(0, 60), lifetime=st.integers(1, 70), epoch=st.integers(0, 150))
def test_builds_counts_the_new_generations(size, lifetime, epoch):
    """builds() is the number of indices whose generation begins in that epoch."""
    policy = ReusePolicy(lifetime)
    count = sum(policy.key(index, epoch).first_epoch == epoch for index in range(size))
    assert policy.builds(epoch, size) == count
    if epoch > 0:
        assert count == sum((epoch + index) % lifetime == 0 for index in range(size))


@given(size=COUNTS, lifetime=LIFETIMES, epoch=st.integers(0, 2**61))
def test_builds_of_consecutive_epochs_add_up(size, lifetime, epoch):
    """Over any lifetime epochs from the second on, every index is built exactly once."""
    policy = ReusePolicy(lifetime)
    assert policy.builds(0, size) == size
    if lifetime <= 20:
        assert sum(policy.builds(epoch + 1 + later, size) for later in range(lifetime)) == size
    else:
        assert policy.builds(epoch + 1, size) in (size // lifetime, -(-size // lifetime))


def test_a_huge_lifetime_is_a_static_cache():
    """With lifetime 10**9 a million epochs go by with one build per index and one seed."""
    policy = ReusePolicy(10**9)
    assert policy.builds(0, 1000) == 1000
    assert policy.builds(1, 1000) == policy.builds(10**6, 1000) == 0
    assert policy.key(5, 0).seed == policy.key(5, 10**6).seed


def test_lifetime_one_builds_everything_in_every_epoch():
    """With lifetime 1 every use is a first and last use with a seed of its own."""
    policy = ReusePolicy(1)
    keys = [policy.key(3, epoch) for epoch in range(50)]
    assert all(key.first is key and policy.is_last_use(key) for key in keys)
    assert len({key.seed for key in keys}) == 50
    assert policy.builds(7, 100) == 100


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("lifetime", 0, ValueError),
        ("lifetime", -1, ValueError),
        ("lifetime", 2**63, ValueError),
        ("lifetime", 1.5, TypeError),
        ("lifetime", 2.0, TypeError),
        ("lifetime", True, TypeError),
        ("lifetime", "3", TypeError),
        ("lifetime", None, TypeError),
        ("lifetime", np.bool_(True), TypeError),
        ("lifetime", torch.tensor(True), TypeError),
        ("lifetime", torch.tensor(3.0), TypeError),
        ("seed", True, TypeError),
        ("seed", 1.5, TypeError),
        ("seed", None, TypeError),
        ("seed", "0", TypeError),
        ("seed", np.float64(1), TypeError),
        ("balanced", 1, TypeError),
        ("balanced", None, TypeError),
        ("balanced", "yes", TypeError),
    ],
)
def test_a_bad_argument_is_named_and_shown(name, value, error):
    """The message names the argument, states the rule and shows the value."""
    rule = {"lifetime": "an int", "seed": "an int", "balanced": "a bool"}[name]
    arguments = {"lifetime": 3, name: value}
    with pytest.raises(error, match=f"^{name} must be {rule}.*, got {re.escape(repr(value))}$"):
        ReusePolicy(**arguments)


def test_balanced_is_keyword_only_and_lifetime_has_no_default():
    """A lifetime must be chosen, and balanced cannot be given by mistake as a third number."""
    with pytest.raises(TypeError, match="lifetime"):
        ReusePolicy()
    with pytest.raises(TypeError, match="positional"):
        ReusePolicy(3, 0, True)


@pytest.mark.parametrize(
    "three", [3, np.int64(3), np.uint8(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
)
def test_any_integer_type_is_an_int(three):
    """NumPy and torch integers make the same policy and the same keys as plain ints."""
    policy = ReusePolicy(three, three)
    assert policy == ReusePolicy(3, 3)
    assert type(policy.lifetime) is type(policy.seed) is int
    assert repr(policy) == "ReusePolicy(lifetime=3, seed=3, balanced=True)"
    key = policy.key(three, three)
    assert key == ReusePolicy(3, 3).key(3, 3)
    assert all(type(value) is int for value in key)
    assert policy.builds(three, three) == ReusePolicy(3, 3).builds(3, 3)
    assert policy.order(three, three, 7) == ReusePolicy(3, 3).order(3, 3, 7)


@pytest.mark.parametrize(
    ("index", "epoch", "text"),
    [
        (-1, 0, "index .*got -1"),
        (0, -1, "epoch .*got -1"),
        (np.int64(-7), 0, "index .*-7"),
    ],
)
def test_negative_index_or_epoch_is_a_value_error(index, epoch, text):
    """A key exists for no negative index and no negative epoch."""
    with pytest.raises(ValueError, match=text):
        ReusePolicy(3).key(index, epoch)


@pytest.mark.parametrize("value", [1.0, True, "1", None])
def test_only_ints_have_a_key(value):
    """An index or epoch that is no int is a TypeError that shows it."""
    with pytest.raises(TypeError, match=f"index must be an int, got {value!r}"):
        ReusePolicy(3).key(value, 0)
    with pytest.raises(TypeError, match=f"epoch must be an int, got {value!r}"):
        ReusePolicy(3).key(0, value)
    with pytest.raises(TypeError, match=f"epoch must be an int, got {value!r}"):
        ReusePolicy(3).builds(value, 10)
    with pytest.raises(TypeError, match=f"size must be an int, got {value!r}"):
        ReusePolicy(3).builds(0, value)


@pytest.mark.parametrize("seed", ODD_SEEDS)
def test_every_sample_seed_is_good_for_every_generator(seed):
    """Whatever int the policy's seed is, torch, NumPy and random all take the sample's seeds."""
    policy = ReusePolicy(3, seed)
    assert policy.seed == seed
    for index in range(20):
        for epoch in range(20):
            key = policy.key(index, epoch)
            for value in (key.seed, key.use_seed):
                assert 0 <= value < 2**63
                torch.Generator().manual_seed(value)
                np.random.default_rng(value)
                np.random.RandomState(value % 2**32)
                random.Random(value)


def test_unequal_policy_seeds_share_no_sample_seed():
    """No two of nine odd policy seeds have a sample seed in common, nor any two samples."""
    seeds = [
        ReusePolicy(2, seed).key(index, epoch).seed
        for seed in ODD_SEEDS
        for index in range(50)
        for epoch in range(0, 40, 2)
        if index % 2 == 0
    ]
    assert len(set(seeds)) == len(seeds) == 9 * 25 * 20


def test_a_hundred_thousand_keys_have_different_seeds():
    """All (index, generation) of 1000 indices and 100 generations differ in seed and use seed."""
    policy = ReusePolicy(1)
    keys = [policy.key(index, epoch) for index in range(1000) for epoch in range(100)]
    assert len({key.seed for key in keys} | {key.use_seed for key in keys}) == 2 * 10**5


def test_sample_seeds_look_drawn_at_random():
    """The 63 bits of neighbouring seeds are fair and independent of the next index and generation.

    Null: each count of ones, or of changes to a neighbour, is Binomial(N, 1/2) for N = 19600.
    The largest of 189 normal |z| exceeds 5 with probability 1e-4.
    """
    policy = ReusePolicy(1, 0)
    seeds = np.array([[policy.key(i, e).seed for e in range(141)] for i in range(141)])
    here = seeds[:-1, :-1]
    for words in (here, here ^ seeds[1:, :-1], here ^ seeds[:-1, 1:]):
        ones = np.array([(words >> bit & 1).sum() for bit in range(63)])
        assert np.abs((ones - words.size / 2) / np.sqrt(words.size / 4)).max() < 5


def test_key_is_immutable_hashable_and_equal_by_value():
    """A key cannot be changed and can stand in a set; equal keys are one."""
    key = ReusePolicy(3).key(5, 7)
    with pytest.raises(AttributeError):
        key.seed = 1
    with pytest.raises(AttributeError):
        key.extra = 1
    assert {key, ReusePolicy(3).key(5, 7)} == {key}
    assert key != ReusePolicy(3).key(5, 8)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_key_and_policy_travel_by_pickle(protocol):
    """Unpickled keys and policies equal what was pickled, type and all."""
    policy = ReusePolicy(3, -(10**30), balanced=False)
    for thing in (policy, policy.key(5, 7), policy.key(5, 7).first):
        twin = pickle.loads(pickle.dumps(thing, protocol))
        assert twin == thing
        assert type(twin) is type(thing)
        assert copy.deepcopy(thing) == thing
    assert len(pickle.dumps(policy.key(5, 7))) < 200


def test_policy_is_frozen_and_equal_by_value():
    """A policy cannot be changed, and its three settings alone make it what it is."""
    policy = ReusePolicy(3, 1)
    for name, value in {"lifetime": 4, "seed": 2, "balanced": False}.items():
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(policy, name, value)
        assert dataclasses.replace(policy, **{name: value}) != policy
    assert {policy, ReusePolicy(lifetime=3, seed=1, balanced=True)} == {policy}


def test_replace_validates_too():
    """A policy derived by dataclasses.replace is checked like any other."""
    with pytest.raises(ValueError, match=r"lifetime .*got 0"):
        dataclasses.replace(ReusePolicy(3), lifetime=0)


def test_generators_are_fresh_and_equal_at_each_call():
    """generator() and rng() begin anew at every call, each seeded with the sample's seed."""
    key = ReusePolicy(3).key(5, 7)
    first, second = key.generator(), key.generator()
    assert first is not second
    assert first.initial_seed() == key.seed
    assert first.device == torch.device("cpu")
    draw = torch.rand(4, generator=first)
    assert torch.equal(draw, torch.rand(4, generator=second))
    assert not torch.equal(draw, torch.rand(4, generator=first))
    one, two = key.rng(), key.rng()
    numbers = one.random(4)
    assert (numbers == two.random(4)).all()
    assert (numbers != one.random(4)).all()
    assert (numbers == np.random.default_rng(key.seed).random(4)).all()


def test_generators_are_equal_for_all_uses_of_one_generation():
    """Two uses of one generation draw the same numbers, the next generation others."""
    keys = [ReusePolicy(3).key(0, epoch) for epoch in range(4)]
    draws = [torch.rand(4, generator=key.generator()) for key in keys]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[3])


def test_nothing_global_is_drawn_from_or_seeded():
    """Keys, generators and orders neither change nor read the global random states."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    policy = ReusePolicy(3)
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        key = policy.key(5, 7)
        drawn = torch.rand(2, generator=key.generator()).tolist(), key.rng().random(2).tolist()
        results.append((key, drawn, policy.order(np.arange(9), 1, 9).tolist()))
        after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
    assert results[0] == results[1]
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
