"""Train on handwritten digits on several ranks; stop in mid-epoch and go on with more of them.

    torchrun --nproc-per-node 2 examples/ddp.py --cache cache/ddp --checkpoint cache/ddp.pt --stop 2
    torchrun --nproc-per-node 3 examples/ddp.py --cache cache/ddp --checkpoint cache/ddp.pt

The first command trains on 2 ranks for two epochs, and stops in the middle of the third, epoch 2.
The second finds the checkpoint, and its 3 ranks end that epoch and train on. (Without these options
it trains from beginning to end and keeps nothing.)

The ranks share one directory of prepared samples. ``rank`` and ``world_size`` are all that
ReuseSampler has to be told: each rank gets as many batches as the others, and in an epoch it
prepares as many samples as the others, within one. Another number of ranks may take over between
epochs, and within one wherever each rank has used a multiple of ``lifetime`` samples: a batch size
that is a multiple of ``lifetime`` will do. At each epoch's end the ranks compare what they got: no
index may be missing, and none come twice but the few that fill up the last round.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from digits import FINGERPRINT, SIDE, distort, new_network
from scipy.ndimage import zoom
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher

from reuseloader import ReuseKey, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Build:
    """The build function: the key of a sample -> the sample."""

    images: np.ndarray
    labels: np.ndarray

    def __call__(self, key: ReuseKey) -> dict[str, Any]:
        """Prepare digit ``key.index``; all that is random comes from the key."""
        image = distort(self.images[key.index], key.rng())
        label = int(self.labels[key.index])
        return {"index": key.index, "image": torch.from_numpy(image)[None], "label": label}


def rank_samples(build: Build, path: Path, args: argparse.Namespace) -> ReuseMapper:
    """The samples of this rank: each pass over them is the next epoch."""
    policy = ReusePolicy(args.lifetime, args.seed)
    pairs = ReuseSampler(
        args.train_size, policy, rank=dist.get_rank(), world_size=dist.get_world_size()
    )
    return ReuseMapper(
        pairs,
        build,
        path,
        policy,
        size=args.train_size,
        fingerprint=FINGERPRINT,
        num_workers=args.workers,
    )


def gathered(value: Any) -> list[Any]:
    """The value of every rank, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def say(text: str) -> None:
    """Print, on rank 0 alone."""
    if dist.get_rank() == 0:
        print(text, flush=True)


class Training:
    """The network of this rank, kept equal on all by DistributedDataParallel."""

    def __init__(self, samples: ReuseMapper, args: argparse.Namespace) -> None:
        self.samples = samples
        batches = Mapper(Batcher(samples, args.batch_size, drop_last=False), default_collate)
        self.loader: Loader[Batch] = Loader(Prefetcher(batches, prefetch_factor=2))
        self.args = args
        self.network = DistributedDataParallel(new_network(args.seed))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3)
        self.epoch = 0
        self.before: list[int] = []  # what other ranks drew of this epoch before the checkpoint

    def run(self, test_images: Tensor, test_labels: Tensor) -> None:
        """Train to the end, or to the epoch in whose middle to stop."""
        while self.epoch < self.args.epochs:
            stop = self.epoch == self.args.stop
            drawn, built = self.train_epoch(half=stop)
            everything = gathered(drawn)
            self.report(everything, gathered(built))
            self.before += [index for indices in everything for index in indices]
            if stop:
                self.save()
                return
            self.check_complete()
            with torch.no_grad():
                guesses = self.network.module(test_images).argmax(dim=1)
            accuracy = 100 * (guesses == test_labels).double().mean().item()
            say(f"epoch {self.epoch}: complete; test accuracy {accuracy:.1f} %")
            self.epoch, self.before = self.epoch + 1, []

    def train_epoch(self, *, half: bool) -> tuple[list[int], int]:
        """Train on one pass, or on the first half of it; return (indices, number of builds)."""
        drawn: list[int] = []
        built_before = self.samples.stats().builds
        enough = self.args.train_size // dist.get_world_size() // 2
        batches: Iterator[Batch] = iter(self.loader)
        for batch in batches:
            loss = nn.functional.cross_entropy(self.network(batch["image"]), batch["label"])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            drawn += batch["index"].tolist()
            if half and len(drawn) >= enough:
                break
        return drawn, self.samples.stats().builds - built_before

    def report(self, drawn: list[list[int]], built: list[int]) -> None:
        """A line for each rank; builds run ahead of the batches by what is prefetched."""
        for rank, (indices, builds) in enumerate(zip(drawn, built, strict=True)):
            counts = f"{len(indices)} samples, {builds} built, {len(indices) - builds} hits"
            say(f"epoch {self.epoch}, rank {rank}: {counts}")

    def check_complete(self) -> None:
        """End with an error unless the ranks together drew all, and no more than they must."""
        counts = Counter(self.before)
        missing = set(range(self.args.train_size)) - set(counts)
        repeated = counts.total() - len(counts)
        if missing or repeated >= dist.get_world_size():
            raise SystemExit(
                f"FAILED: epoch {self.epoch}: {len(missing)} indices missing, {repeated} repeated"
            )

    def save(self) -> None:
        """Write a checkpoint: all ranks have the same network and the same place in the order."""
        if dist.get_rank() == 0:
            checkpoint = {
                "network": self.network.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "loader": self.loader.state_dict(),
                "epoch": self.epoch,
                "drawn": self.before,
            }
            torch.save(checkpoint, self.args.checkpoint)
        say(f"stopped in epoch {self.epoch}, after {len(self.before)} samples")

    def load(self) -> None:
        """Go on from the checkpoint, with as many ranks as there are now."""
        checkpoint = torch.load(self.args.checkpoint)
        self.network.module.load_state_dict(checkpoint["network"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.loader.load_state_dict(checkpoint["loader"])
        self.epoch, self.before = checkpoint["epoch"], checkpoint["drawn"]
        say(f"going on in epoch {self.epoch}, after {len(self.before)} samples")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train with reuse on several ranks. Run it with torchrun.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--lifetime", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--train-size", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=12, help="of each rank")
    parser.add_argument("--workers", type=int, default=2, help="threads of each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="where prepared samples are kept")
    parser.add_argument("--checkpoint", type=Path, help="gone on from if it exists")
    parser.add_argument("--stop", type=int, help="in the middle of which epoch to stop")
    args = parser.parse_args()
    if args.stop is not None and args.checkpoint is None:
        parser.error("--stop needs --checkpoint")
    if args.batch_size % args.lifetime:
        parser.error(
            "--batch-size must be a multiple of --lifetime, or no other number of ranks "
            "can go on in mid-epoch"
        )
    return args


def main() -> None:
    """Train as one rank of those that torchrun has started."""
    args = parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    digits = load_digits()
    train_images, test_images, train_labels, test_labels = train_test_split(
        digits.images / 16,
        digits.target,
        train_size=args.train_size,
        stratify=digits.target,
        random_state=0,
    )
    scaled = zoom(test_images, (1, SIDE / 8, SIDE / 8), order=1).astype(np.float32)
    test = torch.from_numpy(scaled)[:, None], torch.from_numpy(test_labels)

    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="reuseloader-"))
        path = args.cache or Path(gathered(scratch)[0])  # one for all ranks: that of rank 0
        with rank_samples(Build(train_images, train_labels), path, args) as samples:
            training = Training(samples, args)
            if args.checkpoint and args.checkpoint.exists():
                training.load()
            dist.barrier()  # a checkpoint of this run is none to go on from
            training.run(*test)
        dist.barrier()  # the directory of rank 0 is needed until all have ended
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
