"""A search for inputs that a module has not met yet, guided by the lines that it runs."""

import argparse
import random
import resource
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from common import Report

MEMORY = 32  # MB by which the process may grow


class Ways:
    """Which steps from line to line of a module the inputs have caused."""

    def __init__(self, module: ModuleType) -> None:
        self.steps: set[tuple[int, int]] = set()
        self.new = False
        self._file = module.__file__
        self._last = 0

    def call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        """A tracer of calls, for `sys.settrace`."""
        return self.line if frame.f_code.co_filename == self._file else None

    def line(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        """A tracer of lines."""
        step = self._last, frame.f_lineno
        self._last = frame.f_lineno
        if step not in self.steps:
            self.steps.add(step)
            self.new = True
        return self.line


def memory() -> int:
    """The most that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def search(
    chosen: argparse.Namespace,
    report: Report,
    module: ModuleType,
    inputs: list[bytes],
    changed: Callable[[bytes, random.Random], bytes],
    read: Callable[[bytes, Report], None],
) -> None:
    """Read ``inputs``, and then what changes make of them; keep what takes a new way.

    An exception that ``read`` lets through is a crash.
    """
    rng = random.Random(chosen.seed)
    corpus = list(inputs)
    ways = Ways(module)
    before = memory()
    for number in range(chosen.rounds):
        data = corpus[number] if number < len(inputs) else changed(rng.choice(corpus), rng)
        ways.new = False
        sys.settrace(ways.call)
        try:
            read(data, report)
        except Exception as error:
            report.fault("crashes", f"{type(error).__name__}: {error}, for {data!r}")
        finally:
            sys.settrace(None)
        if ways.new and number >= len(inputs):
            corpus.append(data)
        report.count("rounds")
    grown = memory() - before
    report.count(f"steps of {module.__name__} taken", len(ways.steps))
    report.count("MB that memory grew", grown)
    report.expect(grown <= MEMORY, "too much memory", grown)
