"""What `advise` predicts beside what epochs take.

Builds sleep, so that nothing but the model is judged; training sleeps too. `advise` measures, and
predicts the epochs of lifetimes 1, 2 and 4 for the workers that it recommends: a graph of
`ReuseSampler -> ReuseMapper (processes) -> Batcher -> collate -> Prefetcher`, and `ReuseDataLoader`
with persistent workers. Then such loaders run. A ratio is what an epoch takes over what was
predicted; the target leaves room for the filling of the pipeline, about a batch an epoch.
"""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from bench import Case, Figure, arguments, duration, machine, measure, report
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher
from work import TENSORS, Sample, folder, kept, sample_of

from reuseloader import ReuseDataLoader, ReuseKey, ReusePolicy, advise
from reuseloader.nodes import ReuseMapper, ReuseSampler

LIFETIMES = (1, 2, 4)
TARGET = 1.3
Pipeline = Literal["graph", "dataloader"]


@dataclass(frozen=True)
class Sleep:
    """A build that takes ``seconds`` and no processor."""

    size: int
    seconds: float

    def __call__(self, key: ReuseKey) -> Sample:
        time.sleep(self.seconds)
        return sample_of(key.index, key.seed, self.size)


def loader(
    pipeline: Pipeline, lifetime: int, num_workers: int, path: Path, args: Any, stack: ExitStack
) -> Iterable[Any]:
    build, where = Sleep(args.size, args.build), kept(TENSORS, path)
    if pipeline == "dataloader":
        return stack.enter_context(
            ReuseDataLoader(
                build,
                args.samples,
                lifetime=lifetime,
                shuffle=True,
                batch_size=args.batch,
                num_workers=num_workers,
                persistent_workers=True,
                **where,
            )
        )
    policy = ReusePolicy(lifetime)
    source = ReuseSampler(args.samples, policy)
    node: Any = ReuseMapper(
        source, build, policy=policy, num_workers=num_workers, method="process", **where
    )
    stack.enter_context(node)
    node = Batcher(node, args.batch, drop_last=False)
    return Loader(Prefetcher(Mapper(node, default_collate), 2))


class Epochs:
    """The epochs of a loader, with training; epoch 0 has run."""

    def __init__(self, batches: Iterable[Any], step: float) -> None:
        self._batches = batches
        self._step = step
        self.run()

    def run(self) -> None:
        for _ in self._batches:
            time.sleep(self._step)


def compared(figure: Figure, predicted: float) -> Figure:
    """A measured time beside the prediction."""
    return replace(
        figure,
        ratio=figure.median / predicted,
        target=TARGET,
        against=f"predicted {duration(predicted)}",
    )


def figures(pipeline: Pipeline, root: Path, args: Any, stack: ExitStack) -> list[Figure]:
    advice = advise(
        Sleep(args.size, args.build),
        args.samples,
        root,
        batch_size=args.batch,
        step=args.step,
        pipeline=pipeline,
        format="tensors",
    )
    print(f"\n{advice}\n", flush=True)
    predicted = {at.lifetime: at.seconds for at in advice.predictions}
    cases = {}
    for lifetime in LIFETIMES:
        name = f"{pipeline}, L={lifetime}"
        batches = loader(pipeline, lifetime, advice.num_workers, root / name, args, stack)
        cases[name] = Case(Epochs(batches, args.step).run)
    found = measure(cases, args.rounds)
    return [compared(one, predicted[at]) for one, at in zip(found, LIFETIMES, strict=True)]


def main(args: Any) -> None:
    torch.set_num_threads(1)  # as in workers
    print(machine())
    print(
        f"{args.samples} samples of {args.size} bytes, builds of {1000 * args.build:g} ms, batches "
        f"of {args.batch}, steps of {1000 * args.step:g} ms, median of {args.rounds} interleaved "
        f"rounds, per epoch"
    )
    found: list[Figure] = []
    pipelines: tuple[Pipeline, ...] = ("graph", "dataloader")
    for pipeline in pipelines:
        with folder() as root, ExitStack() as stack:
            found += figures(pipeline, root, args, stack)
    print()
    report(found, args.json)


if __name__ == "__main__":
    main(arguments(__doc__, samples=512, size=150_000, batch=16, build=0.02, step=0.06, rounds=5))
