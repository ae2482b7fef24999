"""Runs the command line in this process, and stores for it to look at."""

import json
import os
import pickle
from dataclasses import dataclass
from multiprocessing import get_context

import pytest
from helpers import FOREVER, SIZE, overwrite, run_pass, sample_of, snapshot

from reuseloader import LMDBStore, ReuseDataset, ReusePolicy
from reuseloader.cli.main import main

FORMATS = {
    "torch": {},
    "tensors": {"format": "tensors"},
    "unknown (custom save)": {"save": pickle.dump, "load": pickle.load},
}
DAMAGES = {  # each of a kind that is seen at the end of the file, or not
    "empty": (overwrite(lambda b: b""), True),
    "truncated": (overwrite(lambda b: b[:-1]), True),
    "zeroed": (overwrite(lambda b: bytes(len(b))), True),
    "beginning lost": (overwrite(lambda b: b[1:]), True),
    "flipped byte": (overwrite(lambda b: b[:100] + bytes([b[100] ^ 1]) + b[101:]), False),
    "directory": (lambda path: (path.unlink(), path.mkdir()), True),
    "dangling link": (lambda path: (path.unlink(), path.symlink_to("nowhere")), True),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), True),
}


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def facts(self):
        return json.loads(self.out, parse_constant=pytest.fail)


def cli(capsys, *argv):
    """Run the command line with these arguments."""
    try:
        code = main(list(map(str, argv)))
    except SystemExit as end:
        code = end.code
    return Result(code, *capsys.readouterr())


def both(capsys, *argv):
    """What a command says to people and, as facts, to programs; with the same exit code."""
    said, told = cli(capsys, *argv), cli(capsys, *argv, "--json")
    assert said.code == told.code
    assert said.err == told.err == ""
    return said.code, said.out, told.facts


def assert_error(result, *words):
    """It ended with exit code 2, with one line on stderr and nothing on stdout."""
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("reuseloader: error: ")
    assert result.err.count("\n") == 1
    for word in words:
        assert str(word) in result.err


def fill(path, policy=FOREVER, epoch=0, *, size=SIZE, **options):
    """Store the samples of one pass, and let go of the store."""
    with ReuseDataset(sample_of, size, path, policy, **options) as dataset:
        run_pass(dataset, epoch)


def fill_lmdb(path, policy=FOREVER, epoch=0, **options):
    fill(LMDBStore(path), policy, epoch, **options)


FILL = {"directory": fill, "lmdb": fill_lmdb}


def fill_mixed(path, kind="directory"):
    """Two generations, and two samples of another lifetime and fingerprint."""
    FILL[kind](path, ReusePolicy(4, 3), 1)
    FILL[kind](path, ReusePolicy(7, 3), 0, size=2, fingerprint="other")


def state_of(directory):
    """All that must not change: files, their times and contents, and the directory's own time."""
    return snapshot(directory), os.stat(directory).st_mtime_ns


def write_until_told(fill, path, pipe):
    """Fill a store anew, generation after generation, until a word comes."""
    epoch = 0
    while not pipe.poll():
        fill(path, ReusePolicy(1000, 3), epoch)
        if epoch == 0:
            pipe.send("begun")
        epoch += 1000
    pipe.send(epoch)


class Writer:
    """Another process that writes a store all the time."""

    def __init__(self, fill, path):
        context = get_context("fork")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=write_until_told, args=(fill, path, there))
        self._process.start()
        there.close()

    def __enter__(self):
        assert self._pipe.recv() == "begun"

    def __exit__(self, *exc_info):
        self._pipe.send("stop")
        assert self._pipe.recv() > 0
        self._process.join()
