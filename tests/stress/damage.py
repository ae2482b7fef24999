"""Damage stored files at random and fetch them: every sample must be right, and nothing crash.

    python tests/stress/damage.py --rounds 10000

A round is one damage, to a file of a small store: flipped bits, cuts, zeroed blocks, files of other
indices, generations and settings, foreign files, links, pipes, sockets, directories, unreadable
modes. Rounds come in chapters, each with a format and settings of its own; in every fourth one
another process does the damage while a loader runs. As root the script works as another user.
"""

import io
import os
import pickle
import random
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    FORMATS,
    Build,
    Report,
    arguments,
    become_nobody,
    caught,
    digest,
    directory,
    expected,
    expected_pass,
    in_child,
)

from reuseloader import IndexEpoch, ReuseDataLoader, ReuseDataset, ReusePolicy
from reuseloader.audit import check
from reuseloader.record import TRAILER_SIZE, DamagedError, read_stamp, seal
from reuseloader.store import DirectoryStore

SIZE = 6
CHAPTER = 40  # rounds with one store
LIFETIMES = (2, 3, 10**9)
LIVE = 4  # every so many chapters the damage is done while a loader runs
LIVE_PASSES = 8
LIVE_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
)


# --- a store, and others to take files from -------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What a store is used with."""

    format: str
    lifetime: int
    seed: int
    version: int = 1  # of the build, and its fingerprint
    count: int = 30

    @property
    def build(self) -> Build:
        return Build(self.format, self.count, version=self.version)

    @property
    def policy(self) -> ReusePolicy:
        return ReusePolicy(self.lifetime, self.seed)

    def dataset(self, path: Path) -> ReuseDataset:
        return ReuseDataset(
            self.build,
            SIZE,
            path,
            self.policy,
            fingerprint=f"{self.version}",
            **FORMATS[self.format],
        )

    def others(self) -> Iterator["Settings"]:
        """The same but for one thing."""
        values = {**vars(self)}
        yield Settings(**{**values, "seed": self.seed + 1})
        yield Settings(**{**values, "lifetime": self.lifetime + 1})
        yield Settings(**{**values, "version": self.version + 1})
        for name in FORMATS:
            if name != self.format:
                yield Settings(**{**values, "format": name})


class Damager:
    """Does something to a file; remembers what, and whether an audit must find it."""

    def __init__(self, path: Path, donors: list[Path], rng: random.Random, *, modes: bool) -> None:
        self.path = path
        self.store = DirectoryStore(path)
        self.donors = donors
        self.rng = rng
        self.kinds = [*CHANGES, *OTHERS] + (["mode"] if modes else [])

    def damage(self) -> tuple[str, Path, bool]:
        """Return the kind, the file, and whether a sound record was made unsound."""
        kind = self.rng.choice(self.kinds)
        target = self.path / f"{self.rng.randrange(SIZE):08}.pt"
        if kind in CHANGES:
            content = self.content(target)
            changed = CHANGES[kind](content, self.rng)
            clear(target)
            target.write_bytes(changed)
            return kind, target, changed != content and kind != "sealed again"
        if kind == "mode":
            content = self.content(target)
            clear(target)
            target.write_bytes(content)
            target.chmod(self.rng.choice((0, 0o200)))
        else:
            OTHERS[kind](self, target)
        return kind, target, False

    def content(self, target: Path) -> bytes:
        """What lies there if it is sound, or else a donor's."""
        with suppress(OSError, DamagedError):
            content = self.store.read(int(target.stem))
            if content is not None:
                read_stamp(content)
                return bytes(content)
        return self.donated(target.name)

    def donated(self, name: str | None = None) -> bytes:
        """A record of other settings; of this index, if a name is given."""
        files = [path for folder in self.donors for path in folder.glob(name or "*.pt")]
        return self.rng.choice(files).read_bytes()


def clear(target: Path) -> None:
    """Away with whatever is there."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


# --- damages --------------------------------------------------------------------------------------


def flip(content: bytes, rng: random.Random) -> bytes:
    """Some bits, anywhere."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_trailer(content: bytes, rng: random.Random) -> bytes:
    """One bit of the trailer."""
    start = max(0, len(content) - TRAILER_SIZE)
    return content[:start] + flip(content[start:], rng)


def zero(content: bytes, rng: random.Random) -> bytes:
    """A block, as after a power loss."""
    start = rng.randrange(len(content))
    length = rng.choice((1, 16, 512, 4096))
    return content[:start] + bytes(len(content[start : start + length])) + content[start + length :]


