"""Train on handwritten digits, with every prepared sample used for 1, 2 and 4 epochs.

    python examples/digits.py

The data are scikit-learn's 1797 real digits of 8 x 8 pixels. Preparing one for training is slow and
random: it is rendered large, distorted elastically, scaled down to 24 x 24 and given noise, which
takes some milliseconds, many times as long as the training step. The network sees only a few
hundred digits in training, so it matters how often they are distorted anew: this is where reuse
could cost accuracy. The run shows both sides of the bargain:

- a steady epoch of lifetime 4 builds a quarter of the samples and takes little more than a quarter
  of the time of one without reuse (lifetime 1); epoch 0 builds everything at any lifetime;
- after the same number of built samples, the runs that reuse have trained for more epochs and are
  ahead in test accuracy. After the same number of epochs no lifetime is clearly ahead here: another
  ``--seed`` moves these accuracies by a point or two. What a long lifetime costs shows later:
  ``--epochs 50 --lifetime 1 8 32`` ended with 95.4, 94.3 and 93.3 %.

``--loader nodes`` is a torchdata.nodes graph, ``--loader dataloader`` a torch DataLoader. Both
deliver the same samples in the same order, whatever the number and kind of workers, so that the
accuracies of a run do not depend on these options. All networks start with the same weights. The
runs take turns, epoch by epoch, so that other load on the machine hits them alike.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter, map_coordinates, zoom
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher
from tqdm import tqdm

from reuseloader import ReuseDataLoader, ReuseKey, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

SIDE = 24  # pixels along the side of a prepared image
SCALE = 8  # it is distorted at this many times the resolution
FINGERPRINT = f"digits {SIDE} x {SCALE}, 1"  # what a sample depends on; change it with `distort`


# --- The preparation -----------------------------------------------------------------------------


def distort(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn, shear and warp an 8 x 8 image and add noise: float32, SIDE x SIDE, about 0 to 1."""
    side = SIDE * SCALE
    large = zoom(image, side / 8, order=1)

    # Simard et al. (2003): a smoothed field of random displacements, here for rows and columns
    warp = gaussian_filter(rng.uniform(-1, 1, (2, side, side)), (0, side / 10, side / 10))
    warp *= 0.03 * side / warp.std()

    linear = np.eye(2) + rng.normal(0, 0.1, (2, 2))
    shift = rng.normal(0, 0.03 * side, (2, 1, 1))
    centred = np.mgrid[:side, :side] - (side - 1) / 2
    source = np.einsum("ij,jrc->irc", linear, centred) + (side - 1) / 2 + shift + warp

    warped = map_coordinates(large, source, order=1)
    small = warped.reshape(SIDE, SCALE, SIDE, SCALE).mean(axis=(1, 3))
    return (small + rng.normal(0, 0.1, small.shape)).astype(np.float32)


@dataclass(frozen=True)
class Build:
    """The build function: the key of a sample -> the sample.

    An instance of a module-level class, so that worker processes of any start method can have it.
    """

    images: np.ndarray
    labels: np.ndarray

    def __call__(self, key: ReuseKey) -> tuple[Tensor, int]:
        """Prepare digit ``key.index``; all that is random comes from the key."""
        image = distort(self.images[key.index], key.rng())
        return torch.from_numpy(image)[None], int(self.labels[key.index])


# --- The two loaders -----------------------------------------------------------------------------

Batches = Iterable[tuple[Tensor, Tensor]]
Counting = ReuseMapper | ReuseDataLoader  # its stats() count builds and hits


def nodes_loader(
    build: Build, path: Path, lifetime: int, args: argparse.Namespace
) -> tuple[Batches, Counting]:
    """The torchdata.nodes graph: each pass over it is the next epoch."""
    policy = ReusePolicy(lifetime, args.seed)
    pairs = ReuseSampler(args.train_size, policy)
    samples = ReuseMapper(
        pairs,
        build,
        path,
        policy,
        size=args.train_size,
        fingerprint=FINGERPRINT,
        num_workers=args.workers,
        method=args.method,
    )
    batches = Batcher(samples, args.batch_size, drop_last=False)
    return Loader(Prefetcher(Mapper(batches, default_collate), prefetch_factor=4)), samples


