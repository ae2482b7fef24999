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
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from common import (
    FORMATS,
    PIPELINES,
    Build,
    Report,
    arguments,
    digest,
    directory,
    expected_pass,
    pipeline,
    shuffled,
)

from reuseloader import ReusePolicy
from reuseloader.audit import check
from reuseloader.store import DirectoryStore

SIZE = 32
BATCH = 4
LIFETIME = 2
COUNT = 50_000  # 400 kB a sample: most of the time a file is being written
SECONDS = 0.01  # of a build that orphans are to be found at
STARTS = range(6)  # epochs in which a round may begin
PASSES = 20  # in which the kill must fall
AIM = 0.2  # seconds for which a kill may wait to meet a process that is writing
LEAVE = 0.5  # seconds that orphans may go on after the second run
MOMENT = 0.5  # seconds after the first batch until when the kill comes
PATIENCE = 60.0  # seconds after which something hangs
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Case:
    """A kind of run, and whom of it to kill."""

    format: str
    pipeline: str
    victim: str

    @property
    def build(self) -> Build:
        return Build(self.format, COUNT, SECONDS if self.victim == "main" else 0)


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


# --- a run, in its own process --------------------------------------------------------------------


class Message(NamedTuple):
    """What a run tells the script after each batch, and at its beginning and end."""

    event: str  # "made", "batch", "error" or "end"
    epoch: int = 0
    position: int = 0  # in the epoch, after this batch
    digests: tuple[str, ...] = ()
    state: Any = None
    text: str = ""


def run(case: Case, policy: ReusePolicy, path: str, start: Message, last: int, out: Any) -> None:
    """Deliver from ``start`` on to the end of epoch ``last``, and tell of every batch."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # DataLoader's words about its dead worker
    torch.set_num_threads(1)
    try:
        loader, epoch, position = resumed(case, policy, path, start)
        left = [name for name in os.listdir(path) if name.endswith(".tmp")]
        out.send(Message("made", text=" ".join(left)))
        for now in range(epoch, last + 1):
            for batch in loader:
                position += len(batch)
                digests = tuple(map(digest, batch))
                out.send(Message("batch", now, position, digests, loader.state_dict()))
            position = 0
        out.send(Message("end"))
    except Exception as error:
        out.send(Message("error", text=f"{type(error).__name__}: {error}"))


def resumed(case: Case, policy: ReusePolicy, path: str, start: Message) -> tuple[Any, int, int]:
    """Return (loader, epoch, position): a graph goes on where it was, DataLoader at the epoch."""
    loader, _ = pipeline(
        case.pipeline, case.build, policy, path, size=SIZE, batch=BATCH, start_epoch=start.epoch
    )
    if start.state is not None:
        loader.load_state_dict(start.state)
    if case.pipeline.startswith("DataLoader"):
        return loader, loader.next_epoch, 0
    if start.position == SIZE:
        return loader, start.epoch + 1, 0
    return loader, start.epoch, start.position


class Run:
    """A run from outside: what it tells, and its end."""

    def __init__(
        self, case: Case, policy: ReusePolicy, path: Path, start: Message, last: int
    ) -> None:
        context = get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        args = (case, policy, str(path), start, last, sender)
        process = context.Process(target=run, args=args)
        process.start()
        sender.close()
        self.pid = process.pid
        self.messages: list[Message] = []

    def read(self, until: float) -> Message | None:
        """The next message; None if there is none at this time, or ever."""
        if connection.wait([self._receiver], max(0.0, until - time.monotonic())):
            with suppress(EOFError):
                self.messages.append(self._receiver.recv())
                return self.messages[-1]
        return None

    def read_to_end(self) -> None:
        """All that is still to come."""
        until = time.monotonic() + PATIENCE
        while self.read(until) is not None and self.messages[-1].event not in ("error", "end"):
            pass

    def workers(self) -> list[int]:
        """The processes that build."""
        found = []
        with suppress(psutil.Error):
            for child in psutil.Process(self.pid).children():
                if "resource_tracker" not in " ".join(child.cmdline()):
                    found.append(child.pid)
        return found

    def kill(self, victim: str, rng: random.Random, writer: int | None = None) -> bool:
        """Kill a worker, the main process or all; False if no worker was there to be killed."""
        target = self.pid
        if victim == "worker":
            workers = self.workers()
            if not workers:
                return False
            target = writer if writer in workers else rng.choice(workers)
        with suppress(ProcessLookupError):
            (os.killpg if victim == "group" else os.kill)(target, signal.SIGKILL)
        return True

    def lives(self) -> bool:
        """Whether any process of this run is left."""
        with suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-self.pid, os.WNOHANG)
                if pid == 0:
                    return True
        return False

    def gone(self) -> bool:
        """Wait until no process of this run is left; False if that takes too long."""
        until = time.monotonic() + PATIENCE
        while self.lives():
            if time.monotonic() > until:
                os.killpg(self.pid, signal.SIGKILL)
                return False
            time.sleep(0.005)
        return True


# --- the rounds -----------------------------------------------------------------------------------


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
