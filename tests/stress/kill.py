"""Kill a run with SIGKILL at a random moment, start again on the same directory, compare.

    python tests/stress/kill.py --rounds 200

Each round runs a loader in a session of its own, and kills a worker of it, or all of it, or its
main process alone, whose workers then go on writing while the next run has begun. Half of the kills
wait for a process that is just writing a file. All rounds share one directory, whatever their
format. Every sample of both runs must be that of an uninterrupted run, no damaged file may ever be
visible, and no temporary file may outlast the next start.

Linux only: the script adopts orphans, to know when they are gone.
"""

import ctypes
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from common import directory, shuffled
from pipelines import PIPELINES
from report import Report, arguments
from runs import PATIENCE, SIZE, Case, Message, Run, resumed
from samples import FORMATS, digest, expected_pass

from reuseloader import ReusePolicy
from reuseloader.audit import check
from reuseloader.store import DirectoryStore

LIFETIME = 2
STARTS = range(6)  # epochs in which a round may begin
PASSES = 20  # in which the kill must fall
AIM = 0.2  # seconds for which a kill may wait to meet a process that is writing
LEAVE = 0.5  # seconds that orphans may go on after the second run
MOMENT = 0.5  # seconds after the first batch until when the kill comes
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def cases(rng: random.Random) -> Iterator[Case]:
    """All cases in a random order, then all again in another one."""
    found = []
    for format_, name in itertools.product(FORMATS, PIPELINES):
        if "spawned" in name and format_ != "torch":
            continue  # slow to start, and like the others
        alone = "workers" not in name and "processes" not in name
        victims = ("group",) if alone else ("group", "worker", "main")
        found += [Case(format_, name, victim) for victim in victims]
    return shuffled(found, rng)