def data_loader(
    build: Build, path: Path, lifetime: int, args: argparse.Namespace
) -> tuple[Batches, Counting]:
    """The same with a torch DataLoader."""
    loader = ReuseDataLoader(
        build,
        args.train_size,
        path,
        lifetime=lifetime,
        seed=args.seed,
        fingerprint=FINGERPRINT,
        shuffle=True,
        batch_size=args.batch_size,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    return loader, loader


LOADERS = {"nodes": nodes_loader, "dataloader": data_loader}


# --- Training ------------------------------------------------------------------------------------


def new_network(seed: int) -> nn.Module:
    """A small convolutional network, always with the same initial weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@dataclass
class Run:
    """The training at one lifetime, and what was measured at the end of each of its epochs."""

    lifetime: int
    loader: Batches
    samples: Counting
    network: nn.Module
    fresh: bool  # no samples of an earlier run were there
    seconds: list[float] = field(default_factory=list)  # of the epoch, evaluation left out
    built: list[int] = field(default_factory=list)  # samples since the start
    accuracy: list[float] = field(default_factory=list)  # on the test digits, in percent

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3)
        # the weights averaged over the last epoch or so are what is tested: they jump about less
        self.averaged = AveragedModel(self.network, multi_avg_fn=get_ema_multi_avg_fn(0.95))

    def train_epoch(self, test_images: Tensor, test_labels: Tensor) -> None:
        """One pass over the training digits, then one over the test digits."""
        start = time.perf_counter()
        for images, labels in self.loader:
            loss = nn.functional.cross_entropy(self.network(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.averaged.update_parameters(self.network)
        self.seconds.append(time.perf_counter() - start)
        self.built.append(self.samples.stats().builds)

        with torch.no_grad():
            guesses = self.averaged(test_images).argmax(dim=1)
        self.accuracy.append(100 * (guesses == test_labels).double().mean().item())

    @property
    def wall_time(self) -> np.ndarray:
        """Seconds of training since the start, at the end of each epoch."""
        return np.cumsum(self.seconds)

    def seconds_to(self, target: float) -> float | None:
        """When the test accuracy first was ``target`` percent, or None if it never was."""
        reached = (at for at, a in zip(self.wall_time, self.accuracy, strict=True) if a >= target)
        return next(reached, None)


def train_all(args: argparse.Namespace) -> list[Run]:
    """Train at every lifetime, taking turns by epochs."""
    digits = load_digits()
    train_images, test_images, train_labels, test_labels = train_test_split(
        digits.images / 16,
        digits.target,
        train_size=args.train_size,
        stratify=digits.target,
        random_state=0,  # the split is the same whatever --seed is
    )
    # the test digits are only scaled, once for all
    scaled = zoom(test_images, (1, SIDE / 8, SIDE / 8), order=1).astype(np.float32)
    test = torch.from_numpy(scaled)[:, None], torch.from_numpy(test_labels)

    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reuseloader-")))
        cache = args.cache or scratch
        runs = []
        for lifetime in args.lifetime:
            build = Build(train_images, train_labels)
            # each lifetime needs a directory of its own, or they overwrite each other's samples
            path = cache / f"lifetime-{lifetime}"
            fresh = not any(path.glob("*.pt"))
            loader, samples = LOADERS[args.loader](build, path, lifetime, args)
            stack.enter_context(samples)  # closed in the end: the workers go
            runs.append(Run(lifetime, loader, samples, new_network(args.seed), fresh))

        with tqdm(total=args.epochs * len(runs), unit="epoch", desc="training") as bar:
            for _ in range(args.epochs):
                for run in runs:
                    run.train_epoch(*test)
                    progress = f"lifetime {run.lifetime}: {run.accuracy[-1]:.1f} %"
                    bar.set_postfix_str(progress, refresh=False)
                    bar.update()
    return runs


# --- The outcome ---------------------------------------------------------------------------------


def check_builds(runs: Sequence[Run], args: argparse.Namespace) -> None:
    """The builds counted must be those of the closed form, epoch by epoch.

    With samples of an earlier run in ``--cache`` there may be fewer.
    """
    for run in runs:
        policy = ReusePolicy(run.lifetime, args.seed)
        due = np.cumsum([policy.builds(epoch, args.train_size) for epoch in range(args.epochs)])
        if np.any(run.built > due) or (run.fresh and np.any(run.built < due)):
            raise SystemExit(
                f"FAILED: lifetime {run.lifetime} built {run.built} samples by the end of each "
                f"epoch; by the closed form it is {due.tolist()}"
            )


def print_outcome(runs: Sequence[Run], args: argparse.Namespace) -> None:
    """A table with a row per lifetime, and what it comes to."""
    base = runs[0]
    relative = {}
    print(
        "\n          steady epochs (all but epoch 0)         whole run\n"
        "lifetime  s/epoch  relative  builds    hits  |   builds    hits  final acc.  "
        f"s to {args.target:g} %"
    )
    for run in runs:
        steady_builds = (run.built[-1] - run.built[0]) / (args.epochs - 1)
        # neighbours in time are compared, so that load that comes and goes cancels
        pairs = zip(run.seconds[1:], base.seconds[1:], strict=True)
        relative[run.lifetime] = statistics.median(own / other for own, other in pairs)
        reached = run.seconds_to(args.target)
        print(
            f"{run.lifetime:8}  {statistics.median(run.seconds[1:]):7.3f}"
            f"  {relative[run.lifetime]:8.2f}  {steady_builds:6.0f}"
            f"  {args.train_size - steady_builds:6.0f}  |"
            f"  {run.built[-1]:7}  {run.samples.stats().hits:6}"
            f"  {run.accuracy[-1]:7.1f} %   {'never' if reached is None else f'{reached:.1f}':>8}"
        )

    longest = max(runs, key=lambda run: run.lifetime)
    print(
        f"\nspeed: a steady epoch at lifetime {longest.lifetime} costs "
        f"{relative[longest.lifetime]:.2f} of one at lifetime {base.lifetime}"
    )
    common = min(run.built[-1] for run in runs)
    at_common = [f"{accuracy_at(run, common):.1f} % (lifetime {run.lifetime})" for run in runs]
    print(f"test accuracy at equal builds, {common} samples: {', '.join(at_common)}")


def accuracy_at(run: Run, built: int) -> float:
    """The test accuracy after so many built samples, interpolated between epochs."""
    return float(np.interp(built, run.built, run.accuracy))


def draw(runs: Sequence[Run], args: argparse.Namespace) -> None:
    """Test accuracy over wall time and over built samples, as a PNG."""
    figure = Figure(figsize=(11, 4.5), dpi=110, layout="constrained")
    by_time, by_builds = figure.subplots(1, 2, sharey=True)
    for run in runs:
        label = f"lifetime {run.lifetime}" + (" (no reuse)" if run.lifetime == 1 else "")
        by_time.plot(run.wall_time, run.accuracy, marker=".", label=label)
        by_builds.plot(run.built, run.accuracy, marker=".", label=label)
    common = min(run.built[-1] for run in runs)
    by_builds.axvline(common, color="grey", linestyle=":", label=f"equal builds: {common}")
    late = [accuracy for run in runs for accuracy in run.accuracy[args.epochs // 6 :]]
    by_time.set(
        title=f"Test accuracy over time: {args.epochs} epochs of {args.train_size} digits",
        xlabel="wall time of training (s)",
        ylabel="test accuracy (%)",
        ylim=(min(late) - 5, max(late) + 2),  # the first epochs lie far below
    )
    by_builds.set(title="Test accuracy over preparation, the same runs", xlabel="samples built")
    for axes in (by_time, by_builds):
        axes.axhline(args.target, color="grey", linestyle="--", label=f"target: {args.target:g} %")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    figure.savefig(args.out)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train on digits, with every prepared sample used for several epochs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--lifetime", type=int, nargs="+", default=[1, 2, 4], metavar="L")
    parser.add_argument("--epochs", type=int, default=18, help="of each lifetime, at least 2")
    parser.add_argument("--loader", choices=LOADERS, default="nodes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--method", choices=["thread", "process"], default="process", help="for --loader nodes"
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=16,
        help="with a multiple of the lifetime all batches build the same number of samples",
    )
    parser.add_argument("--train-size", type=int, default=256, help="digits to train on")
    parser.add_argument("--seed", type=int, default=0, help="of samples, order and weights")
    parser.add_argument("--target", type=float, default=91.0, help="test accuracy in percent")
    parser.add_argument("--out", type=Path, default=Path("digits.png"), help="the plot")
    parser.add_argument(
        "--cache", type=Path, help="where samples are kept; a temporary directory if not given"
    )
    args = parser.parse_args()
    args.lifetime = sorted(set(args.lifetime))
    if args.epochs < 2:
        parser.error(f"--epochs must be at least 2 (epoch 0 builds everything), got {args.epochs}")
    return args


def main() -> None:
    """Train, compare, draw."""
    args = parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the cores are for the workers; also the same sums on every machine
    runs = train_all(args)
    check_builds(runs, args)
    print_outcome(runs, args)
    draw(runs, args)
    print(f"plot: {args.out}")


if __name__ == "__main__":
    main()
