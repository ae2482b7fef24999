"""Put reuse into a torchdata.nodes pipeline that is already there, by changing two lines.

    python examples/swap_in.py

`ordinary` is the usual graph over a map-style dataset: a random sampler, a ParallelMapper that
calls ``dataset[index]``, then batches and prefetching. `reusing` is the same graph with WithEpoch
around the index node, and ReuseMapper with ``FromDataset(dataset)`` in the place of ParallelMapper.

The dataset turns scikit-learn's real digits into distance fields, which takes some milliseconds
each and involves no chance. So the two graphs must deliver the same stream bit for bit at any
lifetime; this is checked, and the time of every epoch is shown. (A dataset that draws from the
global random states is seeded by FromDataset. The indices and labels are still those of the
ordinary graph then, and each sample varies from one generation to the next.)

At last a run is stopped in the middle of an epoch, its state goes through JSON, and a new graph
goes on from there; what it delivers must equal the rest of the run that was never stopped.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt, zoom
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset, RandomSampler, default_collate
from torchdata.nodes import (
    BaseNode,
    Batcher,
    Loader,
    Mapper,
    ParallelMapper,
    Prefetcher,
    SamplerWrapper,
)

from reuseloader import FromDataset, ReusePolicy
from reuseloader.nodes import ReuseMapper, WithEpoch

SIDE = 24  # pixels along the side of a distance field
SCALE = 12  # distances are measured at this many times the resolution

Sample = dict[str, Any]
Batch = dict[str, Tensor]


# --- What is already there: a dataset and a sampler ----------------------------------------------


class DistanceFields(Dataset[Sample]):
    """Digits as the distance of each pixel from the edge of the ink: slow, and always the same."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = digits.images / 16
        self.labels = digits.target

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        side = SIDE * SCALE
        ink = zoom(self.images[index], side / 8, order=1) > 0.5
        distance = distance_transform_edt(ink) - distance_transform_edt(~ink)
        small = distance.reshape(SIDE, SCALE, SIDE, SCALE).mean(axis=(1, 3)) / side
        return {
            "index": index,
            "field": torch.from_numpy(small.astype(np.float32)),
            "label": int(self.labels[index]),
        }


class EpochSampler(RandomSampler):
    """A RandomSampler whose order follows from the seed and the epoch, as in DistributedSampler.

    SamplerWrapper calls `set_epoch` at each pass. Over a bare RandomSampler a graph resumes rightly
    in epoch 0 only, with or without reuse: its generator is not part of SamplerWrapper's state.
    """

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(range(size), generator=torch.Generator())
        self.seed = seed

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as this epoch does."""
        (seed,) = np.random.SeedSequence([self.seed, epoch]).generate_state(1)
        self.generator.manual_seed(int(seed))


DATASET = DistanceFields()  # at module level, so that worker processes of any start method have it


# --- The two graphs ------------------------------------------------------------------------------


def ordinary(args: argparse.Namespace) -> ParallelMapper[Sample]:
    """From the sampler to the samples, without reuse."""
    indices = SamplerWrapper(EpochSampler(args.size, args.seed))
    return ParallelMapper(indices, DATASET.__getitem__, num_workers=args.workers, method="process")


def reusing(args: argparse.Namespace, path: Path) -> ReuseMapper:
    """The same with reuse."""
    indices = WithEpoch(SamplerWrapper(EpochSampler(args.size, args.seed)))
    return ReuseMapper(
        indices, FromDataset(DATASET), path, args.policy, num_workers=args.workers, method="process"
    )


def batched(samples: BaseNode[Sample], args: argparse.Namespace) -> Loader[Batch]:
    """The rest, the same for both."""
    batches = Batcher(samples, args.batch_size, drop_last=False)
    return Loader(Prefetcher(Mapper(batches, default_collate), prefetch_factor=2))


# --- The comparison ------------------------------------------------------------------------------


def timed_pass(loader: Loader[Batch]) -> tuple[list[Batch], float]:
    """All batches of the next epoch, and the seconds they took."""
    start = time.perf_counter()
    batches = list(loader)
    return batches, time.perf_counter() - start


def require_equal(what: str, one: Sequence[Batch], other: Sequence[Batch], *names: str) -> None:
    """End with an error unless these fields of all batches are equal, bit for bit."""
    if len(one) != len(other):
        raise SystemExit(f"FAILED: {what}: {len(one)} batches against {len(other)}")
    for number, (left, right) in enumerate(zip(one, other, strict=True)):
        for name in names:
            if not torch.equal(left[name], right[name]):
                raise SystemExit(f"FAILED: {what}: batch {number} differs in {name!r}")


def compare(args: argparse.Namespace, path: Path) -> list[list[Batch]]:
    """Run both graphs over all epochs, in turns; returns what the one with reuse delivered."""
    delivered, relative = [], []
    with reusing(args, path) as samples:
        plain_loader, loader = batched(ordinary(args), args), batched(samples, args)
        print("epoch  ordinary  reusing")
        for epoch in range(args.epochs):
            plain, plain_seconds = timed_pass(plain_loader)
            reused, seconds = timed_pass(loader)
            print(f"{epoch:5}  {plain_seconds:6.2f} s  {seconds:5.2f} s")
            require_equal(f"order in epoch {epoch}", plain, reused, "index", "label")
            require_equal(f"samples in epoch {epoch}", plain, reused, "field")
            delivered.append(reused)
            relative.append(seconds / plain_seconds)
    print(f"indices and labels: equal, in the same order, in all {args.epochs} epochs")
    print("samples: equal bit for bit")
    print(
        f"time: a steady epoch takes {statistics.median(relative[1:]):.2f} of an ordinary one "
        f"(lifetime {args.lifetime})"
    )
    return delivered


def resume(args: argparse.Namespace, path: Path, expected: list[list[Batch]]) -> None:
    """Stop in the middle of epoch 1, go on in a new graph, and compare with what is expected."""
    stop = len(expected[1]) // 2
    with reusing(args, path) as samples:
        loader = batched(samples, args)
        list(loader)  # epoch 0
        before = list(islice(loader, stop))
        state = json.dumps(loader.state_dict())

    with reusing(args, path) as samples:
        loader = batched(samples, args)
        loader.load_state_dict(json.loads(state))
        after = list(loader)
        following = list(loader)
    names = "index", "label", "field"
    require_equal("resumed epoch", before + after, expected[1], *names)
    require_equal("epoch after the resumed one", following, expected[2], *names)
    print(
        f"resume: stopped after batch {stop} of {len(expected[1])} of epoch 1, went on from "
        f"{len(state)} bytes of JSON; the rest of it and epoch 2 are equal bit for bit"
    )


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Compare a torchdata.nodes pipeline with and without reuse.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--lifetime", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5, help="at least 3")
    parser.add_argument("--size", type=int, default=320, help="how many of the digits")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2, help="processes, at least 1")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    args = parser.parse_args()
    if args.epochs < 3:
        parser.error(f"--epochs must be at least 3, got {args.epochs}")
    if args.workers < 1:
        parser.error(f"--workers must be at least 1, got {args.workers}")
    args.policy = ReusePolicy(args.lifetime, args.seed)
    return args


def main() -> None:
    """Compare, then stop and resume."""
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="reuseloader-") as scratch:
        expected = compare(args, Path(scratch, "compared"))
        resume(args, Path(scratch, "resumed"), expected)


if __name__ == "__main__":
    main()