def insert(content: bytes, rng: random.Random) -> bytes:
    """Bytes too many."""
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.randbytes(rng.choice((1, 8, 80))) + content[place:]


def seal_again(content: bytes, rng: random.Random) -> bytes:
    """Half a payload under a right checksum, as of a save that was not lossless."""
    return seal(content[: rng.randrange(1, len(content) // 2)], read_stamp(content))


def foreign(_content: bytes, rng: random.Random) -> bytes:
    """A file that something else wrote."""
    file = io.BytesIO()
    torch.save({"values": torch.zeros(3)}, file)
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    others = (b"hello world\n", pickle.dumps(("no", "stamp")), file.getvalue(), array.getvalue())
    return rng.choice((*others, rng.randbytes(rng.randrange(1, 300))))


Change = Callable[[bytes, random.Random], bytes]
CHANGES: dict[str, Change] = {
    "flipped bits": flip,
    "flipped bit of the trailer": flip_trailer,
    "cut at the end": lambda content, rng: content[: rng.randrange(len(content))],
    "cut at the start": lambda content, rng: content[rng.randrange(1, len(content)) :],
    "zeroed block": zero,
    "zeros": lambda content, rng: bytes(len(content)),
    "bytes too many": insert,
    "twice": lambda content, rng: content + content,
    "foreign": foreign,
    "sealed again": seal_again,
}


def swap(damager: Damager, target: Path) -> None:
    """Two files of the store change places."""
    other = damager.path / f"{damager.rng.randrange(SIZE):08}.pt"
    mine, others = damager.content(target), damager.content(other)
    for path, content in ((target, others), (other, mine)):
        clear(path)
        path.write_bytes(content)


def donate(damager: Damager, target: Path) -> None:
    """The file of this index, from a run of other settings."""
    clear(target)
    target.write_bytes(damager.donated(target.name))


def link(damager: Damager, target: Path) -> None:
    """A link: to nothing, itself, a device, a directory, another file of the store or of others."""
    clear(target)
    other = f"{damager.rng.randrange(SIZE):08}.pt"
    donor = damager.rng.choice(damager.donors)
    places = ("nowhere", target.name, "/dev/zero", "/dev/null", ".", other, donor / other)
    target.symlink_to(damager.rng.choice(places))


def hard_link(damager: Damager, target: Path) -> None:
    """One file under two names."""
    other = damager.path / f"{damager.rng.randrange(SIZE):08}.pt"
    if other != target:
        content = damager.content(other)
        clear(target)
        clear(other)
        other.write_bytes(content)
        target.hardlink_to(other)


def pipe(_damager: Damager, target: Path) -> None:
    clear(target)
    os.mkfifo(target)


def bind_socket(_damager: Damager, target: Path) -> None:
    clear(target)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(target))


def make_directory(damager: Damager, target: Path) -> None:
    clear(target)
    target.mkdir()
    if damager.rng.random() < 0.5:
        (target / "mine.txt").write_text("mine")


def delete(_damager: Damager, target: Path) -> None:
    clear(target)


def make_huge(_damager: Damager, target: Path) -> None:
    """A terabyte, of which nothing is on the disk."""
    clear(target)
    target.touch()
    os.truncate(target, 2**40)


OTHERS: dict[str, Callable[[Damager, Path], None]] = {
    "swapped": swap,
    "of other settings": donate,
    "link": link,
    "hard link": hard_link,
    "pipe": pipe,
    "socket": bind_socket,
    "directory": make_directory,
    "deleted": delete,
    "huge": make_huge,
}


# --- chapters -------------------------------------------------------------------------------------


class Chapter:
    """A store of its own, and donors."""

    def __init__(self, rng: random.Random, folder: Path, report: Report, *, modes: bool) -> None:
        self.rng = rng
        self.report = report
        self.kinds: Counter[str] = Counter()
        self.settings = Settings(
            rng.choice([*FORMATS]), rng.choice(LIFETIMES), rng.randrange(10**6)
        )
        self.path = folder / "store"
        self.dataset = self.settings.dataset(self.path)
        self.epoch = rng.randrange(5)
        donors = []
        for number, other in enumerate(self.settings.others()):
            donors.append(folder / f"donor-{number}")
            donor = other.dataset(donors[-1])
            for index in range(SIZE):  # any epoch in which it is stored will do
                epochs = range(self.epoch, self.epoch + 2)
                [donor[IndexEpoch(index, epoch)] for epoch in epochs]
        self.damager = Damager(self.path, donors, rng, modes=modes)
        self.fetch_all()

    def fetch_all(self) -> None:
        """One pass: all samples are right."""
        for index in range(SIZE):
            good = expected(self.settings.build, self.settings.policy, index, self.epoch)
            place = f"{self.settings}, index {index}, epoch {self.epoch}"
            try:
                got = digest(self.dataset[IndexEpoch(index, self.epoch)])
                self.report.expect(got == good, "wrong samples", place)
            except Exception as error:
                self.report.fault("crashes", f"{place}: {type(error).__name__}: {error}")
            self.report.count("samples compared")

    def round(self) -> None:
        """Damage, audit, and fetch everything, in this epoch and perhaps the next."""
        kind, target, unsound = self.damager.damage()
        self.kinds[kind] += 1
        found = check(self.damager.store)
        if unsound:
            place = f"{self.settings}: {kind}, {target.name}"
            self.report.expect(target.name in found.damaged, "damages unseen by an audit", place)
        self.fetch_all()
        if self.rng.random() < 0.5:
            self.epoch += 1
            self.fetch_all()
        if target.is_dir() and not target.is_symlink():
            clear(target)
        left = [*found.temps, *found.strays]
        self.report.expect(not left, "files left", f"{self.settings}: {left}")

    def live(self, rounds: int) -> None:
        """Run a loader while another process does the damage."""
        context = get_context("fork")
        stop = context.Event()
        answer, sender = context.Pipe(duplex=False)
        args = (self.damager, rounds, stop, sender)
        vandal = context.Process(target=damage_until, args=args)
        vandal.start()
        sender.close()
        try:
            for options in LIVE_OPTIONS:
                self.run_loader(options)
        finally:
            stop.set()
            self.kinds.update(answer.recv())
            vandal.join()

    def run_loader(self, options: dict[str, Any]) -> None:
        settings = self.settings
        with ReuseDataLoader(
            settings.build,
            SIZE,
            self.path,
            lifetime=settings.lifetime,
            seed=settings.seed,
            start_epoch=self.epoch,
            fingerprint=f"{settings.version}",
            shuffle=True,
            collate_fn=list,
            batch_size=2,
            **FORMATS[settings.format],
            **options,
        ) as loader:
            for epoch in range(self.epoch, self.epoch + LIVE_PASSES):
                place = f"{settings}, {options}, epoch {epoch}, damaged while it ran"
                try:
                    got = [digest(sample) for batch in loader for sample in batch]
                except Exception as error:
                    self.report.fault("crashes", f"{place}: {type(error).__name__}: {error}")
                    return
                good = expected_pass(settings.build, settings.policy, epoch, SIZE)
                self.report.expect(got == good, "wrong samples", place)
                self.report.count("samples compared", SIZE)


def damage_until(damager: Damager, rounds: int, stop: Any, sender: Any) -> None:
    """Do this many damages, and go on until told to stop."""
    kinds: Counter[str] = Counter()
    while rounds > 0 or not stop.is_set():
        with suppress(OSError):  # the loader is at work at the same files
            kind, _, _ = damager.damage()
            kinds[kind] += 1
        rounds -= 1
    sender.send(kinds)


def run_chapters(chosen: Any, folder: Path) -> Report:
    """All chapters, as an ordinary user."""
    kinds: Counter[str] = Counter()
    report = Report("wrong samples", "crashes", "damages unseen by an audit", "files left")
    torch.set_num_threads(1)
    os.chdir(folder)  # a socket's path must be short
    rng = random.Random(chosen.seed)
    with caught() as texts:
        # imports all that is ever needed: another user may not be able to read the modules
        Chapter(rng, folder / "first", report, modes=False).live(1)
        modes = become_nobody()
        for number, start in enumerate(range(0, chosen.rounds, CHAPTER)):
            rounds = min(CHAPTER, chosen.rounds - start)
            place = folder / f"{number}"
            chapter = Chapter(rng, place, report, modes=modes)
            if number % LIVE == LIVE - 1:
                chapter.live(rounds)
            else:
                for _ in range(rounds):
                    chapter.round()
            chapter.dataset.close()
            kinds.update(chapter.kinds)
            report.count("rounds", rounds)
            shutil.rmtree(place)
    report.count("warnings", len(texts))
    print("damages:", ", ".join(f"{times} {kind}" for kind, times in sorted(kinds.items())))
    return report


def main() -> int:
    chosen = arguments(__doc__, rounds=10_000)
    with directory() as folder:
        report = in_child(run_chapters, chosen, folder)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
