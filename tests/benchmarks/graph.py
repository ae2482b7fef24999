"""A pass of hits through a torchdata graph beside DataLoader and torchdata's ParallelMapper.

All read the same store of finished samples in the same order and collate batches, which are then
dropped. The graphs: `ReuseSampler -> ReuseMapper -> Batcher -> collate -> Prefetcher`; with lists
of pairs, `ReuseSampler -> Batcher -> ReuseMapper -> collate -> Prefetcher`; and the first one with
ParallelMapper over a `ReuseDataset` in place of ReuseMapper. Workers of DataLoader are persistent;
those of ParallelMapper start at every pass, as torchdata has it. Torch runs with one thread. Times
are per sample, of whole passes.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from bench import Beside, Case, arguments, machine, measure, report
from torch.utils.data import default_collate
from torchdata.nodes import BaseNode, Batcher, Loader, Mapper, ParallelMapper, Prefetcher
from work import LMDB, TENSORS, Build, folder, kept, require_pass, stores

from reuseloader import ReuseDataLoader, ReuseDataset, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

SEED = 1
POLICY = ReusePolicy(10**9, SEED)
DATALOADERS = ("DataLoader, 0 workers", "DataLoader, 2 workers")
INLINE, THREADS, PROCESSES = (
    f"ParallelMapper, {how}" for how in ("inline", "2 threads", "2 processes")
)


class Pipelines:
    """The loaders over one store, and what must be closed after use."""

    def __init__(self, kind: str, path: Path, size: int, samples: int, batch: int) -> None:
        self.size, self.batch, self.samples = size, batch, samples
        self.build = Build(size)
        self.kept = kept(kind, path)
        self.open: list[Any] = []

    def dataloader(self, workers: int) -> Iterable[Any]:
        loader = ReuseDataLoader(
            self.build,
            self.samples,
            lifetime=POLICY.lifetime,
            seed=SEED,
            shuffle=True,
            batch_size=self.batch,
            num_workers=workers,
            persistent_workers=workers > 0,
            **self.kept,
        )
        self.open.append(loader)
        return loader

    def batches(self, node: BaseNode[Any]) -> BaseNode[Any]:
        return Batcher(node, self.batch, drop_last=False)

    def loader(self, batches: BaseNode[Any]) -> Iterable[Any]:
        return Loader(Prefetcher(Mapper(batches, default_collate), 2))

    def mapper(self, source: BaseNode[Any], workers: int) -> BaseNode[Any]:
        node = ReuseMapper(
            source,
            self.build,
            policy=POLICY,
            size=self.samples,
            num_workers=workers,
            method="process",
            **self.kept,
        )
        self.open.append(node)
        return node

    def graph(self, workers: int) -> Iterable[Any]:
        pairs = ReuseSampler(self.samples, POLICY)
        return self.loader(self.batches(self.mapper(pairs, workers)))

    def lists(self, workers: int) -> Iterable[Any]:
        pairs = self.batches(ReuseSampler(self.samples, POLICY))
        return self.loader(self.mapper(pairs, workers))

    def parallel(self, workers: int, method: str = "thread") -> Iterable[Any]:
        dataset = ReuseDataset(self.build, self.samples, policy=POLICY, **self.kept)
        self.open.append(dataset)
        node = ParallelMapper(
            ReuseSampler(self.samples, POLICY),
            dataset.__getitem__,
            num_workers=workers,
            method=method,
            multiprocessing_context="fork" if method == "process" else None,
        )
        return self.loader(self.batches(node))

    def close(self) -> None:
        for opened in self.open:
            opened.close()


def drain(loader: Iterable[Any]) -> None:
    for _ in loader:
        pass


def cases(pipelines: Pipelines) -> dict[str, Case]:
    samples = pipelines.samples
    keys = {index: POLICY.key(index, 0) for index in range(samples)}

    def case(loader: Iterable[Any], *beside: Beside) -> Case:
        for _ in range(2):  # whoever is first stores the samples
            require_pass(loader, keys)
        # a pass not timed before each: the memory that another case has left behind, above all one
        # that forks, costs the next one page faults
        return Case(lambda: drain(loader), beside, samples, before=lambda: drain(loader))

    # who has nothing to build needs no workers: with them, each sample is looked at once more
    alone = Beside(*DATALOADERS, target=1 / 0.9), Beside(INLINE, target=1.0), Beside(THREADS)
    workers = Beside(*DATALOADERS), Beside(PROCESSES, target=1 / 3)
    return {
        DATALOADERS[0]: case(pipelines.dataloader(0)),
        DATALOADERS[1]: case(pipelines.dataloader(2)),
        INLINE: case(pipelines.parallel(0)),
        THREADS: case(pipelines.parallel(2)),
        PROCESSES: case(pipelines.parallel(2, "process")),
        "graph, 2 processes": case(pipelines.graph(2), *workers),
        "graph, 0 workers": case(pipelines.graph(0), *alone),
        "graph of lists, 2 processes": case(pipelines.lists(2), *workers),
        "graph of lists, 0 workers": case(pipelines.lists(0), *alone),
    }


def main(args: Any) -> None:
    torch.set_num_threads(1)  # as in workers; more would wait for each other on busy cores
    print(machine())
    print(
        f"{args.samples} stored samples of {args.size} bytes, batches of {args.batch}, "
        f"median of {args.rounds} interleaved rounds, per sample"
    )
    for kind in stores(TENSORS, LMDB):
        with folder() as root:
            pipelines = Pipelines(kind, root / "store", args.size, args.samples, args.batch)
            print(f"\n{kind}\n")
            report(measure(cases(pipelines), args.rounds), args.json)
            pipelines.close()


if __name__ == "__main__":
    main(arguments(__doc__, samples=2048, size=150_000, batch=32, rounds=9))
