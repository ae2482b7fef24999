"""What the benchmarks share: interleaved timing, the machine in words, an aligned table."""

import platform
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import sched_getaffinity
from pathlib import Path
from statistics import median

import numpy as np
import torch


@dataclass(frozen=True)
class Case:
    """Something to time, and the case it is compared with."""

    run: Callable[[], object]
    against: str | None = None  # the name of another case
    target: float | None = None  # the largest ratio of medians to be content with


def machine() -> str:
    """The processor, the cores this process may use, the versions, and the command."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return (
        f"{model}, {len(sched_getaffinity(0))} cores, {platform.system()} {platform.machine()}\n"
        f"{versions}, NumPy {np.__version__}\n"
        f"python {shlex.join(sys.argv)}"
    )


def measure(cases: dict[str, Case], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case in each round: the cases take turns, after a round not counted.

    What else the machine does in the meantime so falls on all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for count in range(rounds + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case.run()
            took = time.perf_counter() - start
            if count:
                seconds[name].append(took)
    return seconds


def table(cases: dict[str, Case], seconds: dict[str, list[float]]) -> str:
    """Median, spread and ratio of medians of each case, in milliseconds."""
    rows = [("case", "median ms", "min .. max", "ratio", "target", "against")]
    for name, case in cases.items():
        took = [1000 * value for value in seconds[name]]
        ratio = target = against = ""
        if case.against is not None:
            of_medians = median(seconds[name]) / median(seconds[case.against])
            ratio, against = f"{of_medians:.2f}", case.against
            if case.target is not None:
                verdict = "ok" if of_medians <= case.target else "MISSED"
                target = f"<= {case.target:g} {verdict}"
        spread = f"{min(took):.1f} .. {max(took):.1f}"
        rows.append((name, f"{median(took):.1f}", spread, ratio, target, against))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    align = (str.ljust, str.rjust, str.rjust, str.rjust, str.ljust, str.ljust)
    return "\n".join(
        "  ".join(side(cell, w) for side, cell, w in zip(align, row, widths, strict=True)).rstrip()
        for row in rows
    )
