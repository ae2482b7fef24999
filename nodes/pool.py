"""The workers of ReuseMapper: threads or processes, on the standard library's executors."""

import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from multiprocessing import connection
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize, is_exiting
from typing import Any, Protocol

from reuseloader.fetcher import Fetcher
from reuseloader.nodes import worker
from reuseloader.nodes.worker import Request, WorkerInit
from reuseloader.pickling import explain_pickling

_NOTICE = 2.0  # seconds that an executor has to notice the death of a worker by itself
_open_pools: "weakref.WeakSet[ThreadPool | ProcessPool]" = weakref.WeakSet()


def _close_open_pools() -> None:
    for pool in tuple(_open_pools):
        pool.close()


# concurrent.futures carries out all that was submitted before the interpreter may leave, and atexit
# comes too late to prevent that. Its own hook was registered before this one and runs after it.
threading._register_atexit(_close_open_pools)  # type: ignore[attr-defined]
# A forked process of multiprocessing runs that hook too when it ends: these pools are not its own.
os.register_at_fork(after_in_child=_open_pools.clear)


class Pool(Protocol):
    """Takes groups of requests and makes them all in one worker."""

    def start(self) -> None:
        """Have workers, also after some have died."""

    def submit(self, requests: Sequence[Request]) -> Future[Any]:
        """Begin to make ``requests``."""

    def result(self, requests: Sequence[Request], future: Future[Any]) -> list[Any]:
        """Wait for what was made of ``requests``."""

    def close(self) -> None:
        """End the workers once they have done what they are doing."""


class ThreadPool:
    """Worker threads; they end when the pool is closed or dropped."""

    def __init__(
        self, fetcher: Fetcher, num_workers: int, worker_init_fn: WorkerInit | None
    ) -> None:
        self._fetcher = fetcher
        self._worker_init_fn = worker_init_fn
        self._num_workers = num_workers
        self._executor: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Have an executor; its threads start when they are needed."""
        if self._executor is None:
            self._setup = _ThreadSetup(self._fetcher, self._worker_init_fn)
            self._executor = ThreadPoolExecutor(
                self._num_workers,
                thread_name_prefix="ReuseMapper",
                initializer=self._setup.start,
            )
            self._end = weakref.finalize(
                self, self._executor.shutdown, wait=False, cancel_futures=True
            )
            _open_pools.add(self)

    def submit(self, requests: Sequence[Request]) -> Future[Any]:
        """Begin to make ``requests`` in a thread."""
        return _open(self._executor).submit(self._setup.perform_all, requests)

    def result(self, requests: Sequence[Request], future: Future[Any]) -> list[Any]:
        """Wait for what was made of ``requests``."""
        return future.result()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Wait for running builds and end the threads."""
        if self._executor is not None:
            self._end.detach()
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None


class _ThreadSetup:
    """What the threads share; it does not know the pool, so the pool can be dropped."""

    def __init__(self, fetcher: Fetcher, worker_init_fn: WorkerInit | None) -> None:
        self._fetcher = fetcher
        self._worker_init_fn = worker_init_fn
        self._ids = count()
        self._failure: Exception | None = None

    def start(self) -> None:
        if self._worker_init_fn is not None:
            worker_id = next(self._ids)
            try:
                self._worker_init_fn(worker_id)
            except Exception as error:  # an executor would swallow it
                self._failure = worker.init_failure(error, worker_id)

    def perform_all(self, requests: Sequence[Request]) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        return [request.perform(self._fetcher) for request in requests]


class ProcessPool:
    """Worker processes; they live across epochs and end with the pool or with this process."""

    def __init__(
        self,
        fetcher: Fetcher,
        num_workers: int,
        worker_init_fn: WorkerInit | None,
        context: BaseContext,
    ) -> None:
        self._fetcher = fetcher
        self._num_workers = num_workers
        self._worker_init_fn = worker_init_fn
        self._context = context
        self._executor: ProcessPoolExecutor | None = None

    def start(self) -> None:
        """Have workers, before there are threads to fork beside if this is called early."""
        if self._executor is not None and not _is_broken(self._executor):
            return
        ids = worker.numbered_tickets(self._context, self._num_workers)
        stop, stopper = self._context.Pipe(duplex=False)
        executor = ProcessPoolExecutor(
            self._num_workers,
            mp_context=self._context,
            initializer=worker.start,
            initargs=(self._fetcher, self._worker_init_fn, ids, stop),
        )
        try:
            for _ in range(self._num_workers):  # an executor starts a process for each task
                executor.submit(worker.send_all, ())
        except Exception as error:
            explain_pickling(
                error, self._context, **self._fetcher.parts, worker_init_fn=self._worker_init_fn
            )
            raise
        stopping = threading.Event()
        threading.Thread(target=_watch, args=(executor, stopping), daemon=True).start()
        self._executor, self._stopping = executor, (stopper, stopping)
        self._end = Finalize(
            self, _end_processes, (executor, *self._stopping), {"wait": False}, exitpriority=100
        )
        _open_pools.add(self)

    def submit(self, requests: Sequence[Request]) -> Future[Any]:
        """Begin to make ``requests`` in a process."""
        return _open(self._executor).submit(worker.send_all, requests)

    def result(self, requests: Sequence[Request], future: Future[Any]) -> list[Any]:
        """Wait for what was made of ``requests``."""
        try:
            parcels = future.result()
        except BrokenProcessPool as error:
            error.add_note(
                "a worker process of ReuseMapper died: killed (out of memory?), crashed in build, "
                "or unable to start"
            )
            raise
        return [
            request.receive(self._fetcher, parcel)
            for request, parcel in zip(requests, parcels, strict=True)
        ]

    def close(self) -> None:
        """End the processes, those that build after a few seconds at the latest."""
        if self._executor is not None:
            self._end.cancel()
            _end_processes(self._executor, *self._stopping, wait=True)
            self._executor = None


def _open(executor: Executor | None) -> Executor:
    if executor is None:
        raise RuntimeError("ReuseMapper is closed; reset() opens it again")
    return executor


def _is_broken(executor: ProcessPoolExecutor) -> bool:
    if not all(worker.is_alive() for worker in tuple((executor._processes or {}).values())):
        return True  # which the executor itself may not have noticed yet
    try:
        executor.submit(worker.send_all, ())
    except BrokenProcessPool:
        return True
    return False


def _watch(executor: ProcessPoolExecutor, stopping: threading.Event) -> None:
    """Break an executor that waits for the rest of what a worker was sending when it was killed.

    It reads on as long as somebody holds the pipe open to write: the other workers, and itself.
    """
    workers = list((executor._processes or {}).values())
    connection.wait([worker.sentinel for worker in workers])
    if not stopping.wait(_NOTICE):
        for worker in workers:
            worker.kill()
        executor._result_queue._writer.close()  # type: ignore[attr-defined]


def _end_processes(
    executor: Executor, stopper: Any, stopping: threading.Event, *, wait: bool
) -> None:
    stopping.set()
    stopper.send_bytes(b"stop")  # seen by all workers, read by none
    executor.shutdown(wait=wait or is_exiting(), cancel_futures=True)
