"""``reuseloader stat``: what lies in a store, judged by the ends of its records alone."""

import argparse
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from reuseloader.audit import reason
from reuseloader.cli.opened import StoreOnDisk, add_directory, look, watched
from reuseloader.cli.outcome import Outcome
from reuseloader.cli.words import (
    MOST,
    counted,
    fingerprint_text,
    first_of,
    format_of,
    shown,
    size_text,
)
from reuseloader.lmdb_store import LMDBStore
from reuseloader.record import TRAILER_SIZE, DamagedError, announced_stamp
from reuseloader.store import BOOK
from reuseloader.temps import is_temp, owner_lives

_BAR = 40  # characters of the longest bar of a histogram

_EXAMPLES = """examples:
  reuseloader stat cache/train
  reuseloader stat cache/train --json | jq .samples

Of each record only the last 80 bytes are read; `reuseloader verify` reads all. Nothing is changed,
and the store may be in use."""


def add(commands: Any) -> None:
    """Add this subcommand."""
    text = "say what lies in a store: samples, settings, generations"
    parser = commands.add_parser("stat", help=text, description=text, epilog=_EXAMPLES)
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Outcome:
    """What lies in the store of ``args.directory``."""
    store = look(args.directory)
    try:
        survey = _survey(store)
        facts = survey.facts(store)
    finally:
        store.close()
    return Outcome(facts, _lines(facts), is_wrong=bool(survey.damaged))


@dataclass
class _Group:
    """The samples of equal settings."""

    samples: int = 0
    bytes: int = 0
    generations: Counter[int] = field(default_factory=Counter)


@dataclass
class _Survey:
    indices: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # of records, trailers included
    groups: dict[tuple[int, int, bytes], _Group] = field(
        default_factory=lambda: defaultdict(_Group)
    )
    damaged: dict[str, str] = field(default_factory=dict)
    temps: dict[str, bool] = field(default_factory=dict)  # name -> whether its owner may be alive
    strays: list[str] = field(default_factory=list)

    def facts(self, store: StoreOnDisk) -> dict[str, Any]:
        """All of it, for JSON."""
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


def _survey(store: StoreOnDisk) -> _Survey:
    found = _Survey()
    for name in watched(store.names()):
        index = store.index_of(name)
        if index is not None:
            _add_sample(found, store, name, index)
        elif is_temp(name):
            try:
                info = os.stat(f"{store.path}/{name}", follow_symlinks=False)
            except FileNotFoundError:  # moved into place since it was listed
                continue
            found.temps[name] = owner_lives(name, info)
        elif name != BOOK:
            found.strays.append(name)
    return found


def _add_sample(found: _Survey, store: StoreOnDisk, name: str, index: int) -> None:
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


# --- for people -----------------------------------------------------------------------------------


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{shown(facts['path'])}: {_kind(facts)}"]
    samples = counted(facts["samples"], "sample")
    if facts["samples"]:
        sizes = facts["sample_bytes"]
        lines.append(
            f"{samples}, {size_text(facts['bytes'])}, "
            f"indices {facts['first_index']:,} to {facts['last_index']:,}"
        )
        if sizes["min"] is not None:
            small, mean, large = (size_text(sizes[name]) for name in ("min", "mean", "max"))
            lines.append(f"size of a sample: {small} to {large}, mean {mean}")
    else:
        lines.append("no samples")
    lines += _last_run_lines(facts["last_run"])
    for group in facts["settings"]:
        lines += _group_lines(group)
    damaged = facts["damaged_trailers"]
    if damaged:
        lines += ["", f"damaged, as far as their ends show: {len(damaged):,}"]
        lines += first_of((f"{shown(n)}  {why}" for n, why in damaged.items()), len(damaged))
    temps = facts["temps"]
    if temps:
        lines += ["", f"being written, or left by a process that was killed: {len(temps):,}"]
        lines += first_of(map(_temp_line, temps), len(temps))
    strays = facts["strays"]
    if strays:
        lines += ["", f"not of ReuseLoader: {len(strays):,}"]
        lines += first_of(map(shown, strays), len(strays))
    return lines


def _kind(facts: dict[str, Any]) -> str:
    if facts["store"] == "directory":
        return "a directory of files"
    return f"an LMDB store, its file {size_text(facts['file_bytes'])}"


def _last_run_lines(run: dict[str, Any] | None) -> list[str]:
    if run is None:
        return ["last run: unknown"]
    size = "an unknown number of samples"
    if run["size"] is not None:
        size = f"{counted(run['size'], 'sample')}, {run['stored']:,} of them stored"
    fingerprint = shown(fingerprint_text(str(run["fingerprint"])))
    return [f"last run: {size}; build {shown(run['build'])}, fingerprint {fingerprint}"]


def _group_lines(group: dict[str, Any]) -> list[str]:
    generations = group["generations"]
    most = max(generations.values())
    left_out = len(generations) - MOST
    rows = [
        (f"{generation:,}", f"{count:,}", "#" * max(1, round(_BAR * count / most)))
        for generation, count in list(generations.items())[-MOST:]
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [
        "",
        f"{group['format']}, lifetime {group['lifetime']:,}, "
        f"fingerprint {fingerprint_text(group['fingerprint'])}: "
        f"{counted(group['samples'], 'sample')}, {size_text(group['bytes'])}",
        *([f"  {left_out:,} older generations (--json lists all)"] if left_out > 0 else []),
        *(f"  generation {g:>{widths[0]}}  {n:>{widths[1]}}  {bar}" for g, n, bar in rows),
    ]


def _temp_line(temp: dict[str, Any]) -> str:
    fate = "in use" if temp["owner_lives"] else "abandoned: the next start removes it"
    return f"{temp['name']}  {fate}"
