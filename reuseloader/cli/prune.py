"""``reuseloader prune``: remove the records that given settings no longer need."""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from reuseloader.audit import reason
from reuseloader.cli.opened import StoreOnDisk, add_directory, is_lmdb, look, watched
from reuseloader.cli.outcome import CommandError, Outcome
from reuseloader.cli.words import first_of, shown, whole_number
from reuseloader.lmdb_store import LMDBStore
from reuseloader.mix import mix
from reuseloader.record import (
    TRAILER_SIZE,
    DamagedError,
    announced_stamp,
    fingerprint_digest,
    read_stamp,
)
from reuseloader.text import amount, plural, table

_EXAMPLES = """examples:
  reuseloader prune cache/train --size 50000 --dry-run
  reuseloader prune cache/train --lifetime 4 --fingerprint "$(cat fingerprint.txt)"
  reuseloader prune cache/train --damaged --yes

A record is removed if it meets any of the criteria given. Records that are replaced meanwhile are
judged anew at the last moment, so the store may be in use; what a run misses, it builds anew.
Temporary files, files that are not ReuseLoader's, and links are left alone."""

_CRITERIA = ("size", "lifetime", "seed", "fingerprint")


def add(commands: Any) -> None:
    """Add this subcommand."""
    text = "remove the records that given settings no longer need"
    parser = commands.add_parser("prune", help=text, description=text, epilog=_EXAMPLES)
    add_directory(parser)
    criteria = parser.add_argument_group("criteria, at least one")
    criteria.add_argument(
        "--size", metavar="N", type=whole_number(0), help="records of indices from N on"
    )
    criteria.add_argument(
        "--lifetime", metavar="L", type=whole_number(1), help="records of another lifetime"
    )
    criteria.add_argument("--seed", metavar="S", type=int, help="records of another policy seed")
    criteria.add_argument(
        "--fingerprint",
        metavar="TEXT",
        help='records of another fingerprint: as given to the loader ("" is none), or its hash, '
        "as stat prints it",
    )
    criteria.add_argument(
        "--damaged", action="store_true", help="damaged records (reads all of every record)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Outcome:
    """Remove, after a question, what meets a criterion in the store of ``args.directory``."""
    if not args.damaged and all(getattr(args, name) is None for name in _CRITERIA):
        raise CommandError("prune needs a criterion (see reuseloader prune --help)")
    asks = not (args.yes or args.dry_run)
    if asks and not sys.stdin.isatty():
        raise CommandError("prune asks on a terminal: pass --yes, or --dry-run to look only")
    due = _listed(args)
    lines = due.lines()
    if asks and due.records:
        sys.stderr.writelines(f"{line}\n" for line in lines)
        lines = []
        if not _agreed(f"remove {plural(len(due.records), 'record')}? [y/N] "):
            return Outcome(due.facts(), ["nothing removed"])
    if not args.dry_run and due.records:
        _remove(args, due)
        lines.append(due.result())
        if is_lmdb(args.directory):
            lines.append("its file keeps its size: what is free in it is used again")
    lines += due.left_lines()
    return Outcome(due.facts(), lines, is_wrong=bool(due.left))


@dataclass
class _Record:
    index: int
    why: str
    bytes: int


@dataclass
class _Due:
    """What meets a criterion, and what became of it."""

    path: str
    samples: int = 0
    records: dict[str, _Record] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)  # what could not be judged or removed
    removed: int = 0
    removed_bytes: int = 0
    replaced: int = 0  # or gone before they were to be removed

    @property
    def bytes(self) -> int:
        return sum(record.bytes for record in self.records.values())

    def facts(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "samples": self.samples,
            "due": {
                name: {"index": record.index, "why": record.why, "bytes": record.bytes}
                for name, record in self.records.items()
            },
            "due_bytes": self.bytes,
            "left": self.left,
            "removed": self.removed,
            "removed_bytes": self.removed_bytes,
            "replaced": self.replaced,
        }

    def lines(self) -> list[str]:
        number = plural(self.samples, "sample")
        lines = [
            f"{shown(self.path)}: of {number} {len(self.records):,} to remove, {amount(self.bytes)}"
        ]
        groups = defaultdict(list)
        for record in self.records.values():
            groups[record.why].append(record)
        rows = [
            (
                why,
                f"{len(records):,}",
                amount(sum(record.bytes for record in records)),
                f"indices {records[0].index:,} to {records[-1].index:,}",
            )
            for why, records in groups.items()
        ]
        return lines + table(rows, "<>><", "  ")

    def left_lines(self) -> list[str]:
        lines = []
        if self.left:
            lines.append(f"left as they are: {len(self.left):,}")
            lines += first_of(
                (f"{shown(n)}  {why}" for n, why in self.left.items()), len(self.left)
            )
        return lines

    def result(self) -> str:
        text = f"removed {plural(self.removed, 'record')}, {amount(self.removed_bytes)}"
        if self.replaced:
            text += f"; {self.replaced:,} were replaced or gone meanwhile"
        return text


