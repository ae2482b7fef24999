"""What a hit costs beside reading the same bytes, and storing beside writing them.

Hits: `dataset[IndexEpoch(i, e)]` over stored samples (a float32 tensor, an int). Stores: the whole
miss of `dataset[IndexEpoch(i, e)]` with a build that costs nothing: the stale record is looked at,
the new one encoded and written over it. The yardsticks do the same to files of the same length, in
the same file system: what everybody writes in Python, and the bare system calls.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import torch
from bench import Beside, Case, arguments, machine, measure, report
from work import (
    LMDB,
    TENSORS,
    TORCH,
    Build,
    Ready,
    amount,
    folder,
    kept,
    require_sample,
    sample_of,
    stores,
)

from reuseloader import IndexEpoch, ReuseDataset, ReusePolicy

FOREVER = ReusePolicy(10**9)
HIT_TARGETS = {TENSORS: 2.0, LMDB: 1.5, TORCH: 1.15}
STORE_TARGETS = {TENSORS: 1.5, LMDB: 0.5, TORCH: None}


def read(path: str) -> bytes:
    """Open, read and close."""
    with open(path, "rb") as file:
        return file.read()


def read_bare(path: str, size: int) -> bytes:
    """Three system calls, the size being known."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, size)
    finally:
        os.close(file)


def load(path: str) -> Any:
    with open(path, "rb") as file:
        return torch.load(file, weights_only=False)


def load_safetensors(path: str) -> Any:
    from safetensors.torch import load

    return load(Path(path).read_bytes())


def safetensors_files(path: Path, samples: int, size: int) -> list[str]:
    """Such samples as safetensors has them: tensors by names."""
    from safetensors.torch import save_file

    path.mkdir()
    for index in range(samples):
        tensor, label = sample_of(index, index, size)
        file = path / f"{index:08}.safetensors"
        save_file({"tensor": tensor, "label": torch.tensor(label)}, file)
    return sorted(map(str, path.iterdir()))


def hold(values: Iterable[object], batch: int) -> None:
    """Take each value, and keep as many as a batch has."""
    deque(values, maxlen=batch - 1)


def write_all(paths: list[str], record: bytes) -> None:
    """Write each file beside its place and move it there: four system calls."""
    for path in paths:
        temp = f"{path}.tmp"
        file = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, record)
        os.close(file)
        os.replace(temp, path)


def fetched(dataset: ReuseDataset, indices: range, epoch: int) -> Iterator[Any]:
    return (dataset[IndexEpoch(index, epoch)] for index in indices)


def files(path: Path) -> list[str]:
    return sorted(str(file) for file in path.glob("*.pt"))


def hits(
    size: int, samples: int, batch: int, root: Path
) -> tuple[dict[str, Case], list[ReuseDataset]]:
    """Cases that read ``samples`` samples of ``size`` bytes and keep ``batch`` at a time."""
    datasets = {}
    for kind in stores(TORCH, TENSORS, LMDB):
        dataset = ReuseDataset(Build(size), samples, policy=FOREVER, **kept(kind, root / kind))
        for epoch in (0, 1):  # the first pass stores them
            for index, sample in enumerate(fetched(dataset, range(samples), epoch)):
                require_sample(sample, FOREVER.key(index, epoch), size)
        datasets[kind] = dataset
    what = f"{amount(size)}, {batch} kept"
    raw, pickled = files(root / TENSORS), files(root / TORCH)
    length = os.path.getsize(raw[0])
    yardstick, bare, loaded = (
        f"{name} {what}" for name in ("open+read+close", "bare system calls", "torch.load")
    )
    cases = {
        yardstick: Case(lambda: hold(map(read, raw), batch), per=samples),
        bare: Case(lambda: hold((read_bare(path, length) for path in raw), batch), per=samples),
        loaded: Case(lambda: hold(map(load, pickled), batch), per=samples),
    }
    if find_spec("safetensors") is not None:
        peer = safetensors_files(root / "safetensors", samples, size)
        cases[f"safetensors {what}"] = Case(
            lambda: hold(map(load_safetensors, peer), batch), [Beside(yardstick)], samples
        )
    for kind, dataset in datasets.items():
        cases[f"hit {kind} {what}"] = Case(
            lambda dataset=dataset: hold(fetched(dataset, range(samples), 1), batch),
            [Beside(loaded, target=HIT_TARGETS[kind])]
            if kind == TORCH
            else [Beside(yardstick, target=HIT_TARGETS[kind]), Beside(bare)],
            per=samples,
        )
    return cases, list(datasets.values())


def misses(size: int, samples: int, root: Path) -> tuple[dict[str, Case], list[ReuseDataset]]:
    """Cases that store ``samples`` samples of ``size`` bytes over older ones.

    At lifetime 2 an even index begins a new generation in every even epoch.
    """
    policy, even = ReusePolicy(2), range(0, 2 * samples, 2)
    ready = Ready([sample_of(index, index, size) for index in range(2 * samples)])
    kinds = stores(TORCH, TENSORS, LMDB)
    datasets = {
        kind: ReuseDataset(ready, 2 * samples, policy=policy, **kept(kind, root / kind))
        for kind in kinds
    }
    hold(fetched(datasets[TENSORS], even, 0), 1)
    record = Path(files(root / TENSORS)[0]).read_bytes()
    yardstick = f"write+rename {amount(size)}"
    (root / yardstick).mkdir()
    paths = [f"{root}/{yardstick}/{index:08}.pt" for index in range(samples)]
    cases = {yardstick: Case(partial(write_all, paths, record), per=samples)}
    for kind, dataset in datasets.items():
        epochs = count(2, 2)
        cases[f"store {kind} {amount(size)}"] = Case(
            lambda dataset=dataset, epochs=epochs: hold(fetched(dataset, even, next(epochs)), 1),
            [Beside(yardstick, target=STORE_TARGETS[kind])],
            per=samples,
        )
    return cases, list(datasets.values())


def main(args: Any) -> None:
    print(machine())
    print(f"{args.samples} samples, median of {args.rounds} interleaved rounds, per sample\n")
    for size in args.sizes:
        parts = [partial(hits, size, args.samples, batch) for batch in (1, 32)]
        for part in (*parts, partial(misses, size, args.samples)):
            with folder() as root:
                cases, datasets = part(root)
                report(measure(cases, args.rounds), args.json)
                for dataset in datasets:
                    dataset.close()
                print()


if __name__ == "__main__":
    main(arguments(__doc__, sizes=(150_000, 600_000), samples=64, rounds=31))
