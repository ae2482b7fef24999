"""What lies in a store, and is it sound?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from reuseloader.record import DamagedError, read_stamp
from reuseloader.store import BOOK, Store
from reuseloader.temps import is_temp


class Listed(Store, Protocol):
    """A store that can tell what lies in it."""

    def names(self) -> Iterable[str]:
        """The names of all that is there."""

    def index_of(self, name: str) -> int | None:
        """The index of the sample of this name; None if it is no sample's."""


@dataclass
class Audit:
    """What `check` found. Names are those of the store."""

    samples: int = 0
    bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)  # name -> what is wrong
    temps: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)  # what ReuseLoader did not make

    @property
    def clean(self) -> bool:
        """Whether there is nothing but sound samples (and the bookkeeping file)."""
        return not (self.damaged or self.temps or self.strays)


def check(
    store: Listed,
    size: int | None = None,
    *,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Audit:
    """Read every sample of a store and judge it: lengths, checksums, temp files, strays.

    Unpickles nothing and changes nothing. A sample of an index beyond ``size`` is a stray. The
    names in the store are taken from ``watch(names)``, which may show how far it is, as tqdm does.
    """
    found = Audit()
    for name in watch(store.names()):
        index = store.index_of(name)
        if index is None:
            if is_temp(name):
                found.temps.append(name)
            elif name != BOOK:
                found.strays.append(name)
        elif size is not None and index >= size:
            found.strays.append(name)
        else:
            _check_sample(store, name, index, found)
    return found


def _check_sample(store: Listed, name: str, index: int, found: Audit) -> None:
    try:
        record = store.read(index)
        if record is None:  # removed since it was listed
            return
        found.bytes += len(record)
        read_stamp(record)
    except (DamagedError, OSError) as error:
        found.damaged[name] = reason(error)
    found.samples += 1


def reason(error: DamagedError | OSError) -> str:
    """What is wrong with a sample that ``error`` was raised for, without the path."""
    if isinstance(error, FileNotFoundError):  # to a store no file is no error
        return "a link to nothing"
    return getattr(error, "strerror", None) or str(error)
