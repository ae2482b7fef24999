"""What can happen to a stored file."""

import io
import os
import pickle
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from reuseloader.record import TRAILER_SIZE, DamagedError, read_stamp, seal
from reuseloader.store import DirectoryStore

SIZE = 6  # indices of a store


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


# --- of the content -------------------------------------------------------------------------------


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


# --- of the file ----------------------------------------------------------------------------------


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
