"""From which build on reuse pays.

Break-even: epochs of ReuseDataset at lifetime 2 and of a plain dataset, which builds each sample
anew, are timed over builds of 0 to 3 ms of processor time; both under DataLoader in one process, so
that what a sample costs is not hidden behind workers. Where the difference per sample changes sign,
between two builds measured, is the break-even.

Table: time of an epoch with reuse over that of one without, at lifetimes 2 and 4, for builds and
samples of several sizes, with the bytes that a stored sample takes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from bench import Beside, Case, Figure, aligned, arguments, duration, machine, measure, report
from torch.utils.data import DataLoader, Dataset
from work import LMDB, TENSORS, TORCH, Build, amount, folder, kept, require_pass, stores

from reuseloader import ReuseDataLoader, ReuseKey, ReusePolicy

BUILDS = (0.0, 0.0001, 0.0003, 0.001, 0.003)
TARGETS = {LMDB: 0.0003, TENSORS: 0.001, TORCH: None}
PLAIN = "no reuse"


class Plain(Dataset[Any]):
    """Builds each sample anew, as one does without reuse."""

    def __init__(self, build: Build, samples: int) -> None:
        self.build, self.samples = build, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return self.build(ReuseKey(index, 0, 0, 0, index, 0))


def plain(build: Build, samples: int, batch: int) -> DataLoader[Any]:
    loader = DataLoader(Plain(build, samples), batch_size=batch, shuffle=True)
    require_pass(loader, {i: ReuseKey(i, 0, 0, 0, i, 0) for i in range(samples)})
    return loader


def reusing(
    build: Build, samples: int, batch: int, lifetime: int, kind: str, path: Path
) -> ReuseDataLoader:
    loader = ReuseDataLoader(
        build, samples, lifetime=lifetime, shuffle=True, batch_size=batch, **kept(kind, path)
    )
    policy = ReusePolicy(lifetime)
    for epoch in range(2):  # the first builds all
        require_pass(loader, {index: policy.key(index, epoch) for index in range(samples)})
    return loader


def drain(loader: Any) -> None:
    for _ in loader:
        pass


def rows(kinds: Sequence[str], build: Build, samples: int, args: Any) -> dict[str, Figure]:
    """Epochs with reuse at lifetime 2 in these kinds of store, and without: per sample."""
    with folder() as root, ExitStack() as stack:
        bare = plain(build, samples, args.batch)
        cases = {PLAIN: Case(lambda: drain(bare), per=samples)}
        for kind in kinds:
            loader = reusing(build, samples, args.batch, 2, kind, root / kind)
            stack.enter_context(loader)
            cases[kind] = Case(lambda loader=loader: drain(loader), [Beside(PLAIN)], per=samples)
        return {line.name: line for line in measure(cases, args.rounds)}


def break_even(builds: Sequence[float], differences: Sequence[float]) -> float:
    """The build at which reuse begins to pay; inf if it does not pay at any that was measured."""
    if differences[0] <= 0:
        return builds[0]
    for at in range(1, len(builds)):
        before, after = differences[at - 1 : at + 1]
        if after <= 0 < before:
            return builds[at - 1] + (builds[at] - builds[at - 1]) * before / (before - after)
    return float("inf")


def find_break_even(args: Any) -> None:
    kinds = stores(LMDB, TENSORS, TORCH)
    table = [("build", PLAIN, *(f"{kind}: with reuse, ratio" for kind in kinds), "")]
    measured = []
    for seconds in BUILDS:
        lines = rows(kinds, Build(args.size, seconds), args.samples, args)
        measured.append(lines)
        cells = [f"{duration(lines[k].median)}, {lines[k].ratio:.2f}" for k in kinds]
        table.append((duration(seconds), duration(lines[PLAIN].median), *cells, ""))
    print(aligned(table), "\n")
    figures = []
    for kind in kinds:
        # the build as it was measured: what the plain dataset takes beyond that of no build
        nothing = measured[0][PLAIN].median
        builds = [lines[PLAIN].median - nothing for lines in measured]
        gaps = [lines[kind].median - lines[PLAIN].median for lines in measured]
        at = break_even(builds, gaps)
        target = TARGETS[kind]
        ratio = None if target is None else at / target
        figures.append(
            Figure(
                f"break-even build, {kind}, L=2",
                at,
                at,
                at,
                ratio,
                None if target is None else 1.0,
                "" if target is None else duration(target),
            )
        )
    report(figures, args.json)


def make_table(args: Any) -> None:
    """Ratios at lifetimes 2 and 4, over builds and sizes."""
    kind = TENSORS
    head = [f"sample of {amount(size)}" for size in args.sizes]
    table = [("build", *head, "")]
    stored = {}
    for seconds in args.builds:
        cells = []
        for size in args.sizes:
            build = Build(size, seconds)
            samples = 4 * max(1, int(args.budget / (seconds + 2e-4 + size * 2e-9)) // 4)
            samples = min(samples, 256)
            batch = min(16, samples)
            with folder() as root, ExitStack() as stack:
                bare = plain(build, samples, batch)
                cases = {PLAIN: Case(lambda bare=bare: drain(bare), per=samples)}
                for lifetime in (2, 4):
                    path = root / str(lifetime)
                    loader = reusing(build, samples, batch, lifetime, kind, path)
                    stack.enter_context(loader)
                    cases[str(lifetime)] = Case(
                        lambda loader=loader: drain(loader), [Beside(PLAIN)], per=samples
                    )
                _, *lines = measure(cases, args.rounds)
                file = next((root / "4").glob("*.pt"))
                stored[size] = file.stat().st_size
            cells.append(" / ".join(f"{line.ratio:.2f}" for line in lines))
        table.append((duration(seconds), *cells, ""))
    table.append(("bytes stored", *(str(stored[size]) for size in args.sizes), ""))
    print(f"\nepoch with reuse over epoch without, {kind}, L = 2 / L = 4\n")
    print(aligned(table), flush=True)


def main(args: Any) -> None:
    torch.set_num_threads(1)  # as in workers; more would wait for each other on busy cores
    print(machine())
    print(
        f"{args.samples} samples of {args.size} bytes, batches of {args.batch}, one process, "
        f"median of {args.rounds} interleaved rounds, per sample\n"
    )
    find_break_even(args)
    make_table(args)


if __name__ == "__main__":
    main(
        arguments(
            __doc__,
            samples=256,
            size=150_000,
            batch=32,
            rounds=7,
            builds=(0.0001, 0.001, 0.01, 0.1),
            sizes=(100, 100_000, 10_000_000),
            budget=0.5,
        )
    )