class Rounds:
    """All rounds on one directory."""

    def __init__(self, seed: int, path: Path, report: Report) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.report = report
        self.policy = ReusePolicy(LIFETIME, seed)
        self.store = DirectoryStore(path)
        self.references: dict[str, list[list[str]]] = {}

    def round(self, case: Case) -> None:
        """Run, kill, look, run again, look again."""
        start = Message("start", self.rng.choice(STARTS))
        killed = Run(case, self.policy, self.path, start, start.epoch + PASSES)
        self.interrupt(killed, case)
        orphans = case.victim == "main"
        if not orphans:
            self.await_end(killed, case)
        self.look(case, "after the kill")
        self.compare(killed, case, start)

        batches = [message for message in killed.messages if message.event == "batch"]
        stopped = batches[-1] if batches else start
        again = Run(case, self.policy, self.path, stopped, stopped.epoch + 1)
        again.read(time.monotonic() + PATIENCE)
        if orphans and killed.lives():
            self.report.count("starts beside orphans")
        again.read_to_end()
        reached = self.compare(again, case, stopped)
        good = again.messages[-1:] == [Message("end")] and reached == (stopped.epoch + 1, SIZE)
        self.report.expect(good, "crashes", f"{case}: {reached}, {again.messages[-1:]}")
        if not orphans:
            left = again.messages[0].text if again.messages else "nothing said"
            self.report.expect(not left, "temp files after a start", f"{case}: {left}")
        self.await_end(again, case)
        if orphans:
            if case.pipeline.startswith("DataLoader"):  # whose orphans may wait for ever
                time.sleep(self.rng.uniform(0, LEAVE))
                killed.kill("group", self.rng)
            self.await_end(killed, case)
        self.look(case, "after the second run")
        DirectoryStore(self.path)
        left = check(self.store).temps
        self.report.expect(not left, "temp files after a start", f"{case}: {left}")

    def interrupt(self, killed: Run, case: Case) -> None:
        """Kill at a random moment, and take in what was said until then, and of the end."""
        patience = time.monotonic() + PATIENCE
        while killed.read(patience) is not None and killed.messages[-1].event == "made":
            pass
        moment = time.monotonic() + self.rng.uniform(0, MOMENT)
        aimed = self.rng.random() < 0.5
        while time.monotonic() < moment or not killed.kill(
            case.victim, self.rng, self.writer() if aimed else None
        ):
            if killed.read(moment) is None and time.monotonic() > patience:
                self.report.fault("hangs", f"{case}: no moment for a kill")
                killed.kill("group", self.rng)
                return
            if killed.messages[-1].event == "end":
                self.report.count("kills that came too late")
                return
            if killed.messages[-1].event == "error":
                self.report.fault("crashes", f"{case}, before the kill: {killed.messages[-1]}")
                return
        self.report.count(f"kills of a {case.victim}")
        if case.victim == "worker":  # the main process must notice
            killed.read_to_end()
            last = killed.messages[-1]
            if last.event == "error":
                self.report.count("errors raised for a dead worker")
            else:  # between two passes nobody misses it: the next one has new workers
                self.report.expect(last.event == "end", "hangs", f"{case}: neither error nor end")
        else:
            while killed.read(0) is not None:
                pass

    def writer(self) -> int | None:
        """Wait a little for a process that is writing a file."""
        until = time.monotonic() + AIM
        while time.monotonic() < until:
            for name in os.listdir(self.path):
                if name.endswith(".tmp"):
                    return int(name.split("-")[1])
        return None

    def await_end(self, ended: Run, case: Case) -> None:
        """Until all its processes are gone."""
        self.report.expect(ended.gone(), "hangs", f"{case}: its processes do not end")

    def compare(self, delivered: Run, case: Case, start: Message) -> tuple[int, int]:
        """Every batch is that of the uninterrupted run, and none is missing up to the last.

        Returns the epoch and the position in it that was reached.
        """
        reference = self.reference(case)
        batches = [message for message in delivered.messages if message.event == "batch"]
        at = (start.epoch, start.position if case.pipeline.startswith("nodes") else 0)
        for message in batches:
            epoch, position = at if at[1] < SIZE else (at[0] + 1, 0)
            at = epoch, position + len(message.digests)
            right = tuple(reference[epoch][position : at[1]])
            place = f"{case}, epoch {epoch}, position {position}"
            good = (message.epoch, message.position) == at and message.digests == right
            self.report.expect(good, "wrong samples", place)
            self.report.count("samples compared", len(message.digests))
        return at

    def reference(self, case: Case) -> list[list[str]]:
        """The digests of an uninterrupted run, epoch by epoch; itself held against the rule."""
        if case.format not in self.references:
            self.references[case.format] = passes = []
            with directory() as path:
                inline = Case(case.format, "DataLoader", "")
                loader, _, _ = resumed(inline, self.policy, str(path), Message("start"))
                for epoch in range(STARTS[-1] + PASSES + 3):
                    passes.append([digest(sample) for batch in loader for sample in batch])
                    right = expected_pass(case.build, self.policy, epoch, SIZE)
                    place = f"uninterrupted run, {case.format}, epoch {epoch}"
                    self.report.expect(passes[-1] == right, "wrong samples", place)
        return self.references[case.format]

    def look(self, case: Case, when: str) -> None:
        """What lies in the directory is sound."""
        found = check(self.store, SIZE)
        self.report.expect(not found.damaged, "damaged files", f"{case}, {when}: {found.damaged}")
        self.report.expect(not found.strays, "strays", f"{case}, {when}: {found.strays}")
        if when == "after the kill":
            self.report.count("temp files left by kills", len(found.temps))


def adopt_orphans() -> None:
    """Become the parent of processes whose parent dies."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> int:
    chosen = arguments(__doc__, rounds=200)
    report = Report(
        "wrong samples", "damaged files", "temp files after a start", "strays", "hangs", "crashes"
    )
    adopt_orphans()
    torch.set_num_threads(1)
    with directory() as path:
        rounds = Rounds(chosen.seed, path, report)
        for case in itertools.islice(cases(rounds.rng), chosen.rounds):
            rounds.round(case)
            report.count("rounds")
        report.expect(check(DirectoryStore(path), SIZE).clean, "strays", "at the end")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
