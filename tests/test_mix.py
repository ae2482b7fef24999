import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reuseloader.mix import mix

WORD = 2**64
INTS = st.one_of(st.integers(), st.integers(0, 2**63 - 1), st.integers(-(2**200), 2**200))


@given(st.lists(INTS, max_size=6))
def test_hash_is_a_plain_int_of_63_bits_and_the_same_at_every_call(values):
    """Any sequence of ints has one hash, a plain int in [0, 2**63)."""
    value = mix(*values)
    assert type(value) is int
    assert 0 <= value < 2**63
    assert mix(*values) == value


@pytest.mark.parametrize(
    ("state", "output"),
    [(1234567, 6457827717110365317), (0, 0xE220A8397B1DCDAF), (WORD - 1, 0xE4D971771B652C20)],
)
def test_one_value_is_hashed_by_the_published_splitmix64(state, output):
    """The hash of a 64-bit value is splitmix64's first output for that state, less its last bit."""
    assert mix(state) == output >> 1


@given(st.lists(INTS, min_size=1, max_size=4), st.data())
def test_changing_one_value_changes_the_hash(values, data):
    """Two sequences that differ in one value have different hashes."""
    place = data.draw(st.integers(0, len(values) - 1))
    other = data.draw(INTS.filter(lambda x: x != values[place]))
    assert mix(*values) != mix(*values[:place], other, *values[place + 1 :])


@given(st.lists(st.integers(-(2**63), 2**63), max_size=4), st.integers(-(2**63), 2**63))
def test_order_and_number_of_values_count(values, more):
    """A longer sequence, or the same values in another order, has another hash."""
    assert mix(*values, more) != mix(*values)
    if more not in values and values:
        assert mix(*values, more) != mix(more, *values)


def test_a_million_neighbouring_keys_have_a_million_seeds():
    """No two of 10**6 (seed, index, generation) share a hash: by chance 5e-8 pairs would."""
    seeds = [mix(s, i, g) for s in range(-5, 5) for i in range(1000) for g in range(100)]
    assert len(set(seeds)) == 10**6


def test_values_a_word_apart_have_different_hashes():
    """Values that agree in their low 64 bits, and a value and its negative, are told apart."""
    values = {sign * (base + WORD * k) for sign in (1, -1) for base in range(8) for k in range(8)}
    values |= {10**30, -(10**30), 2**63, -(2**63), 2**127, 2**128, 2**128 - 1, -(2**128)}
    assert len({mix(value) for value in values}) == len(values)
    assert len({mix(value, 1, 2) for value in values}) == len(values)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_flipping_one_input_bit_flips_every_output_bit_half_the_time(place):
    """Each of 63 output bits flips with probability 1/2 for each input bit: |z| < 5 in 3969 cells.

    Null: flips of one (input bit, output bit) cell over N = 400 random inputs are
    Binomial(N, 1/2); the largest of 3969 normal |z| exceeds 5 with probability 0.2 %.
    """
    rng = np.random.default_rng(place)
    trials = 400
    flips = np.zeros((63, 63), dtype=np.int64)
    for values in rng.integers(0, 2**63, size=(trials, 3)).tolist():
        before = mix(*values)
        for bit in range(63):
            changed = [*values]
            changed[place] ^= 1 << bit
            difference = np.array([before ^ mix(*changed)]).view(np.uint8)
            flips[bit] += np.unpackbits(difference, bitorder="little")[:63]
    z = (flips - trials / 2) / np.sqrt(trials / 4)
    assert np.abs(z).max() < 5
    assert abs(z.sum() / 63) < 4.5  # all cells together: standard normal
