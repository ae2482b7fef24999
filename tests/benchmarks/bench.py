"""What the benchmarks share: arguments, interleaved timing, the machine in words, a report."""

import argparse
import json
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from os import sched_getaffinity
from pathlib import Path
from statistics import median
from typing import Any

PACKAGES = ("torch", "torchdata", "numpy", "lmdb")


class Beside:
    """What a case is compared with: the quickest of these other cases, by their names."""

    def __init__(self, *cases: str, target: float | None = None, ideal: float = 1.0) -> None:
        self.cases = cases
        self.target = target  # the largest ratio to be content with
        self.ideal = ideal  # the ratio is to this much of the other's time


@dataclass(frozen=True)
class Case:
    """Something to time, and what it is compared with."""

    run: Callable[[], object]
    beside: Sequence[Beside] = ()
    per: int = 1  # how many of what is timed a run does
    before: Callable[[], object] | None = None  # called before each run, not timed


@dataclass(frozen=True)
class Figure:
    """A line of a report; times in seconds."""

    name: str
    median: float
    low: float
    high: float
    ratio: float | None = None
    target: float | None = None
    against: str = ""

    @property
    def verdict(self) -> str:
        """The target and whether it was met."""
        if self.target is None or self.ratio is None:
            return ""
        return f"<= {self.target:.3g} {'ok' if self.ratio <= self.target else 'MISSED'}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The line in words."""
        spread = f"{duration(self.low)} .. {duration(self.high)}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return self.name, duration(self.median), spread, ratio, self.verdict, self.against


HEAD = ("case", "median", "min .. max", "ratio", "target", "against")


def arguments(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """The command line: an option for each default, of its type, and ``--json``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        kind = type(default[0]) if isinstance(default, tuple) else type(default)
        several = "+" if isinstance(default, tuple) else None
        parser.add_argument(
            f"--{name}", type=kind, nargs=several, default=default, help=f"default {default}"
        )
    parser.add_argument("--json", type=Path, help="a file to append the figures to")
    return parser.parse_args()


def machine(packages: Iterable[str] = ()) -> str:
    """The processor, the cores this process may use, the versions, and the command."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor()
    versions = [f"Python {platform.python_version()}", *map(versioned, [*PACKAGES, *packages])]
    return (
        f"{model}, {len(sched_getaffinity(0))} cores, {platform.system()} {platform.machine()}\n"
        f"{', '.join(versions)}\n"
        f"python {shlex.join(sys.argv)}"
    )


def versioned(package: str) -> str:
    """A package with the version that is installed."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def measure(cases: dict[str, Case], rounds: int) -> list[Figure]:
    """Each case in each round: the cases take turns, after a round not counted.

    What else the machine does in the meantime so falls on all of them. A ratio is the median of
    the rounds' ratios.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for count in range(rounds + 1):
        for name, case in cases.items():
            if case.before is not None:
                case.before()
            start = time.perf_counter()
            case.run()
            took = (time.perf_counter() - start) / case.per
            if count:
                seconds[name].append(took)
    return [line for name, case in cases.items() for line in lines_of(name, case, seconds)]


def lines_of(name: str, case: Case, seconds: dict[str, list[float]]) -> Iterator[Figure]:
    """A line for each comparison of a case, from the seconds of all cases."""
    own = seconds[name]
    times = median(own), min(own), max(own)
    for beside in case.beside:
        other = min(beside.cases, key=lambda rival: median(seconds[rival]))
        ratio = median(a / (b * beside.ideal) for a, b in zip(own, seconds[other], strict=True))
        label = other if beside.ideal == 1 else f"{other} x {beside.ideal:.3g}"
        yield Figure(name, *times, ratio, beside.target, label)
    if not case.beside:
        yield Figure(name, *times)


def report(figures: Sequence[Figure], json_file: Path | None = None) -> None:
    """Print the figures as a table; append them to ``json_file``."""
    print(aligned([HEAD, *(line.cells for line in figures)]), flush=True)
    if json_file is not None:
        with json_file.open("a") as file:
            file.writelines(json.dumps(asdict(line)) + "\n" for line in figures)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns: the first and the last two to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 0 < number < last - 1 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"
