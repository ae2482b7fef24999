"""A process that has built nothing yet, to build the same samples there."""

import multiprocessing
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch

from reuseloader.codec import FileCodec
from reuseloader.fetcher import Fetcher
from reuseloader.key import ReuseKey
from reuseloader.pickling import explain_pickling, process_context
from reuseloader.raised import add_note, describe, portable
from reuseloader.random_states import seed_all

_TRIAL = 3  # its number among those of `reuseloader.trials`
_ANY = FileCodec()  # for what comes of finish, which need not be storable


class Made(NamedTuple):
    """A sample as built, and what finish made of it, if there is a finish."""

    built: Any
    finished: Any = None


class FreshProcess:
    """Makes the samples of some keys, from the last to the first. To be closed."""

    def __init__(self, fetcher: Fetcher, keys: Sequence[ReuseKey], context: BaseContext) -> None:
        self.start_method = context.get_start_method()
        self._fetcher = fetcher
        self._keys = keys
        self._answers, theirs = context.Pipe()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, self._answers, _Parcel(fetcher), keys)
        )
        try:
            self._process.start()
        except Exception as error:
            self._answers.close()
            explain_pickling(error, context, **fetcher.parts)
            raise
        finally:
            theirs.close()
        try:
            self._require_start()
        except BaseException:
            self.close()
            raise

    def _require_start(self) -> None:
        trouble = self._receive("started")
        if trouble is not None:
            raise TypeError(
                f"build cannot be had in a process started by {self.start_method!r}: {trouble}. "
                f"Make it a function of a module, or use multiprocessing_context='fork'"
            )

    def samples(self) -> Iterator[tuple[int, Made]]:
        """Have them made, and return each with the number of its key."""
        self._answers.send("go")
        for number, key in _backwards(self._keys):
            answer = self._receive(f"made index {key.index}, epoch {key.epoch}")
            if isinstance(answer, Exception):
                raise answer
            built, finished = answer
            yield (
                number,
                Made(
                    self._fetcher.codec.decode(built),
                    None if finished is None else _ANY.decode(finished),
                ),
            )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._answers.close()

    def _receive(self, doing: str) -> Any:
        try:
            return self._answers.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(
                f"a process started by {self.start_method!r} ended with exit code "
                f"{self._process.exitcode} before it had {doing}. Its own message is above; does "
                f'the script have `if __name__ == "__main__":` around what it does?'
            ) from None


@contextmanager
def fresh_process(
    fetcher: Fetcher, keys: Sequence[ReuseKey], context: str | BaseContext | None
) -> Iterator[FreshProcess]:
    """Start a process; without a context a new interpreter, or where that cannot be, a fork."""
    if context is not None:
        process = FreshProcess(fetcher, keys, process_context(context))
    else:
        try:
            process = FreshProcess(fetcher, keys, process_context("spawn"))
        except RuntimeError:  # the script has no guard: what it does would be done again in there
            raise
        except Exception:  # build, or something that goes along, cannot go there
            if "fork" not in multiprocessing.get_all_start_methods():
                raise
            process = FreshProcess(fetcher, keys, process_context("fork"))
    try:
        yield process
    finally:
        process.close()


class _Parcel:
    """Is unpickled only when it is opened, so that a failure can be told of."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher: Fetcher | None = fetcher
        self._pickled = b""

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._fetcher))

    def __setstate__(self, state: bytes) -> None:
        self._fetcher, self._pickled = None, state

    def open(self) -> Fetcher:
        return self._fetcher or ForkingPickler.loads(self._pickled)


def _backwards(keys: Sequence[ReuseKey]) -> list[tuple[int, ReuseKey]]:
    return list(enumerate(keys))[::-1]


def _serve(
    answers: Connection, theirs: Connection, parcel: _Parcel, keys: Sequence[ReuseKey]
) -> None:
    """What the process does: say whether it can, wait for a word, and send sample by sample."""
    theirs.close()  # a fork has it too, and would not see it closed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this
    torch.set_num_threads(1)  # as in workers
    try:
        fetcher = parcel.open()
    except Exception as error:
        answers.send(describe(error))
        return
    answers.send(None)
    try:
        answers.recv()
    except EOFError:
        return
    try:
        for number, key in _backwards(keys):
            answers.send(_made(fetcher, key, number))
    except Exception as error:
        add_note(error, f"in another process:\n{traceback.format_exc()}")
        answers.send(portable(error))


def _made(fetcher: Fetcher, key: ReuseKey, number: int) -> tuple[bytes, bytes | None]:
    seed_all(_TRIAL, number)
    sample = fetcher.make(key)
    built = fetcher.encode(key, sample)
    if fetcher.finish is None:
        return built, None
    return built, _ANY.encode(fetcher.finished(key, sample))
