"""What lies in a directory of samples, and is it sound?"""

import os
import re
from dataclasses import dataclass, field

from reuseloader.record import DamagedError, read_stamp
from reuseloader.store import BOOK, DirectoryStore, is_temp

_SAMPLE = re.compile(r"(\d{8,})\.pt")


@dataclass
class Audit:
    """What `check` found. Names are relative to the directory."""

    samples: int = 0
    bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)  # name -> what is wrong
    temps: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)  # what ReuseLoader did not make

    @property
    def clean(self) -> bool:
        """Whether there is nothing but sound samples (and the bookkeeping file)."""
        return not (self.damaged or self.temps or self.strays)


def check(store: DirectoryStore, size: int | None = None) -> Audit:
    """Read every file of a store and judge it: lengths, checksums, temp files, strays.

    Unpickles nothing and changes nothing. A sample of an index beyond ``size`` is a stray.
    """
    found = Audit()
    for name in sorted(os.listdir(store.path)):
        sample = _SAMPLE.fullmatch(name)
        if sample is not None and name == os.path.basename(store.locate(int(sample[1]))):
            index = int(sample[1])
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
