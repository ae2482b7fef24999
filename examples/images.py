"""Photos: JPEG files, decoded and augmented by Kornia, in a torchdata.nodes graph.

    pip install -e '.[images]'
    python examples/images.py

The files are tiles cut out of three real photos that scikit-learn and matplotlib bring along. A
small network learns which photo a tile is from, at lifetimes 1 (no reuse) and 4, and is tested on
tiles from other parts of the photos. (Another ``--seed`` moves these accuracies by ten points.)
Reading a tile is what any image classifier's dataset does: decode, crop, warp, recolour, blur.

Kornia draws from torch's global random state, as torchvision and others do, and the dataset knows
nothing of keys. ``FromDataset(tiles)`` seeds that state for each tile, so that the samples are the
same whichever worker builds them. The two runs take turns, epoch by epoch, so that other load on
the machine hits them alike.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import kornia.augmentation as K  # noqa: N812  # its documentation calls it so
import matplotlib as mpl
import numpy as np
import sklearn
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher
from tqdm import tqdm

from reuseloader import FromDataset, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

TILE, SIDE = 128, 96  # pixels along the side of a tile's file, and of a sample
PHOTOS = [
    Path(sklearn.__file__).parent / "datasets" / "images" / "china.jpg",
    Path(sklearn.__file__).parent / "datasets" / "images" / "flower.jpg",
    Path(mpl.get_data_path()) / "sample_data" / "grace_hopper.jpg",
]

# sums of floats round otherwise with other numbers of threads, and worker processes have one
torch.set_num_threads(1)


# --- The dataset, which knows nothing of reuse ---------------------------------------------------


class Tiles(Dataset[tuple[Tensor, int]]):
    """JPEG files: float32, 3 x SIDE x SIDE, 0 to 1, and the number of the photo."""

    def __init__(self, paths: list[Path], *, augment: bool) -> None:
        self.paths = paths
        self.transform = nn.Sequential(K.Resize((SIDE, SIDE)))
        if augment:
            self.transform = nn.Sequential(
                K.RandomResizedCrop((SIDE, SIDE), scale=(0.3, 1.0)),
                K.RandomHorizontalFlip(),
                K.RandomAffine(degrees=15, shear=10, padding_mode="reflection", p=1.0),
                K.RandomElasticTransform((33, 33), (8.0, 8.0), p=1.0),
                K.ColorJiggle(0.3, 0.3, 0.3, 0.05, p=1.0),
                K.RandomGaussianBlur((5, 5), (0.1, 1.5)),
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index]
        with Image.open(path) as file:
            pixels = torch.from_numpy(np.array(file.convert("RGB")))
        image = pixels.permute(2, 0, 1)[None].float() / 255
        return self.transform(image)[0], int(path.name[0])


def cut(folder: Path) -> tuple[list[Path], list[Path]]:
    """Write the tiles of all photos; returns those left and those right of 60 % of the width."""
    left, right = [], []
    for label, path in enumerate(PHOTOS):
        with Image.open(path) as photo:
            border = photo.width * 3 // 5
            columns = *range(0, border - TILE + 1, 24), *range(border, photo.width - TILE + 1, 24)
            for x, y in product(columns, range(0, photo.height - TILE + 1, 24)):
                tile = folder / f"{label}-{x}-{y}.jpg"
                photo.crop((x, y, x + TILE, y + TILE)).save(tile, quality=90)
                (left if x < border else right).append(tile)
    return left, right


# --- The same training with and without reuse ----------------------------------------------------


class Run:
    """The training at one lifetime."""

    def __init__(self, lifetime: int, tiles: Tiles, scratch: Path, args: argparse.Namespace):
        self.policy = ReusePolicy(lifetime, args.seed)
        self.samples = ReuseMapper(
            ReuseSampler(len(tiles), self.policy),
            FromDataset(tiles),
            scratch / f"lifetime-{lifetime}",
            self.policy,
            size=len(tiles),
            format="tensors",
            num_workers=2,
            method="process",
        )
        batches = Mapper(Batcher(self.samples, 16, drop_last=False), default_collate)
        self.loader = Loader(Prefetcher(batches, prefetch_factor=4))
        torch.manual_seed(args.seed)
        self.network = nn.Sequential(
            *(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(PHOTOS))),
        )
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.seconds: list[float] = []

    def train_epoch(self) -> None:
        """One pass over the tiles."""
        start = time.perf_counter()
        for images, labels in self.loader:
            loss = nn.functional.cross_entropy(self.network(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)

    def accuracy(self, tiles: Tiles) -> float:
        """Percent of these tiles that are said to be of the right photo."""
        images, labels = default_collate(list(tiles))
        with torch.no_grad():
            return 100 * (self.network(images).argmax(1) == labels).double().mean().item()


def compare(runs: Sequence[Run], test: Tiles, args: argparse.Namespace) -> None:
    """Train all in turns, then print what it took; the builds must be those of the closed form."""
    for _ in tqdm(range(args.epochs), unit="epoch", desc="training"):
        for run in runs:
            run.train_epoch()
    print("lifetime  s in epoch 0  s in a steady epoch  builds   hits  test accuracy")
    for run in runs:
        stats = run.samples.stats()
        due = sum(run.policy.builds(epoch, args.size) for epoch in range(args.epochs))
        if stats.builds != due:
            raise SystemExit(
                f"FAILED: built {stats.builds} samples; by the closed form it is {due}"
            )
        print(
            f"{run.policy.lifetime:8}  {run.seconds[0]:12.2f}"
            f"  {statistics.median(run.seconds[1:]):19.2f}  {stats.builds:6}"
            f"  {stats.hits:5}  {run.accuracy(test):11.1f} %"
        )
    # neighbours in time are compared, so that load that comes and goes cancels
    pairs = zip(runs[-1].seconds[1:], runs[0].seconds[1:], strict=True)
    ratio = statistics.median(own / other for own, other in pairs)
    print(f"a steady epoch at lifetime 4 costs {ratio:.2f} of one without reuse")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train on photos, with and without reuse.")
    parser.add_argument("--epochs", type=int, default=12, help="at least 2; default 12")
    parser.add_argument("--size", type=int, default=256, help="tiles to train on; default 256")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error(f"--epochs must be at least 2, got {args.epochs}")
    return args


def main() -> None:
    """Cut the tiles, train, compare."""
    args = parse_args()
    torch.set_num_threads(1)  # the cores are for the workers
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reuseloader-")))
        left, right = cut(scratch)
        tiles = Tiles(random.Random(0).sample(left, args.size), augment=True)
        runs = [Run(lifetime, tiles, scratch, args) for lifetime in (1, 4)]
        for run in runs:
            stack.enter_context(run.samples)  # closed in the end: the workers go
        compare(runs, Tiles(right, augment=False), args)


if __name__ == "__main__":
    main()
