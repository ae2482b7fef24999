"""What lies in a store, and is it sound?"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from reuseloader.record import DamagedError, read_stamp
from reuseloader.store import BOOK, Store, is_temp


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


def check(store: Listed, size: int | None = None) -> Audit:
    """Read every sample of a store and judge it: lengths, checksums, temp files, strays.

    Unpickles nothing and changes nothing. A sample of an index beyond ``size`` is a stray.
    """
    found = Audit()
    for name in store.names():
        index = store.index_of(name)
        if index is not None:
            if size is not None and index >= size:
                found.strays.append(name)
                continue
            found.samples += 1
            try:
                record = store.read(index)
                if record is not None:
                    found.bytes += len(record)
                    read_stamp(record)
            except (DamagedError, OSError) as error:
                found.damaged[name] = str(error)
        elif is_temp(name):
            found.temps.append(name)
        elif name != BOOK:
            found.strays.append(name)
    return found
