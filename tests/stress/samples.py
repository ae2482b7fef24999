"""Samples in closed form, and the formats in which they are stored."""

import pickle
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import torch
import xxhash

from reuseloader import ReuseKey, ReusePolicy


@dataclass(frozen=True)
class Build:
    """A build in closed form: the key, and ``count`` random words; takes ``seconds``."""

    format: str = "torch"
    count: int = 30
    seconds: float = 0.0
    version: int = 1  # what a fingerprint has to tell apart

    def __call__(self, key: ReuseKey) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        words = key.rng().integers(0, 2**63 // self.version, self.count)
        values = np.concatenate([np.array(key), words])
        if self.format == "numpy":
            return values
        if self.format == "pickle":
            return {"key": tuple(key), "values": values}
        return {"key": tuple(key), "values": torch.from_numpy(values)}


def save_array(array: np.ndarray, file: BinaryIO) -> None:
    np.save(file, array)


FORMATS: dict[str, dict[str, Any]] = {
    "torch": {},
    "tensors": {"format": "tensors"},
    "pickle": {"save": pickle.dump, "load": pickle.load},
    "numpy": {"save": save_array, "load": np.load},
}


def digest(sample: Any) -> str:
    """Equal exactly for equal samples of `Build`: types, dtype, shape and every bit."""
    key, values = (sample["key"], sample["values"]) if isinstance(sample, dict) else ("", sample)
    kind = f"{type(sample).__name__} {key} {type(values).__name__} {values.dtype} {values.shape}"
    return xxhash.xxh3_128_hexdigest(kind.encode() + np.asarray(values).tobytes())


@lru_cache(maxsize=2**16)
def expected(build: Build, policy: ReusePolicy, index: int, epoch: int) -> str:
    """The digest of what a right loader delivers for index and epoch: the closed form."""
    return digest(replace(build, seconds=0)(policy.key(index, epoch).first))


def expected_pass(build: Build, policy: ReusePolicy, epoch: int, size: int) -> list[str]:
    """The digests of a whole shuffled pass, in its order."""
    order = policy.order(np.arange(size), epoch, size).tolist()
    return [expected(build, policy, index, epoch) for index in order]
