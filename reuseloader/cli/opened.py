"""A store on disk, opened to be looked at: nothing is made, removed or tried."""

import argparse
import os
import sys
from collections.abc import Iterable

from reuseloader.cli.outcome import CommandError
from reuseloader.lmdb_store import LMDBStore
from reuseloader.store import DirectoryStore

StoreOnDisk = DirectoryStore | LMDBStore


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a store."""
    parser.add_argument("directory", metavar="DIR", help="where samples are stored")


def look(directory: str) -> StoreOnDisk:
    """The store that lies in a directory; OSError or ImportError if none can be looked at."""
    if not directory:
        raise CommandError("DIR must name a directory, got ''")
    if is_lmdb(directory):
        return LMDBStore.look(directory)
    return DirectoryStore.look(directory)


def is_lmdb(directory: str) -> bool:
    """Whether what lies in a directory was written by an LMDBStore."""
    return os.path.isfile(os.path.join(directory, "data.mdb"))


def place_of(store: StoreOnDisk, index: int) -> str:
    """Where the record of an index lies."""
    if isinstance(store, DirectoryStore):
        return store.locate(index)
    return f"{store.path}/data.mdb, key {index}"


def watched(names: Iterable[str]) -> Iterable[str]:
    """The same names, with a bar on a terminal that shows how many have been taken."""
    from tqdm import tqdm

    bar: Iterable[str] = tqdm(
        list(names), unit=" samples", leave=False, disable=None, file=sys.stderr
    )
    return bar
