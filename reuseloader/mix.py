"""Integers to pseudo-random integers: the one hash behind every seed and every order.

The step is the output function of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
number generators", OOPSLA 2014). Its values are frozen: they decide which sample a stored file
holds. Nothing here depends on a version of Python, NumPy or torch.
"""

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

_MASK = 2**64 - 1
_INCREMENT = 0x9E3779B97F4A7C15
_FACTOR_1 = 0xBF58476D1CE4E5B9
_FACTOR_2 = 0x94D049BB133111EB


def mix(*values: int) -> int:
    """Hash a sequence of ints of any size and sign to an int in [0, 2**63).

    For fixed other values the hash before its last bit is dropped is a bijection of a value in
    [0, 2**64), so neighbouring seeds or indices share nothing but chance.
    """
    return absorb(0, *values) >> 1


def absorb(state: int, *values: int) -> int:
    """What `mix` is after these values, if it was ``state`` before; to be shifted at the end."""
    for value in values:
        if 0 <= value <= _MASK:
            state = _step(state ^ value)
        else:
            count = value.bit_length() // 64 + 1  # two's complement words, the sign included
            state = _step(state ^ (_MASK - count))
            for word in range(count):
                state = _step(state ^ (value >> 64 * word & _MASK))
    return state


def _step(x: int) -> int:
    x = (x + _INCREMENT) & _MASK
    x = (x ^ x >> 30) * _FACTOR_1 & _MASK
    x = (x ^ x >> 27) * _FACTOR_2 & _MASK
    return x ^ x >> 31


def step_array(x: UInt64Array) -> UInt64Array:
    """A shorter step for many numbers at once, good in its high bits. Overwrites ``x``."""
    x *= np.uint64(_FACTOR_1)
    x ^= x >> np.uint64(32)
    x *= np.uint64(_FACTOR_2)
    return x
