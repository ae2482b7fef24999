"""The same training input through ReuseLoader and what people use in its place.

Builds of 10 ms of processor time, samples of 150 KB, two workers where there are any. All caches
are as fresh as each other: 1/L of what an epoch delivers was built anew (verified by its content).
Ours are `ReuseDataLoader` and the torchdata graph, with tensors files and LMDBStore; the others
are in `rivals.py` and `rivals_medical.py`. The builds mostly leave the GIL free, which is best for
caches that work with threads. Times are per sample, of whole steady epochs. Target: ahead of each.
"""

import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import torch
from bench import Beside, Case, aligned, arguments, machine, measure, report, versioned
from epoch import dataloader, graph
from rivals import Batches, DiskCache, Joblib, Naive, Nodes, Rival
from rivals_medical import Persistent, Queue, SmartCache
from work import LMDB, TENSORS, folder, require, stores

from reuseloader import ReusePolicy

RIVALS = (Rival, Nodes, Naive, Joblib, DiskCache, Persistent, SmartCache, Queue)
OURS = {"ReuseDataLoader": dataloader, "ReuseMapper graph": graph}


def contents(batches: Batches) -> set[tuple[int, float]]:
    """What an epoch delivered: label and content of each sample."""
    return {
        (int(label), float(tensor[0]))
        for tensors, labels in batches
        for tensor, label in zip(tensors, labels, strict=True)
    }


def drain(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def fresh(name: str, epoch: Any, expected: float, args: Any) -> float:
    """The share of an epoch that it built anew, over the first epochs; it must be as expected."""
    before = contents(epoch(0))
    built = 0
    for number in range(1, args.lifetime + 1):
        delivered = contents(epoch(number))
        built += len(delivered - before)
        before = delivered
    share = built / (args.samples * args.lifetime)
    require(abs(share - expected) < 0.02, f"{name} builds {share:.2f} in place of {expected:.2f}")
    return share


def here(rival: type[Rival]) -> bool:
    return find_spec(rival.package) is not None


def main(args: Any) -> None:
    torch.set_num_threads(1)  # as in workers; more would wait for each other on busy cores
    warnings.filterwarnings("ignore", module="monai|torchio|joblib")
    warnings.filterwarnings("ignore", "The .*align|Importing Simple|Using TorchIO", UserWarning)
    packages = sorted({rival.package for rival in RIVALS} - {"torch", "torchdata"})
    print(machine(packages))
    print(
        f"{args.samples} samples of {args.size} bytes, builds of {1000 * args.build:g} ms, batches "
        f"of {args.batch}, lifetime {args.lifetime}, median of {args.rounds} interleaved rounds, "
        f"per sample\n"
    )
    for rival in RIVALS:
        if not here(rival):
            print(f"{rival.name} is left out: {rival.package} is not installed")
    with folder() as root, ExitStack() as stack:
        compare([rival for rival in RIVALS if here(rival)], root, args, stack)


def compare(rivals: list[type[Rival]], root: Path, args: Any, stack: ExitStack) -> None:
    """Time all pipelines and print two tables."""
    policy, reused = ReusePolicy(args.lifetime), 1 / args.lifetime
    cases: dict[str, Case] = {}
    shares: dict[str, float] = {}
    ours = {
        f"{name}, {kind}": make(policy, kind, root / f"{name} {kind}", args, stack)
        for kind in stores(TENSORS, LMDB)
        for name, make in OURS.items()
    }
    for name, loader in ours.items():
        shares[name] = fresh(name, lambda epoch, loader=loader: loader, reused, args)
        beside = [Beside(rival.name, target=1.0) for rival in rivals]
        cases[name] = Case(partial(drain, loader), beside, args.samples)
    for rival in rivals:
        pipeline = rival(root / rival.name, args)
        stack.callback(pipeline.close)
        expected = reused if rival.keeps else 1.0
        shares[rival.name] = fresh(rival.name, pipeline.epoch, expected, args)
        epochs = count(args.lifetime + 1)
        cases[rival.name] = Case(
            lambda pipeline=pipeline, epochs=epochs: drain(pipeline.epoch(next(epochs))),
            per=args.samples,
        )
    figures = measure(cases, args.rounds)
    report([line for line in figures if line.target is not None], args.json)
    lines = {line.name: line for line in figures}
    described = {rival.name: (versioned(rival.package), rival.lacks) for rival in rivals}
    table = [("pipeline", "samples/s", "slowest", "fastest", "built anew", "version", "it cannot")]
    for name, share in shares.items():
        rates = (1 / t for t in (lines[name].median, lines[name].high, lines[name].low))
        about = described.get(name, (versioned("reuseloader"), ""))
        table.append((name, *(f"{rate:.0f}" for rate in rates), f"{share:.2f}", *about))
    print(f"\n{aligned(table)}", flush=True)


if __name__ == "__main__":
    main(arguments(__doc__, samples=256, size=150_000, batch=16, build=0.01, lifetime=4, rounds=7))
