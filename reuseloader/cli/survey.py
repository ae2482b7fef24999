"""What lies in a store, judged by the ends of its records alone."""

import os
import stat
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from reuseloader.audit import reason
from reuseloader.cli.opened import StoreOnDisk, watched
from reuseloader.cli.words import format_of
from reuseloader.lmdb_store import LMDBStore
from reuseloader.record import TRAILER_SIZE, DamagedError, announced_stamp
from reuseloader.store import BOOK
from reuseloader.temps import is_temp, owner_lives


@dataclass
class _Group:
    """The samples of equal settings."""

    samples: int = 0
    bytes: int = 0
    generations: Counter[int] = field(default_factory=Counter)


@dataclass
class _Found:
    indices: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # of records, trailers included
    groups: dict[tuple[int, int, bytes], _Group] = field(
        default_factory=lambda: defaultdict(_Group)
    )
    damaged: dict[str, str] = field(default_factory=dict)
    temps: dict[str, bool] = field(default_factory=dict)  # name -> whether its owner may be alive
    strays: list[str] = field(default_factory=list)

    def facts(self, store: StoreOnDisk) -> dict[str, Any]:
        sizes = self.sizes
        return {
            "path": store.path,
            "store": "lmdb" if isinstance(store, LMDBStore) else "directory",
            **_lmdb_size(store),
            "samples": len(self.indices),
            "bytes": sum(sizes),
            "sample_bytes": {
                "min": min(sizes, default=None),
                "mean": sum(sizes) / len(sizes) if sizes else None,
                "max": max(sizes, default=None),
            },
            "first_index": min(self.indices, default=None),
            "last_index": max(self.indices, default=None),
            "last_run": self._last_run(store.read_book()),
            "settings": [
                {
                    "format": format_of(codec),
                    "codec": codec,
                    "lifetime": lifetime,
                    "fingerprint": fingerprint.hex(),
                    "samples": group.samples,
                    "bytes": group.bytes,
                    "generations": dict(sorted(group.generations.items())),
                }
                for (codec, lifetime, fingerprint), group in sorted(
                    self.groups.items(), key=lambda item: -item[1].samples
                )
            ],
            "damaged_trailers": self.damaged,
            "temps": [{"name": n, "owner_lives": alive} for n, alive in self.temps.items()],
            "strays": self.strays,
        }

    def _last_run(self, book: dict[str, Any]) -> dict[str, Any] | None:
        """What the bookkeeping file says, and how many of its indices are stored."""
        if not book:
            return None
        size = book.get("size")
        if type(size) is not int:
            size = None
        here = None if size is None else sum(index < size for index in self.indices)
        return {
            "size": size,
            "stored": here,
            "build": book.get("build"),
            "fingerprint": book.get("fingerprint"),
        }


def _lmdb_size(store: StoreOnDisk) -> dict[str, int]:
    if isinstance(store, LMDBStore):
        return {"file_bytes": os.path.getsize(f"{store.path}/data.mdb")}
    return {}


def survey(store: StoreOnDisk) -> dict[str, Any]:
    """All of it, for JSON. Of each record the trailer is read, and its length compared."""
    found = _Found()
    for name in watched(store.names()):
        index = store.index_of(name)
        if index is not None:
            _add_sample(found, store, name, index)
        elif is_temp(name):
            try:
                info = os.stat(f"{store.path}/{name}", follow_symlinks=False)
            except FileNotFoundError:  # moved into place since it was listed
                continue
            if stat.S_ISREG(info.st_mode):
                found.temps[name] = owner_lives(name, info)
            else:
                found.strays.append(name)
        elif name != BOOK:
            found.strays.append(name)
    return found.facts(store)


def _add_sample(found: _Found, store: StoreOnDisk, name: str, index: int) -> None:
    try:
        measured = store.measure(index, TRAILER_SIZE)
        if measured is None:  # removed since it was listed
            return
        size, trailer = measured
        found.sizes.append(size)
        stamp = announced_stamp(trailer, size)
    except (DamagedError, OSError) as error:
        found.damaged[name] = reason(error)
    else:
        group = found.groups[stamp.codec, stamp.lifetime, stamp.fingerprint]
        group.samples += 1
        group.bytes += size
        group.generations[stamp.generation] += 1
    found.indices.append(index)
