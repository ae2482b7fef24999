"""What the benchmarks prepare and where they keep it: samples in closed form, builds, stores."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import torch

from reuseloader import ReuseKey

TORCH, TENSORS, LMDB = "torch files", "tensors files", "LMDBStore"
Sample = tuple[torch.Tensor, int]

_NOISE = np.random.default_rng(0).random(2000)


def spin(seconds: float) -> None:
    """Use the processor for this long, whatever else it does; mostly without the GIL."""
    end = thread_time() + seconds
    while thread_time() < end:
        np.sort(_NOISE)


def sample_of(index: int, seed: int, size: int) -> Sample:
    """A float32 tensor of ``size`` bytes that shows its seed, and a label that shows its index."""
    return torch.full((max(1, size // 4),), float(mark(seed))), index


def mark(seed: int) -> int:
    """What a sample shows of its seed: a number that a float32 holds exactly."""
    return seed % 2**24


@dataclass(frozen=True)
class Build:
    """A build of samples of ``size`` bytes that takes ``seconds`` of processor time."""

    size: int
    seconds: float = 0.0

    def __call__(self, key: ReuseKey) -> Sample:
        spin(self.seconds)
        return sample_of(key.index, key.seed, self.size)


@dataclass(frozen=True)
class Ready:
    """A build that costs nothing: samples that are there already."""

    samples: list[Sample]

    def __call__(self, key: ReuseKey) -> Sample:
        return self.samples[key.index]


def require(right: bool, what: str) -> None:
    """Stop the benchmark of a wrong thing."""
    if not right:
        raise SystemExit(f"wrong: {what}")


def require_sample(sample: Any, key: ReuseKey, size: int) -> None:
    """The sample must be just what `Build` makes of ``key``."""
    expected, label = sample_of(key.index, key.seed, size)
    right = torch.equal(sample[0], expected) and int(sample[1]) == label
    require(right, f"the sample of {key}")


def require_pass(batches: Any, keys: dict[int, ReuseKey]) -> None:
    """A pass must deliver each index once, and of each the sample of its key."""
    seen = []
    for tensors, labels in batches:
        for tensor, label in zip(tensors, labels.tolist(), strict=True):
            require(label in keys, f"index {label}")
            require(bool((tensor == mark(keys[label].seed)).all()), f"sample {keys[label]}")
            seen.append(label)
    require(sorted(seen) == sorted(keys), f"{len(seen)} samples in place of {len(keys)}")


def stores(*kinds: str) -> list[str]:
    """Of these kinds of store, those that can be had here."""
    return [kind for kind in kinds if kind != LMDB or find_spec("lmdb") is not None]


def kept(kind: str, path: Path) -> dict[str, Any]:
    """The arguments for samples that are kept in this kind of store."""
    if kind == LMDB:
        from reuseloader import LMDBStore

        return {"path": LMDBStore(path), "format": "tensors"}
    return {"path": path, "format": "torch" if kind == TORCH else "tensors"}


@contextmanager
def folder() -> Iterator[Path]:
    """A directory for a while; ``TMPDIR`` says on which disk."""
    with tempfile.TemporaryDirectory(prefix="reuseloader-") as path:
        yield Path(path)


def amount(size: float) -> str:
    """A number of bytes in words."""
    power = min(3, int(math.log10(max(size, 1)) // 3))
    return f"{size / 1000**power:.3g} {('B', 'KB', 'MB', 'GB')[power]}"
