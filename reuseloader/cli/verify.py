"""``reuseloader verify``: read a store whole and name what is damaged."""

import argparse
import errno
from dataclasses import asdict
from typing import Any

from reuseloader.audit import Audit, check, reason
from reuseloader.cli.opened import StoreOnDisk, add_directory, look, watched
from reuseloader.cli.outcome import Outcome
from reuseloader.cli.words import first_of, shown
from reuseloader.text import amount, plural

_EXAMPLES = """examples:
  reuseloader verify cache/train
  reuseloader verify cache/train --json | jq .damaged

All samples are read, and their lengths and checksums compared with what was written. Nothing is
unpickled or changed, and the store may be in use. A run builds damaged samples anew by itself."""


def add(commands: Any) -> None:
    """Add this subcommand."""
    text = "read a store whole and name what is damaged"
    parser = commands.add_parser("verify", help=text, description=text, epilog=_EXAMPLES)
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Outcome:
    """What is damaged in the store of ``args.directory``."""
    store = look(args.directory)
    try:
        found = check(store, watch=watched)
    except OSError as error:  # of the store itself, not of a sample
        if error.errno != errno.EIO:
            raise
        return _broken(store, reason(error))
    finally:
        store.close()
    damaged = found.damaged
    verdict = f"{len(damaged):,} damaged" if damaged else "all sound" if found.samples else "empty"
    lines = [
        f"{shown(store.path)}: {plural(found.samples, 'sample')}, {amount(found.bytes)} read: "
        f"{verdict}",
        *first_of((f"{shown(name)}  {why}" for name, why in damaged.items()), len(damaged)),
    ]
    if damaged:
        lines.append(
            "a run builds them anew; `reuseloader prune --damaged` removes those that are files"
        )
    if found.temps:
        lines.append(f"{plural(len(found.temps), 'temporary file')} (see `reuseloader stat`)")
    if found.strays:
        lines.append(f"not of ReuseLoader: {len(found.strays):,} (see `reuseloader stat`)")
    return Outcome({"path": store.path, **asdict(found)}, lines, is_wrong=bool(damaged))


def _broken(store: StoreOnDisk, why: str) -> Outcome:
    found = Audit(damaged={store.path: why})
    lines = [
        f"{shown(store.path)}: damaged as a whole: {shown(why)}",
        "its samples cannot even be listed: delete the directory, and a run builds them anew",
    ]
    return Outcome({"path": store.path, **asdict(found)}, lines, is_wrong=True)
