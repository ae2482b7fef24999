"""A run in a session of its own, that tells what it delivers until it is killed."""

import os
import random
import signal
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from pipelines import pipeline
from samples import Build, digest

from reuseloader import ReusePolicy

SIZE = 32
BATCH = 4
COUNT = 50_000  # 400 kB a sample: most of the time a file is being written
SECONDS = 0.01  # of a build that orphans are to be found at
PATIENCE = 60.0  # seconds after which something hangs


@dataclass(frozen=True)
class Case:
    """A kind of run, and whom of it to kill."""

    format: str
    pipeline: str
    victim: str

    @property
    def build(self) -> Build:
        return Build(self.format, COUNT, SECONDS if self.victim == "main" else 0)


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
