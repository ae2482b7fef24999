"""What checksums and counting cost in a hit of the torch format, for images of 150 and 600 KB.

Run `python tests/benchmarks/hit_parts.py`. The target of counting is a microsecond a sample: it is
compared with a loop that takes one.
"""

import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path
from time import perf_counter, perf_counter_ns

import torch
from bench import Beside, Case, arguments, machine, measure, report

from reuseloader import IndexEpoch, ReuseDataset, ReuseKey, ReusePolicy
from reuseloader.record import Stamp, read_stamp, unseal
from reuseloader.stats import PassWatch
from reuseloader.store import DirectoryStore
from reuseloader.tally import Tally

SIZE = 64  # samples: too many for the processor's caches, unlike for the system's
DTYPES = {"150 KB": torch.uint8, "600 KB": torch.float32}
MICROSECOND = "a microsecond"


def build(key: ReuseKey, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(256, (3, 224, 224), generator=key.generator()).to(dtype)


def hit(dataset: ReuseDataset, hits: int) -> None:
    for number in range(hits):
        dataset[IndexEpoch(number % SIZE, 1)]


def check(record: memoryview, stamp: Stamp, hits: int) -> None:
    # in the processor's cache, where reading a file has just put it in a hit
    for _ in range(hits):
        unseal(record, stamp)


def count(tally: Tally, watch: PassWatch, hits: int) -> None:
    """What is counted and timed for a hit, its finish, and its consumer."""
    for _ in range(hits):
        watch.ask()
        began = perf_counter_ns()
        tally.hit(150_000, perf_counter_ns() - began)
        began = perf_counter_ns()
        tally.finished(perf_counter_ns() - began)
        watch.got()


def wait(microseconds: int) -> None:
    end = perf_counter() + microseconds * 1e-6
    while perf_counter() < end:
        pass


def cases(folder: Path, hits: int) -> dict[str, Case]:
    many = 100 * hits
    found = {
        MICROSECOND: Case(partial(wait, many), per=many),
        "counting": Case(
            partial(count, Tally(), PassWatch(), many), [Beside(MICROSECOND, target=1.0)], many
        ),
    }
    for size, dtype in DTYPES.items():
        path = folder / size
        dataset = ReuseDataset(partial(build, dtype=dtype), SIZE, path, ReusePolicy(10**9))
        for index in range(SIZE):
            dataset[IndexEpoch(index, 0)]
        record = DirectoryStore(path).read(0)
        assert record is not None
        whole = f"hit of {size}"
        found[whole] = Case(partial(hit, dataset, hits), per=hits)
        found[f"checksums of {size}"] = Case(
            partial(check, record, read_stamp(record), hits), [Beside(whole, target=0.10)], hits
        )
    return found


def main(args: Namespace) -> None:
    print(machine())
    print(f"\n{args.hits} hits, median of {args.rounds} interleaved rounds\n")
    with tempfile.TemporaryDirectory() as folder:
        report(measure(cases(Path(folder), args.hits), args.rounds), args.json)


if __name__ == "__main__":
    main(arguments(__doc__, hits=64, rounds=60))
