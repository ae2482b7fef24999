"""The first and the last line of a script, and what it counts."""

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

_SHOWN = 20  # faults of a kind that are printed


def arguments(doc: str | None, **defaults: int) -> argparse.Namespace:
    """``--seed`` and what else has a default, from the command line; says what repeats the run."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=style)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    again = " ".join(f"--{name} {value}" for name, value in vars(chosen).items())
    print(f"{Path(sys.argv[0]).name} {again}", flush=True)
    return chosen


class Report:
    """Figures of a run, and counts of what must not happen."""

    def __init__(self, *faults: str) -> None:
        self.figures: Counter[str] = Counter()
        self.faults = Counter(dict.fromkeys(faults, 0))
        self._start = time.monotonic()

    def count(self, name: str, by: int = 1) -> None:
        """Add to a figure."""
        self.figures[name] += by

    def fault(self, name: str, text: object) -> None:
        """Something is wrong: count it, and show the first of its kind."""
        self.faults[name] += 1
        if self.faults[name] <= _SHOWN:
            print(f"FAULT, {name}: {text}", flush=True)

    def expect(self, good: bool, name: str, text: object) -> None:
        """A fault unless ``good``."""
        if not good:
            self.fault(name, text)

    def add(self, other: "Report") -> None:
        """Take over what another process has counted."""
        self.figures.update(other.figures)
        self.faults.update(other.faults)

    def finish(self) -> int:
        """Print the last line; return the exit code."""
        counts = [f"{n} {name}" for name, n in [*self.figures.items(), *self.faults.items()]]
        verdict = "WRONG" if self.faults.total() else "right"
        seconds = time.monotonic() - self._start
        print(f"{verdict}: {', '.join(counts)}; {seconds:.0f} s", flush=True)
        return 1 if self.faults.total() else 0
