"""Take the disk away from running loaders, in every way, and give it back.

    python tests/stress/full_disk.py --rounds 150

A round is one scene with one of the pipelines: a file system of 8 MB (in mounts of the script's
own) that fills in mid-epoch, is freed and fills again, or turns read-only; a directory that is
deleted, replaced by a file, or loses its write permission (as a user other than root) while workers
run. Every sample must be right, nothing half-written may stay, each kind of trouble is warned of
once, and what can be stored again is stored again.
"""

import errno
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from common import become_nobody, caught, directory, in_child, shuffled
from disks import NotAllowedError, fill, free, read_only, small_disk
from pipelines import PIPELINES, pipeline
from report import Report, arguments
from samples import FORMATS, Build, digest, expected_pass

from reuseloader import ReusePolicy
from reuseloader.audit import check
from reuseloader.record import read_stamp
from reuseloader.store import DirectoryStore

SIZE = 60
COUNT = 12_500  # 100 kB a sample, 6 MB in all
BATCH = 4
LIFETIME = 2
TURNS = 6  # times that a disk is filled and freed
NAMES = [name for name in PIPELINES if "spawned" not in name]


class Scene:
    """A loader on a directory, with things happening to the disk in mid-epoch."""

    def __init__(self, name: str, path: Path, rng: random.Random, report: Report) -> None:
        self.name = name
        self.path = path
        self.rng = rng
        self.report = report
        self.build = Build(rng.choice([*FORMATS]), COUNT)
        self.policy = ReusePolicy(LIFETIME, rng.randrange(10**6))
        self.epoch = 0

    @contextmanager
    def loader(self, most: int) -> Iterator[Any]:
        """The pipeline, closed in the end; warns once for each of at most ``most`` kinds."""
        options = {"size": SIZE, "batch": BATCH, "start_epoch": self.epoch}
        with caught() as texts:
            loader, owner = pipeline(self.name, self.build, self.policy, self.path, **options)
            with owner:
                yield loader
                del loader
        kinds = {"could not be read" in text for text in texts}
        good = 1 <= len(texts) == len(kinds) <= most
        self.report.expect(good, "warnings missing or too many", f"{self.name}: {texts}")

    def run(self, loader: Any, *events: Callable[[], object]) -> None:
        """A pass, with these events at random places of it, in this order."""
        places = sorted(self.rng.sample(range(1, SIZE // BATCH - 1), len(events)))
        due = dict(zip(places, events, strict=True))
        got = []
        for number, batch in enumerate(loader):
            got += map(digest, batch)
            due.get(number, _nothing)()
        good = got == expected_pass(self.build, self.policy, self.epoch, SIZE)
        self.report.expect(good, "wrong samples", f"{self.name}, epoch {self.epoch}")
        self.report.count("samples compared", SIZE)
        self.epoch += 1

    def stored_again(self, loader: Any, store: DirectoryStore) -> None:
        """Two passes without trouble, after which all is stored that will be used again."""
        self.run(loader)
        self.run(loader)
        found = check(store, SIZE)
        for index in range(SIZE):
            key = self.policy.key(index, self.epoch - 1)
            record = None if self.policy.is_last_use(key) else store.read(index)
            if record is not None and f"{index:08}.pt" not in found.damaged:
                good = read_stamp(record).generation == key.generation
                self.report.expect(good, "not stored again", f"{self.name}, index {index}")
        self.report.expect(not found.damaged, "damaged files", f"{self.name}: {found.damaged}")


def _nothing() -> None:
    pass


def full(scene: Scene, folder: Path) -> None:
    """A disk that is full, or not, from one moment to the next; also when a loader is made."""
    with small_disk(folder / "disk") as disk:
        scene.path = disk / "store"
        ballast = disk / "ballast"
        store = DirectoryStore(scene.path)
        fill(ballast)
        with scene.loader(1) as loader:
            for _ in range(TURNS):
                scene.run(loader, lambda: free(ballast), lambda: fill(ballast))
                scene.report.count("times the disk was full")
            scene.run(loader, lambda: free(ballast))
            scene.stored_again(loader, store)
        nothing_is_left(scene, store)


def turned_read_only(scene: Scene, folder: Path) -> None:
    """A file system that turns read-only once nobody writes, as after an error."""
    with small_disk(folder / "disk") as disk:
        scene.path = disk / "store"
        store = DirectoryStore(scene.path)
        with scene.loader(1) as loader:
            scene.run(loader)
            read_only_when_idle(disk)
            scene.run(loader)
            scene.run(loader, lambda: read_only(disk, False))
            scene.stored_again(loader, store)
        nothing_is_left(scene, store)


def read_only_when_idle(disk: Path) -> None:
    while True:
        try:
            read_only(disk, True)
        except OSError as error:
            if error.errno != errno.EBUSY:  # a file is just being written
                raise
        else:
            return


def deleted(scene: Scene, folder: Path) -> None:
    """The directory goes, with all that is in it, and comes back."""
    store = DirectoryStore(scene.path)
    with scene.loader(1) as loader:
        scene.run(loader, lambda: scene.path.rename(folder / "gone"))
        scene.run(loader)
        scene.run(loader, scene.path.mkdir)
        scene.stored_again(loader, store)


def replaced(scene: Scene, folder: Path) -> None:
    """A file stands where the directory was."""

    def replace() -> None:
        scene.path.rename(folder / "gone")
        scene.path.write_text("a file")

    def put_back() -> None:
        scene.path.unlink()
        (folder / "gone").rename(scene.path)

    store = DirectoryStore(scene.path)
    with scene.loader(2) as loader:  # nothing can be read there, and nothing stored
        scene.run(loader, replace)
        scene.run(loader)
        scene.run(loader, put_back)
        scene.stored_again(loader, store)


def forbidden(scene: Scene, _folder: Path) -> None:
    """The directory may not be written any more."""
    if not become_nobody():
        raise NotAllowedError("root may not become another user")
    store = DirectoryStore(scene.path)
    with scene.loader(1) as loader:
        scene.run(loader, lambda: scene.path.chmod(0o500))
        scene.run(loader)
        refused(scene)
        scene.run(loader, lambda: scene.path.chmod(0o700))
        scene.stored_again(loader, store)


def refused(scene: Scene) -> None:
    """A start in a directory that may not be written fails with its path."""
    try:
        DirectoryStore(scene.path)
    except OSError as error:
        scene.report.expect(str(scene.path) in str(error), "crashes", error)
    else:
        scene.report.fault("crashes", "a start in a directory that may not be written")


def nothing_is_left(scene: Scene, store: DirectoryStore) -> None:
    """Neither temporary nor damaged files."""
    found = check(store, SIZE)
    scene.report.expect(found.clean, "files left", f"{scene.name}: {found}")


SCENES = (full, turned_read_only, deleted, replaced, forbidden)


def play(act: Callable[[Scene, Path], None], name: str, seed: int, folder: Path) -> Report:
    """One scene with one pipeline, in a process of its own."""
    torch.set_num_threads(1)
    report = new_report()
    scene = Scene(name, folder / "store", random.Random(seed), report)
    try:
        act(scene, folder)
    except NotAllowedError as error:
        report.count(f"rounds skipped ({act.__name__}: {error})")
    return report


def new_report() -> Report:
    return Report(
        "wrong samples",
        "damaged files",
        "files left",
        "not stored again",
        "warnings missing or too many",
        "crashes",
    )


def main() -> int:
    chosen = arguments(__doc__, rounds=150)
    report = new_report()
    rng = random.Random(chosen.seed)
    for act, name in islice(shuffled(product(SCENES, NAMES), rng), chosen.rounds):
        with directory() as folder:
            try:
                report.add(in_child(play, act, name, rng.randrange(2**32), folder))
            except RuntimeError as error:
                report.fault("crashes", f"{act.__name__}, {name}: {error}")
            if (folder / "store").is_dir():  # what could not be removed goes at a start
                found = check(DirectoryStore(folder / "store"), SIZE)
                report.expect(found.clean, "files left", f"{act.__name__}, {name}: {found}")
        report.count("rounds")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
