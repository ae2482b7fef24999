"""The global random states of a process, for libraries that draw from nothing else."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from reuseloader.mix import mix
from reuseloader.random_states import restored

# mix(seed, use) is a use_seed; no use is negative, so these streams are not those of any use
_RANDOM, _NUMPY, _TORCH = -1, -2, -3
_WORD = 2**32


class NotInMainThreadError(RuntimeError):
    """`global_states` was entered beside other threads, which have the same states."""


@contextmanager
def global_states(seed: int) -> Iterator[None]:
    """Seed `random`, NumPy's legacy state and torch's CPU generator; afterwards put all back."""
    _require_main_thread()
    with restored():
        random.seed(mix(seed, _RANDOM))
        # two words, as it takes no larger ints, and of 32 bits many samples would share one
        np.random.seed([*reversed(divmod(mix(seed, _NUMPY), _WORD))])
        torch.default_generator.manual_seed(mix(seed, _TORCH))  # torch.manual_seed: every device
        yield


def _require_main_thread() -> None:
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        raise NotInMainThreadError(
            f"key.seeded() must be entered in the main thread of a process, since threads share "
            f"the global random states, got thread {thread.name!r}. Build in processes "
            f"(ReuseMapper(..., num_workers=2, method='process') or DataLoader workers), or draw "
            f"from key.generator() or key.rng(); where nothing is random, FromDataset(dataset) can "
            f"be `lambda key: dataset[key.index]`. (Behind a Prefetcher, a thread builds if "
            f"num_workers=0, and runs finish unless ReuseMapper is given lists of pairs)"
        )
