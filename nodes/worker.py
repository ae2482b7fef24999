"""What a worker of ReuseMapper is asked to do, and what runs in a worker process."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection, parent_process
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from reuseloader.codec import Codec, FileCodec
from reuseloader.digest import Digest
from reuseloader.fetcher import Fetcher
from reuseloader.key import ReuseKey
from reuseloader.mix import mix
from reuseloader.raised import add_note, portable
from reuseloader.tally import Miss
from reuseloader.tensors import TensorsCodec, UnsupportedError, encoded

WorkerInit = Callable[[int], object]

# Results cross to another process as bytes: tensors would each hold a file descriptor there.
_PLAIN, _ANY = TensorsCodec(), FileCodec()


class Request(Protocol):
    """One item of a mapper's source, and how its sample or samples are made."""

    @property
    def epoch(self) -> int:
        """The epoch it is of; of an empty list, 0."""

    @property
    def samples(self) -> int:
        """How many samples it is."""

    def needs_worker(self, fetcher: Fetcher) -> bool:
        """Whether it is worth a worker: there is something to build."""

    def perform(self, fetcher: Fetcher) -> Any:
        """Make it, in a thread."""

    def send(self, fetcher: Fetcher) -> Any:
        """Make it, in a worker process; what goes back is pickled."""

    def receive(self, fetcher: Fetcher, parcel: Any) -> Any:
        """What `send` made, here; a Miss if it cannot be had."""

    def deliver(self, fetcher: Fetcher, made: Any) -> Any:
        """The finished result of what a worker made, or of a Miss."""

    def digests(self, delivered: Any) -> list[Digest]:
        """Of each sample of the finished result."""


class BuildRequest:
    """The sample of one pair. Workers build and store it; the consumer reads and finishes it."""

    __slots__ = ("key", "why")

    def __init__(self, key: ReuseKey) -> None:
        self.key = key
        self.why = Miss.ABSENT  # once a worker is needed, why

    @property
    def epoch(self) -> int:
        """The epoch of its pair."""
        return self.key.epoch

    @property
    def samples(self) -> int:
        """One."""
        return 1

    def needs_worker(self, fetcher: Fetcher) -> bool:
        """Unless it is stored."""
        why = fetcher.missing(self.key)
        if why is None:
            return False
        self.why = why
        return True

    def perform(self, fetcher: Fetcher) -> Any:
        """Build and store it."""
        return self._build(fetcher)[0]

    def send(self, fetcher: Fetcher) -> tuple[bool, bytes] | None:
        """Build and store it; nothing need travel unless it is not stored."""
        sample, stored = self._build(fetcher)
        if stored:
            return None
        # finish must be given what torch's format gives back at a hit, down to the strides
        if fetcher.finish is None or fetcher.codec != _ANY:
            try:
                return True, encoded(sample)
            except UnsupportedError:
                pass
        return False, fetcher.encode(self.key, sample, _other_codec(fetcher))

    def receive(self, fetcher: Fetcher, parcel: tuple[bool, bytes] | None) -> Any:
        """The built sample."""
        if parcel is None:
            return fetcher.reread(self.key)
        plain, payload = parcel
        return fetcher.decode(self.key, _PLAIN if plain else _other_codec(fetcher), payload)

    def deliver(self, fetcher: Fetcher, made: Any) -> Any:
        """Finish what was built, or what is stored."""
        if isinstance(made, Miss):
            return fetcher.deliver(self.key)
        return fetcher.finished(self.key, made)

    def digests(self, delivered: Any) -> list[Digest]:
        """Of its sample."""
        return [Digest.of(self.key, delivered)]

    def _build(self, fetcher: Fetcher) -> tuple[Any, bool]:
        sample = fetcher.make(self.key, self.why)
        return sample, fetcher.keep(self.key, sample)


def _other_codec(fetcher: Fetcher) -> Codec:
    """How a sample travels that `_PLAIN` does not take: as it would be stored, if it could be."""
    return _ANY if fetcher.codec.id == _PLAIN.id else fetcher.codec


