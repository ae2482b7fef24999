"""A difficulty that grows from epoch to epoch, and every input of the training replayed exactly.

    python examples/curriculum.py

The digits are distorted a little more in every epoch, by a table. A stored sample is used for
several epochs, so which entry is its own? That of ``key.first_epoch``, the epoch its generation was
built for. It is part of the closed form: a sample that is lost and built again in mid-life, or in a
run that starts later, gets the same strength and the same random numbers. (A setting of the cheap
part in ``finish``, which runs at every use, is looked up with ``key.epoch`` instead.)

The training is run once, and then replayed: from an empty directory with other workers; from a
later epoch, on the directory as the first run left it; and from a later epoch with nothing stored
at all. The checksums of all batches must be equal, and the weights after the replay of the whole.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.ndimage import gaussian_filter, map_coordinates, zoom
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher

from reuseloader import ReuseKey, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

SIDE = 32  # pixels along the side of a prepared image
STRENGTH = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)  # by epoch: pixels of the 8 x 8 original

Batch = dict[str, Tensor]

DIGITS = load_digits()  # at module level, so that worker processes of any start method have it


# --- The preparation -----------------------------------------------------------------------------


def strength_in(epoch: int) -> float:
    """The table of the curriculum; its last entry holds for all later epochs."""
    return STRENGTH[min(epoch, len(STRENGTH) - 1)]


def build(key: ReuseKey) -> dict[str, Any]:
    """One digit, distorted as much as its generation's first epoch asks for."""
    rng = key.rng()
    strength = strength_in(key.first_epoch)
    large = zoom(DIGITS.images[key.index] / 16, SIDE / 8, order=1)
    warp = gaussian_filter(rng.uniform(-1, 1, (2, SIDE, SIDE)), (0, SIDE / 10, SIDE / 10))
    warp *= strength * (SIDE / 8) / np.abs(warp).max()
    image = map_coordinates(large, np.mgrid[:SIDE, :SIDE] + warp, order=1)
    return {
        "image": torch.from_numpy(image.astype(np.float32)),
        "label": int(DIGITS.target[key.index]),
        "strength": strength,
    }


# --- One run -------------------------------------------------------------------------------------


class Epoch(NamedTuple):
    """What is remembered of an epoch."""

    checksums: list[str]  # one a batch
    strengths: Tensor  # one a sample
    loss: float


def run(
    path: Path,
    args: argparse.Namespace,
    *,
    start_epoch: int = 0,
    workers: int = 0,
    method: str = "thread",
) -> tuple[list[Epoch], str]:
    """Train from ``start_epoch`` to the end; returns the epochs and a checksum of the weights."""
    policy = ReusePolicy(args.lifetime, args.seed)
    pairs = ReuseSampler(args.size, policy, start_epoch=start_epoch)
    with ReuseMapper(
        pairs,
        build,
        path,
        policy,
        size=args.size,
        fingerprint=f"{SIDE} pixels, {STRENGTH}",  # another table, other samples
        num_workers=workers,
        method=method,
    ) as samples:
        batches = Mapper(Batcher(samples, args.batch_size, drop_last=False), default_collate)
        loader = Loader(Prefetcher(batches, prefetch_factor=2))
        torch.manual_seed(args.seed)
        network = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        epochs = [train(network, optimizer, loader) for _ in range(start_epoch, args.epochs)]
    return epochs, checksum(network.state_dict().values())


def train(network: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> Epoch:
    """One epoch."""
    checksums, strengths, losses = [], [], []
    for batch in batches:
        checksums.append(checksum(batch.values()))
        strengths.append(batch["strength"])
        loss = nn.functional.cross_entropy(network(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Epoch(checksums, torch.cat(strengths), float(np.mean(losses)))


def checksum(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the bytes of some tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


# --- The comparison ------------------------------------------------------------------------------


def print_epochs(epochs: list[Epoch]) -> None:
    """How the strength of what is delivered follows the table, at most a lifetime behind."""
    print("epoch  table  delivered: mean, range     loss")
    for number, epoch in enumerate(epochs):
        low, mean, high = (f(epoch.strengths).item() for f in (torch.min, torch.mean, torch.max))
        print(
            f"{number:5}  {strength_in(number):5.2f}  {mean:9.2f}, {low:.2f} to {high:.2f}"
            f"  {epoch.loss:7.3f}"
        )


def require_equal(what: str, replayed: list[Epoch], epochs: list[Epoch]) -> None:
    """End with an error unless a replay's batches equal the first run's of the same epochs."""
    start_epoch = len(epochs) - len(replayed)
    for number, (mine, theirs) in enumerate(
        zip(replayed, epochs[start_epoch:], strict=True), start_epoch
    ):
        if mine.checksums != theirs.checksums:
            raise SystemExit(f"FAILED: {what}: the batches of epoch {number} differ")
    batches = sum(len(epoch.checksums) for epoch in replayed)
    print(
        f"{what}: all {batches} batches of epochs {start_epoch} to {len(epochs) - 1} are equal "
        f"bit for bit"
    )


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train with a growing difficulty, and replay it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--lifetime", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--replay-from", type=int, help="epoch; by default half way")
    parser.add_argument("--size", type=int, default=480, help="how many of the digits")
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.replay_from is None:
        args.replay_from = args.epochs // 2
    if not 0 <= args.replay_from < args.epochs:
        parser.error(f"--replay-from must be from 0 to {args.epochs - 1}, got {args.replay_from}")
    return args


def main() -> None:
    """Train, then replay in three ways."""
    args = parse_args()
    torch.set_num_threads(1)  # the same sums in every run
    with tempfile.TemporaryDirectory(prefix="reuseloader-") as scratch:
        first = Path(scratch, "first")
        epochs, weights = run(first, args, workers=2, method="process")
        print_epochs(epochs)

        replayed, replayed_weights = run(Path(scratch, "second"), args, workers=3)
        require_equal("replay from an empty directory, other workers", replayed, epochs)
        if replayed_weights != weights:
            raise SystemExit("FAILED: the weights after the replay differ")
        print("weights after that replay: equal bit for bit")

        later = args.replay_from
        replayed, _ = run(first, args, start_epoch=later, workers=2, method="process")
        require_equal("replay from a later epoch, directory of the first run", replayed, epochs)
        replayed, _ = run(Path(scratch, "third"), args, start_epoch=later)
        require_equal("replay from a later epoch, empty directory", replayed, epochs)


if __name__ == "__main__":
    main()
