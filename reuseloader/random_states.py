"""The global random states of the process: what a sample must not depend on."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from reuseloader.mix import mix

# by the name of their module; torch's own on the CPU, as torch.manual_seed seeds every device too
SEEDERS: dict[str, Callable[[int], object]] = {
    "random": random.seed,
    "numpy.random": lambda seed: np.random.seed(seed % 2**32),
    "torch": lambda seed: torch.default_generator.manual_seed(seed),
}


def seed_all(*values: int) -> None:
    """Set every global random state to one that follows from these numbers."""
    for seed in SEEDERS.values():
        seed(mix(*values))


@contextmanager
def restored() -> Iterator[None]:
    """Give all global random states back as they were, also after an error."""
    python, numpy, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(tensors)