class BatchRequest(NamedTuple):
    """The samples of a list of pairs; those to be built are all built in one worker.

    If there is a finish, the worker makes the whole list, finished.
    """

    parts: list[BuildRequest]

    @property
    def epoch(self) -> int:
        """The epoch of its last pair, or 0."""
        return self.parts[-1].epoch if self.parts else 0

    @property
    def samples(self) -> int:
        """The length of the list."""
        return len(self.parts)

    def needs_worker(self, fetcher: Fetcher) -> bool:
        """Unless all is stored, and only to be read."""
        return fetcher.finish is not None or any(part.needs_worker(fetcher) for part in self.parts)

    def perform(self, fetcher: Fetcher) -> list[Any]:
        """Make all its samples, finished."""
        return [fetcher.deliver(part.key) for part in self.parts]

    def send(self, fetcher: Fetcher) -> Any:
        """A list of what `BuildRequest` sends for what is to be built, or all samples as bytes."""
        if fetcher.finish is None:
            return [
                part.send(fetcher) if part.needs_worker(fetcher) else _STORED for part in self.parts
            ]
        samples = self.perform(fetcher)
        try:
            return True, encoded(samples)
        except UnsupportedError:
            return False, _ANY.encode(samples)

    def receive(self, fetcher: Fetcher, parcel: Any) -> list[Any]:
        """What `send` made: the samples, some of which may be a Miss unless they are finished."""
        if fetcher.finish is None:
            return [
                Miss.ABSENT if sent == _STORED else part.receive(fetcher, sent)
                for part, sent in zip(self.parts, parcel, strict=True)
            ]
        plain, payload = parcel
        return (_PLAIN if plain else _ANY).decode(payload)  # type: ignore[no-any-return]

    def deliver(self, fetcher: Fetcher, made: Any) -> Any:
        """What was made, or make it here."""
        if isinstance(made, Miss):
            return self.perform(fetcher)
        if fetcher.finish is None:
            return [
                part.deliver(fetcher, sample) for part, sample in zip(self.parts, made, strict=True)
            ]
        return made

    def digests(self, delivered: Any) -> list[Digest]:
        """Of each sample of the list."""
        return [
            Digest.of(part.key, sample) for part, sample in zip(self.parts, delivered, strict=True)
        ]


_STORED = "stored"  # in a list's parcel: a sample that was there already
_TICKET = 4  # bytes of a worker's number
_GRACE = 5.0  # seconds that a worker process has to finish a build once its mapper is gone
_fetcher: Fetcher
_failure: Exception | None = None


def numbered_tickets(context: BaseContext, count: int) -> connection.Connection:
    """A pipe from which each of ``count`` workers takes its number: no lock, no semaphore."""
    ids, writer = context.Pipe(duplex=False)
    with writer:
        os.write(writer.fileno(), b"".join(n.to_bytes(_TICKET, "little") for n in range(count)))
    return ids


def start(
    fetcher: Fetcher,
    worker_init_fn: WorkerInit | None,
    ids: connection.Connection,
    stop: connection.Connection,
) -> None:
    """Set up this worker process. An error is raised by its first task: an executor swallows it."""
    global _fetcher, _failure
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the mapper
    threading.Thread(target=_end_with_the_mapper, args=(stop,), daemon=True).start()
    torch.set_num_threads(1)
    worker_id = int.from_bytes(os.read(ids.fileno(), _TICKET), "little")
    _fetcher = fetcher
    _fetcher.tally.join_workers()
    # forked workers would otherwise all have the global random state of their parent
    seed = mix(fetcher.policy.seed, worker_id)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        if worker_init_fn is not None:
            worker_init_fn(worker_id)
    except Exception as error:
        _failure = init_failure(error, worker_id)


def init_failure(error: Exception, worker_id: int) -> Exception:
    """What the tasks of a worker raise if its ``worker_init_fn`` raised ``error``."""
    if isinstance(error, StopIteration):  # as it is, it would end the pass in silence
        error = RuntimeError(f"worker_init_fn raised {error!r}")
    add_note(error, f"in worker_init_fn of worker {worker_id}")
    return error


def _end_with_the_mapper(stop: connection.Connection) -> None:
    parent = parent_process()
    gone = connection.wait([stop] if parent is None else [stop, parent.sentinel])
    if stop in gone:
        time.sleep(_GRACE)
    os._exit(1)


def send_all(requests: Sequence[Request]) -> list[Any]:
    """Make all of ``requests`` in this worker process."""
    if _failure is not None:
        raise portable(_failure)
    try:
        return [request.send(_fetcher) for request in requests]
    except Exception as error:
        raise portable(error)  # noqa: B904  # the same error, or its cause is its text
