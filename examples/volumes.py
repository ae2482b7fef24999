"""MRI volumes: patches deformed by TorchIO, under a DataLoader, with fresh noise at every use.

    pip install -e '.[volumes]'
    python examples/volumes.py

The volume is a real scan of a head that nibabel brings along. A small network learns to remove
noise from patches of its front half, at lifetimes 1 (no reuse) and 4; it is tested on the back.

`build`, the expensive part, is reused: TorchIO's affine, elastic and bias field transforms. The
noise is cheap, and is the `finish`, which runs at every use. TorchIO draws from torch's global
random state, so both are put under `ReuseKey.seeded`, `build` with the seed of the sample, `finish`
with that of the use. The two runs take turns, epoch by epoch: other load hits them alike. At last
the loader itself reports what it did, and what other lifetimes would cost.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK
import torch
import torchio as tio
from torch import Tensor, nn
from tqdm import tqdm

from reuseloader import ReuseDataLoader, ReuseKey

REGION = (48, 48, 24)  # voxels that are deformed
PATCH = (24, 24, 16)  # voxels that are left of them, so that no border shows


# --- The samples ---------------------------------------------------------------------------------


def regions() -> tuple[Tensor, Tensor]:
    """Overlapping regions of the front and of the back half: float32, number x 1 x REGION."""
    path = Path(nibabel.__file__).parent / "tests" / "data" / "example4d.nii.gz"
    scan = np.asarray(nibabel.load(path).dataobj[..., 0], dtype=np.float32)  # 128 x 96 x 24
    scan /= scan.std()
    halves = []
    for start in 12, 68:  # there is nothing but air before and after
        corners = product(range(start, start + 56 - REGION[0] + 1, 4), range(0, 49, 4))
        cut = [scan[None, x : x + REGION[0], y : y + REGION[1]] for x, y in corners]
        halves.append(torch.from_numpy(np.stack(cut)))
    return halves[0], halves[1]


def central(region: Tensor) -> Tensor:
    """The middle of a region: ... x PATCH."""
    low = [(whole - part) // 2 for whole, part in zip(REGION, PATCH, strict=True)]
    x, y, z = (slice(at, at + part) for at, part in zip(low, PATCH, strict=True))
    return region[..., x, y, z]


# at module level, so that worker processes of any start method have it
SimpleITK.ProcessObject.SetGlobalDefaultNumberOfThreads(1)  # TorchIO's engine; workers are enough
FRONT, BACK = regions()
DEFORM = tio.Compose(
    [
        tio.RandomAffine(scales=0.1, degrees=15),
        tio.RandomElasticDeformation(num_control_points=5, max_displacement=(4, 4, 2)),
        tio.RandomBiasField(0.3),
    ]
)
NOISE = tio.RandomNoise(std=(0.2, 0.5))


def build(key: ReuseKey) -> Tensor:
    """A deformed patch."""
    with key.seeded():
        return central(DEFORM(FRONT[key.index % len(FRONT)])).contiguous()


def finish(patch: Tensor, key: ReuseKey) -> tuple[Tensor, Tensor]:
    """The patch with noise and without."""
    with key.seeded(key.use_seed):
        return NOISE(patch), patch


# --- The same training with and without reuse ----------------------------------------------------


class Denoiser(nn.Module):
    """Subtracts the noise that it finds: any shape batch x 1 x X x Y x Z."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = nn.Sequential(
            nn.Conv3d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(8, 1, 3, padding=1),
        )

    def forward(self, noisy: Tensor) -> Tensor:
        """The patch without noise, as far as it can be told."""
        return noisy - self.noise(noisy)


class Run:
    """The training at one lifetime."""

    def __init__(self, lifetime: int, scratch: Path, args: argparse.Namespace) -> None:
        self.loader = ReuseDataLoader(
            build,
            args.size,
            scratch / f"lifetime-{lifetime}",
            lifetime=lifetime,
            seed=args.seed,
            finish=finish,
            format="tensors",
            shuffle=True,
            batch_size=8,
            num_workers=2,
            persistent_workers=True,
        )
        torch.manual_seed(args.seed)
        self.network = Denoiser()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-3)
        self.seconds: list[float] = []

    def train_epoch(self) -> None:
        """One pass over the patches."""
        start = time.perf_counter()
        for noisy, clean in self.loader:
            loss = nn.functional.mse_loss(self.network(noisy), clean)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)

    @property
    def error(self) -> float:
        """Root mean square error in the back half, in parts of that of the noise."""
        clean = central(BACK)
        noise = 0.3 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            left = self.network(clean + noise) - clean
        return (left.square().mean() / noise.square().mean()).sqrt().item()


def compare(runs: Sequence[Run], args: argparse.Namespace) -> None:
    """Train all in turns, then print what it took; the builds must be those of the closed form."""
    for _ in tqdm(range(args.epochs), unit="epoch", desc="training"):
        for run in runs:
            run.train_epoch()
    print("lifetime  s in epoch 0  s in a steady epoch  builds   hits  noise that is left")
    for run in runs:
        policy, stats = run.loader.policy, run.loader.stats()
        due = sum(policy.builds(epoch, args.size) for epoch in range(args.epochs))
        if stats.builds != due:
            raise SystemExit(
                f"FAILED: built {stats.builds} samples; by the closed form it is {due}"
            )
        print(
            f"{policy.lifetime:8}  {run.seconds[0]:12.2f}"
            f"  {statistics.median(run.seconds[1:]):19.2f}  {stats.builds:6}"
            f"  {stats.hits:5}  {100 * run.error:16.1f} %"
        )
    # neighbours in time are compared, so that load that comes and goes cancels
    pairs = zip(runs[-1].seconds[1:], runs[0].seconds[1:], strict=True)
    ratio = statistics.median(own / other for own, other in pairs)
    print(f"a steady epoch at lifetime 4 costs {ratio:.2f} of one without reuse")
    print(f"\n{runs[-1].loader.report()}")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Denoise MRI, with and without reuse.")
    parser.add_argument("--epochs", type=int, default=8, help="at least 2; default 8")
    parser.add_argument("--size", type=int, default=64, help="patches to train on; default 64")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error(f"--epochs must be at least 2, got {args.epochs}")
    return args


def main() -> None:
    """Train, compare."""
    args = parse_args()
    torch.set_num_threads(1)  # the cores are for the workers
    with tempfile.TemporaryDirectory(prefix="reuseloader-") as scratch, ExitStack() as stack:
        runs = [Run(lifetime, Path(scratch), args) for lifetime in (1, 4)]
        for run in runs:
            stack.enter_context(run.loader)
        compare(runs, args)


if __name__ == "__main__":
    main()
