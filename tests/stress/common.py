"""Places, processes, users and warnings, for all scripts."""

import os
import random
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from reuseloader import ReuseWarning

T = TypeVar("T")

NOBODY = 65534  # a user whom file modes bind


@contextmanager
def directory() -> Iterator[Path]:
    """A new directory in which every user may work; gone afterwards, whatever its modes."""
    path = Path(tempfile.mkdtemp(prefix="reuseloader-stress-"))
    path.chmod(0o777)
    try:
        yield path
    finally:
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path)


def become_nobody() -> bool:
    """Give up root for good; whether file modes bind this process now."""
    if os.getuid() == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        except OSError:  # not even root may, in some containers
            return False
    return True


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """What ``function(*args)`` returns in a forked process, which may change user or limits."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_answer, args=(sender, function, args))
    process.start()
    sender.close()
    try:
        good, answer = receiver.recv()
    except EOFError:
        process.join()
        good, answer = False, f"the process ended with exit code {process.exitcode}"
    process.join()
    if not good:
        raise RuntimeError(answer)
    return answer


def _answer(sender: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = True, function(*args)
    except BaseException:
        answer = False, traceback.format_exc()
    sender.send(answer)


@contextmanager
def caught() -> Iterator[list[str]]:
    """The texts of the ReuseWarnings of a block, once it has ended; any other is an error."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("error")
        # Python 3.12 and later say so at every fork of a process with threads, as torch has
        warnings.filterwarnings("ignore", "This process .*multi-threaded", DeprecationWarning)
        warnings.simplefilter("always", ReuseWarning)
        yield texts
    texts.extend(str(record.message) for record in records)


def shuffled(things: Iterable[T], rng: random.Random) -> Iterator[T]:
    """All of them in a random order, then all again in another one, without end."""
    things = list(things)
    while True:
        rng.shuffle(things)
        yield from things
