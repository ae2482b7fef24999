"""Samples of different length: digits as sets of points, padded batch by batch.

    python examples/varlen.py

Each of scikit-learn's real digits becomes the list of its ink pixels as points (x, y, ink), turned
and jittered at random, some of them left out: 18 to 39 points, another number in each generation.
Samples are stored as they are, each with its own length; padding is the business of the collate
function, after reading. It is a Mapper behind the Batcher in a torchdata.nodes graph, and the
``collate_fn`` of a ReuseDataLoader: both deliver the same batches, which is checked.

A small network that ignores the padding by a mask learns to read these point sets. (The preparation
is so cheap here that reading a file takes longer. This example is about the form of the samples;
what reuse saves is shown by digits.py.)
"""

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher

from reuseloader import ReuseDataLoader, ReuseKey, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

DIGITS = load_digits()  # at module level, so that worker processes of any start method have it


# --- Samples and batches -------------------------------------------------------------------------


class Sample(NamedTuple):
    """One digit."""

    points: Tensor  # float32, length x 3: x and y from about -1 to 1, ink from 0 to 1
    label: int


class Batch(NamedTuple):
    """Some digits, padded with zeros to the longest."""

    points: Tensor  # float32, batch x longest x 3
    mask: Tensor  # bool, batch x longest: True where there is a point
    labels: Tensor  # int64, batch


def points_of(image: np.ndarray) -> np.ndarray:
    """The ink pixels of an 8 x 8 image as rows (x, y, ink)."""
    row, column = np.nonzero(image)
    return np.column_stack([column / 3.5 - 1, 1 - row / 3.5, image[row, column] / 16])


def build(key: ReuseKey) -> Sample:
    """A digit as points: fewer, moved, and in another order, all by the key's random numbers."""
    rng = key.rng()
    points = points_of(DIGITS.images[key.index])
    points = rng.permutation(points[rng.random(len(points)) < 0.9])
    angle = rng.normal(0, 0.15)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points[:, :2] = points[:, :2] @ turn + rng.normal(0, 0.04, (len(points), 2))
    return Sample(torch.from_numpy(points.astype(np.float32)), int(DIGITS.target[key.index]))


def collate(samples: list[Sample]) -> Batch:
    """Pad a list of samples to a batch."""
    points = nn.utils.rnn.pad_sequence([sample.points for sample in samples], batch_first=True)
    lengths = torch.tensor([len(sample.points) for sample in samples])
    mask = torch.arange(points.shape[1]) < lengths[:, None]
    return Batch(points, mask, torch.tensor([sample.label for sample in samples]))


# --- The network ---------------------------------------------------------------------------------


class PointNetwork(nn.Module):
    """Features of each point, their mean and maximum over the true points, then a classifier."""

    WAVES = 3  # x and y also come as sines and cosines of so many wavelengths

    def __init__(self) -> None:
        super().__init__()
        inputs = 3 + 4 * self.WAVES
        self.features = nn.Sequential(
            nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU()
        )
        self.classifier = nn.Sequential(
            nn.LayerNorm(256), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        """Points (batch x longest x 3) and mask (batch x longest) to logits (batch x 10)."""
        wave_numbers = torch.arange(1, self.WAVES + 1) * torch.pi / 2
        angles = (points[:, :, :2, None] * wave_numbers).flatten(start_dim=2)
        features = self.features(torch.cat([points, angles.sin(), angles.cos()], dim=2))
        real = mask[:, :, None]
        mean = (features * real).sum(dim=1) / real.sum(dim=1)
        highest = features.masked_fill(~real, -torch.inf).amax(dim=1)
        return self.classifier(torch.cat([mean, highest], dim=1))


# --- The two loaders, the training, the comparison -----------------------------------------------


def train(path: Path, args: argparse.Namespace) -> tuple[list[list[Batch]], nn.Module]:
    """Train from a torchdata.nodes graph; returns the batches of each epoch, and the network."""
    torch.manual_seed(args.seed)
    network = PointNetwork()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    policy = ReusePolicy(args.lifetime, args.seed)
    pairs = ReuseSampler(args.size, policy)
    epochs = []
    with ReuseMapper(pairs, build, path, policy, size=args.size, num_workers=2) as samples:
        batches = Mapper(Batcher(samples, args.batch_size, drop_last=False), collate)
        loader = Loader(Prefetcher(batches, prefetch_factor=4))
        for number in range(args.epochs):
            epoch, losses = [], []
            for batch in loader:
                loss = nn.functional.cross_entropy(network(batch.points, batch.mask), batch.labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                epoch.append(batch)
                losses.append(loss.item())
            lengths = torch.cat([batch.mask.sum(dim=1) for batch in epoch])
            padded = 1 - lengths.sum().item() / sum(batch.mask.numel() for batch in epoch)
            print(
                f"epoch {number:2}: {lengths.min()} to {lengths.max()} points, mean "
                f"{lengths.double().mean():.2f}; {padded:.0%} padding; loss {np.mean(losses):.3f}"
            )
            epochs.append(epoch)
    return epochs, network


def compare(path: Path, args: argparse.Namespace, epochs: list[list[Batch]]) -> None:
    """A ReuseDataLoader must deliver the same batches."""
    with ReuseDataLoader(
        build,
        args.size,
        path,
        lifetime=args.lifetime,
        seed=args.seed,
        shuffle=True,
        batch_size=args.batch_size,
        collate_fn=collate,
        num_workers=2,
        persistent_workers=True,
    ) as loader:
        for number, epoch in enumerate(epochs):
            for mine, theirs in zip(loader, epoch, strict=True):
                if not all(map(torch.equal, mine, theirs)):
                    raise SystemExit(f"FAILED: the two loaders differ in epoch {number}")
    print(f"nodes and ReuseDataLoader: equal batches in all {len(epochs)} epochs")


def evaluate(network: nn.Module, args: argparse.Namespace) -> None:
    """Read the digits that were not used for training, undistorted."""
    samples = [
        Sample(torch.from_numpy(points_of(image).astype(np.float32)), int(label))
        for image, label in zip(DIGITS.images[args.size :], DIGITS.target[args.size :], strict=True)
    ]
    test = collate(samples)
    with torch.no_grad():
        right = network(test.points, test.mask).argmax(dim=1) == test.labels
    accuracy = 100 * right.double().mean().item()
    print(f"test accuracy: {accuracy:.1f} % of {len(samples)} digits")
    if accuracy < args.target:
        raise SystemExit(f"FAILED: test accuracy {accuracy:.1f} % is below {args.target:g} %")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train on samples of different length.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--lifetime", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=1000, help="digits to train on, of 1797")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=80.0, help="test accuracy in percent")
    return parser.parse_args()


def main() -> None:
    """Train, compare the loaders, evaluate."""
    args = parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="reuseloader-") as scratch:
        epochs, network = train(Path(scratch, "nodes"), args)
        compare(Path(scratch, "dataloader"), args, epochs)
    evaluate(network, args)


if __name__ == "__main__":
    main()
