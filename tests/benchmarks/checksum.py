"""What the checksums cost in a hit of the torch format, for images of 150 and 600 KB.

Run `python tests/benchmarks/checksum.py [hits [rounds]]`.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from bench import Case, machine, measure, table

from reuseloader import IndexEpoch, ReuseDataset, ReuseKey, ReusePolicy
from reuseloader.record import Stamp, read_stamp, unseal
from reuseloader.store import DirectoryStore

SIZE = 64  # samples: too many for the processor's caches, unlike for the system's
DTYPES = {"150 KB": torch.uint8, "600 KB": torch.float32}


def build(key: ReuseKey, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(256, (3, 224, 224), generator=key.generator()).to(dtype)


def hit(dataset: ReuseDataset, hits: int) -> None:
    for number in range(hits):
        dataset[IndexEpoch(number % SIZE, 1)]


def check(record: memoryview, stamp: Stamp, hits: int) -> None:
    # in the processor's cache, where reading a file has just put it in a hit
    for _ in range(hits):
        unseal(record, stamp)


def cases(folder: Path, hits: int) -> dict[str, Case]:
    found = {}
    for size, dtype in DTYPES.items():
        path = folder / size
        dataset = ReuseDataset(partial(build, dtype=dtype), SIZE, path, ReusePolicy(10**9))
        for index in range(SIZE):
            dataset[IndexEpoch(index, 0)]
        record = DirectoryStore(path).read(0)
        assert record is not None
        whole = f"hit of {size}"
        found[whole] = Case(partial(hit, dataset, hits))
        found[f"checksums of {size}"] = Case(
            partial(check, record, read_stamp(record), hits), whole, 0.10
        )
    return found


if __name__ == "__main__":
    hits, rounds = (*map(int, sys.argv[1:]), *(64, 60)[len(sys.argv) - 1 :])
    print(machine())
    print(f"{hits} hits, median of {rounds} interleaved rounds\n")
    with tempfile.TemporaryDirectory() as folder:
        found = cases(Path(folder), hits)
        print(table(found, measure(found, rounds)))
