"""Steady epochs of expensive builds: how near reuse comes to its ideal factor.

Builds take 20 ms of processor time, in 2 workers. Ideal at lifetime L is 1/L of the time of the
same pipeline at lifetime 1. Pipelines: `ReuseDataLoader` with persistent workers, and the graph
`ReuseSampler -> ReuseMapper (processes) -> Batcher -> collate -> Prefetcher`. Then the balanced
order beside a plain one: builds that bunch up leave a worker without work. Times are of whole
epochs, the first of which, where all is built, is not counted.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from bench import Beside, Case, arguments, machine, measure, report
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher
from work import LMDB, TENSORS, Build, folder, kept, require_pass, stores

from reuseloader import ReuseDataLoader, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

SHARE = 0.95  # of the ideal factor that must be reached


def dataloader(
    policy: ReusePolicy, kind: str, path: Path, args: Any, stack: ExitStack
) -> Iterable[Any]:
    return stack.enter_context(
        ReuseDataLoader(
            Build(args.size, args.build),
            args.samples,
            lifetime=policy.lifetime,
            seed=policy.seed,
            balanced=policy.balanced,
            shuffle=True,
            batch_size=args.batch,
            num_workers=2,
            persistent_workers=True,
            **kept(kind, path),
        )
    )


def graph(policy: ReusePolicy, kind: str, path: Path, args: Any, stack: ExitStack) -> Iterable[Any]:
    node: Any = ReuseMapper(
        ReuseSampler(args.samples, policy),
        Build(args.size, args.build),
        policy=policy,
        size=args.samples,
        num_workers=2,
        method="process",
        **kept(kind, path),
    )
    stack.enter_context(node)
    node = Batcher(node, args.batch, drop_last=False)
    return Loader(Prefetcher(Mapper(node, default_collate), 2))


PIPELINES = {"DataLoader": dataloader, "graph": graph}


class Epochs:
    """The epochs of one loader, each of them checked in its samples once."""

    def __init__(self, loader: Iterable[Any], policy: ReusePolicy, samples: int) -> None:
        self.loader = loader
        for epoch in range(2):  # the first builds all
            keys = {index: policy.key(index, epoch) for index in range(samples)}
            require_pass(loader, keys)

    def run(self) -> None:
        for _ in self.loader:
            pass


def cases(
    lifetimes: tuple[int, ...],
    orders: tuple[bool, ...],
    kind: str,
    root: Path,
    args: Any,
    stack: ExitStack,
) -> dict[str, Case]:
    found = {}
    for name, make in PIPELINES.items():
        yardstick = f"{name}, L=1"
        for lifetime in (1, *lifetimes):
            for balanced in orders if lifetime > 1 else (True,):
                policy = ReusePolicy(lifetime, balanced=balanced)
                case = f"{name}, L={lifetime}{'' if balanced else ', plain order'}"
                epochs = Epochs(make(policy, kind, root / case, args, stack), policy, args.samples)
                target = 1 / SHARE if len(orders) == 1 else None
                ideal = Beside(yardstick, target=target, ideal=1 / lifetime)
                found[case] = Case(epochs.run, [ideal] if lifetime > 1 else [])
    return found


def main(args: Any) -> None:
    torch.set_num_threads(1)  # as in workers; more would wait for each other on busy cores
    print(machine())
    print(
        f"{args.samples} samples of {args.size} bytes, builds of {1000 * args.build:g} ms, batches "
        f"of {args.batch}, median of {args.rounds} interleaved rounds, per epoch"
    )
    parts: list[tuple[str, tuple[int, ...], tuple[bool, ...]]]
    parts = [(kind, (2, 4), (True,)) for kind in stores(TENSORS, LMDB)]
    parts.append((TENSORS, (4, 8), (True, False)))
    for kind, lifetimes, orders in parts:
        with folder() as root, ExitStack() as stack:
            print(f"\n{kind}\n")
            measured = cases(lifetimes, orders, kind, root, args, stack)
            report(measure(measured, args.rounds), args.json)


if __name__ == "__main__":
    main(arguments(__doc__, samples=512, size=150_000, batch=16, build=0.02, rounds=7))