def _listed(args: argparse.Namespace) -> _Due:
    """All that meets a criterion."""
    store = look(args.directory)
    try:
        due = _Due(store.path)
        names: Iterable[str] = watched(store.names())
        for name in names:
            index = store.index_of(name)
            if index is None:
                continue
            due.samples += 1
            try:
                record = _judge(store, index, args)
            except OSError as error:
                due.left[name] = reason(error)
            else:
                if record is not None:
                    due.records[name] = record
        return due
    finally:
        store.close()


def _judge(store: StoreOnDisk, index: int, args: argparse.Namespace) -> _Record | None:
    """The record of an index, if it meets a criterion; OSError if that cannot be told."""
    measured = store.measure(index, TRAILER_SIZE)
    if measured is None:  # removed since it was listed
        return None
    size, trailer = measured
    if args.size is not None and index >= args.size:
        return _Record(index, f"index from {args.size:,} on", size)
    try:
        stamp = announced_stamp(trailer, size)
        if args.damaged:
            whole = store.read(index)
            if whole is not None:
                read_stamp(whole)
    except DamagedError:
        return _Record(index, "damaged", size) if args.damaged else None
    if args.lifetime not in (None, stamp.lifetime):
        return _Record(index, f"lifetime {stamp.lifetime:,}", size)
    if args.seed is not None and stamp.seed != mix(args.seed, index, stamp.generation):
        return _Record(index, "another seed", size)
    if args.fingerprint is not None and stamp.fingerprint not in _hashes(args.fingerprint):
        return _Record(index, f"fingerprint {stamp.fingerprint.hex()}", size)
    return None


def _hashes(fingerprint: str) -> tuple[bytes, ...]:
    """What records of this fingerprint carry: its hash, or itself where it is one."""
    if re.fullmatch(r"[0-9a-f]{32}", fingerprint):  # as fingerprint_of's are, too
        return fingerprint_digest(fingerprint), bytes.fromhex(fingerprint)
    return (fingerprint_digest(fingerprint),)


def _agreed(question: str) -> bool:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _remove(args: argparse.Namespace, due: _Due) -> None:
    store = LMDBStore(args.directory) if is_lmdb(args.directory) else look(args.directory)
    try:
        for name in watched(due.records):
            record = due.records[name]
            is_still_due: Callable[[], bool] = partial(_is_due, store, record.index, args)
            try:
                removed = store.remove(record.index, is_still_due)
            except FileNotFoundError:
                removed = False
            except OSError as error:
                due.left[name] = reason(error)
                continue
            due.removed += removed
            due.removed_bytes += removed * record.bytes
            due.replaced += not removed
    finally:
        store.close()


def _is_due(store: StoreOnDisk, index: int, args: argparse.Namespace) -> bool:
    return _judge(store, index, args) is not None
