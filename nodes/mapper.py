"""The node where pairs become samples."""

import threading
from concurrent.futures import FIRST_COMPLETED, wait
from multiprocessing.context import BaseContext
from time import perf_counter
from typing import Any, Literal, NoReturn, Self

from torchdata.nodes import BaseNode

from reuseloader.codec import Load, Save
from reuseloader.digest import Digest, told
from reuseloader.errors import StateMismatchError
from reuseloader.fetcher import Build, Fetcher, Finish, StorePath
from reuseloader.model import AHEAD, CONSUMER, WORKERS, Pipeline
from reuseloader.nodes.fence import Fence
from reuseloader.nodes.pool import Pool, ProcessPool, ThreadPool
from reuseloader.nodes.progress import Progress
from reuseloader.nodes.running import Running, Taken, Unit
from reuseloader.nodes.sampler import ReuseSampler
from reuseloader.nodes.worker import BatchRequest, BuildRequest, Request, WorkerInit
from reuseloader.order import IndexEpoch
from reuseloader.pickling import process_context
from reuseloader.policy import ReusePolicy
from reuseloader.report import Report
from reuseloader.stats import PassTimes, Stats
from reuseloader.tally import Miss
from reuseloader.validate import callable_or_none, instance, int_at_least

_LONGEST = 256  # lifetimes: how far the look-ahead goes to keep builds in flight


class ReuseMapper(BaseNode[Any]):
    """Turns each pair into its sample: reads what is stored, or builds anew and stores.

    The other arguments and the place in a pipeline are those of `torchdata.nodes.ParallelMapper`.
    Only builds go to workers; what is stored is read by the consumer when it is taken. Workers
    live across epochs. The samples are the same for every choice of these arguments.

    Args:
        source: a node of `IndexEpoch` (`ReuseSampler`, `WithEpoch`), or of lists of them. A list
            becomes a list of samples; what is to be built of it is built in one worker. With
            ``finish`` that worker makes, and finishes, the whole list.
        build, path, policy, fingerprint, save, load, format, finish, digest: see `ReuseDataset`.
        size: the number of samples, if indices are to be checked against it.
        num_workers: how many build at a time; 0 builds in the consumer.
        in_order: False delivers what is ready first. Resuming stays exact.
        method: ``"thread"`` or ``"process"``.
        multiprocessing_context: a start method or context for processes; None for Python's default.
        max_concurrent: how many builds (of ``prebatch`` items each) may be begun and not yet taken;
            2 * num_workers by default.
        snapshot_frequency: how many items apart the source is asked for its state; 0 for never.
        prebatch: how many items go to a worker in one message.
        worker_init_fn: called once in each worker with its number, from 0.

    Raises:
        TypeError, ValueError: an argument or, later, an item of ``source`` is not as described.
        OSError: ``path`` cannot be made or written.
        BrokenProcessPool: while running, a worker process died.
    """

    SOURCE_KEY = "source"
    SKIP_KEY = "skip"
    AHEAD_KEY = "ahead"
    DIGEST_KEY = "digest"

    def __init__(
        self,
        source: BaseNode[Any],
        build: Build,
        path: StorePath,
        policy: ReusePolicy,
        *,
        size: int | None = None,
        fingerprint: str = "",
        save: Save | None = None,
        load: Load | None = None,
        format: str = "torch",
        finish: Finish | None = None,
        digest: bool = False,
        num_workers: int = 0,
        in_order: bool = True,
        method: Literal["thread", "process"] = "thread",
        multiprocessing_context: str | BaseContext | None = None,
        max_concurrent: int | None = None,
        snapshot_frequency: int = 1,
        prebatch: int | None = None,
        worker_init_fn: WorkerInit | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source: BaseNode[Any] = instance(BaseNode, "source", source)
        self._num_workers = int_at_least(0, "num_workers", num_workers)
        self._in_order = instance(bool, "in_order", in_order)
        self._is_digested = instance(bool, "digest", digest)
        if method not in ("thread", "process"):
            raise ValueError(f"method must be 'thread' or 'process', got {method!r}")
        context = process_context(multiprocessing_context)
        if max_concurrent is None:
            max_concurrent = max(1, 2 * self._num_workers)
        self._max_concurrent = int_at_least(1, "max_concurrent", max_concurrent)
        self._snapshot_frequency = int_at_least(0, "snapshot_frequency", snapshot_frequency)
        self._group = 1 if prebatch is None else int_at_least(1, "prebatch", prebatch)
        worker_init_fn = callable_or_none("worker_init_fn", worker_init_fn)
        _require_policy(source, instance(ReusePolicy, "policy", policy))
        self._fetcher = Fetcher(
            build,
            path,
            policy,
            size=size,
            fingerprint=fingerprint,
            save=save,
            load=load,
            format=format,
            finish=finish,
        )
        self._pool: Pool | None = None
        self._look_ahead = 1
        if self._num_workers > 0:
            self._look_ahead = self._max_concurrent * min(policy.lifetime, _LONGEST)
            if method == "thread":
                self._pool = ThreadPool(self._fetcher, self._num_workers, worker_init_fn)
            else:
                self._pool = ProcessPool(self._fetcher, self._num_workers, worker_init_fn, context)
        # what is taken as it is pulled needs a snapshot of the source only when somebody asks
        self._ahead = self._pool is not None or self._group > 1
        self._fence: Fence[Running] = Fence()
        self._times: PassTimes | None = None
        self._is_ahead_of_training = False  # a Prefetcher's thread takes the samples
        self._lists = False  # they come in lists
        self._digest: Digest | None = None
        self._pulling = threading.Lock()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the source's next pass, or go on where ``initial_state`` was taken."""
        super().reset(initial_state)
        self._fetcher.tally.warn()
        if self._pool is not None:
            self._pool.start()
        state = self._checked(initial_state)
        with self._pulling:  # waits for a thread of the pass before that is pulling just now
            self.source.reset(state[self.SOURCE_KEY])
            progress = Progress(
                self.source.state_dict(), state[self.SKIP_KEY], state[self.AHEAD_KEY]
            )
            is_whole = initial_state is None or self.DIGEST_KEY in initial_state
            running = Running(progress, state.get(self.DIGEST_KEY), is_whole)
            before = self._fence.begin(running)
        if before is not None:
            before.cancel()

    def _checked(self, state: dict[str, Any] | None) -> dict[str, Any]:
        if state is None:
            return {self.SOURCE_KEY: None, self.SKIP_KEY: 0, self.AHEAD_KEY: []}
        numbers = [state.get(self.SKIP_KEY), *(state.get(self.AHEAD_KEY) or ())]
        if state.get(self.SOURCE_KEY) is None or any(type(n) is not int or n < 0 for n in numbers):
            raise StateMismatchError(
                f"the state must be one of ReuseMapper, with {self.SOURCE_KEY}, {self.SKIP_KEY} "
                f"and {self.AHEAD_KEY}, got {state!r}. Load it into a graph of the same nodes"
            )
        return state

    def next(self) -> Any:
        """The next sample, or list of samples."""
        running = self._fence.check()
        running.watch.ask()
        try:
            taken = self._from_window(running) if self._ahead else self._alone(running)
        except Exception:
            raise
        except BaseException as error:
            # a prefetching thread would die of it in silence, and its consumer wait for ever
            if _in_main_thread():
                raise
            raise RuntimeError(f"build or source raised {error!r}") from error
        finally:
            self._fence.require(running)  # was it broken off meanwhile? Then all is in vain
        number, request, sample = taken
        running.samples += request.samples
        if self._is_digested:
            running.add_to_digest(request, sample)
        running.progress.deliver(number)
        running.watch.got()
        return sample

    def _alone(self, running: Running) -> Taken:
        """Pull an item and make its sample here: nothing is pulled that is not taken."""
        if running.current is None:
            running.current = self._pull(running)
        if running.current is None:
            self._end(running)
        number, request = running.current
        sample = request.deliver(self._fetcher, Miss.ABSENT)
        running.current = None  # only now: after an error it is tried again
        return number, request, sample

    def _from_window(self, running: Running) -> Taken:
        """Take what is ready, after looking ahead to keep the workers busy."""
        if not running.ready:
            self._fill(running)
            if not running.window:
                self._end(running)
            unit = self._take(running)
            samples = self._samples(unit)
            running.window.remove(unit)
            running.building -= unit.future is not None
            running.ready.extend(zip(unit.numbers, unit.requests, samples, strict=True))
        return running.ready.popleft()

    def _fill(self, running: Running) -> None:
        """Look ahead and begin builds, so that all workers have something to do."""
        while (
            not running.ended
            and running.building < self._max_concurrent
            and len(running.window) < self._look_ahead
        ):
            unit = self._pull_unit(running)
            if self._pool is not None:
                unit.asked = [request.needs_worker(self._fetcher) for request in unit.requests]
                if any(unit.asked):
                    unit.future = self._pool.submit(unit.questions())
                    running.building += 1
            if unit.requests:
                running.window.append(unit)

    def _pull_unit(self, running: Running) -> Unit:
        unit = Unit()
        while len(unit.requests) < self._group:
            pulled = self._pull(running)
            if pulled is None:
                break
            unit.add(*pulled)
        return unit

    def _pull(self, running: Running) -> tuple[int, Request] | None:
        """Number and request of the next item that was not delivered before a resume.

        None if there is no more; what ended the source is raised once all before it is delivered.
        """
        if running.ended:
            return None
        progress = running.progress
        with self._pulling:
            self._fence.require(running)
            try:
                while True:
                    item = next(self.source)
                    number = progress.pull()
                    if self._ahead and self._is_due(progress.pulled):
                        progress.snapshot(self.source.state_dict())
                    if number is not None:
                        request = self._request(item)
                        running.epoch = request.epoch
                        return number, request
            except Exception as error:
                running.error = error
                running.ended = True
                if isinstance(error, StopIteration):  # an ended pass has a state without a rest
                    progress.snapshot(self.source.state_dict())
                return None

    def _is_due(self, pulled: int) -> bool:
        return self._snapshot_frequency > 0 and pulled % self._snapshot_frequency == 0

    def _request(self, item: Any) -> Request:
        if isinstance(item, IndexEpoch):
            return BuildRequest(self._fetcher.key(item))
        if isinstance(item, list) and all(isinstance(pair, IndexEpoch) for pair in item):
            self._lists = True
            return BatchRequest([BuildRequest(self._fetcher.key(pair)) for pair in item])
        raise TypeError(
            f"source must yield IndexEpoch pairs or lists of them, got {item!r}. "
            f"Put WithEpoch between a node of plain indices and ReuseMapper"
        )

    def _end(self, running: Running) -> NoReturn:
        """Raise what ended the source."""
        self._fetcher.tally.warn()
        if isinstance(running.error, StopIteration):
            ahead = self._is_ahead_of_training = not _in_main_thread()
            self._times = running.watch.ended(running.epoch, running.samples, ahead=ahead)
            self._digest = running.whole_digest()
            raise StopIteration
        raise running.error

    def _take(self, running: Running) -> Unit:
        """The unit to deliver next, in order or as soon as there is one."""
        candidates = [running.window[0]] if self._in_order else running.window
        while True:
            for unit in candidates:
                if unit.future is None or unit.future.done():
                    return unit
            began = perf_counter()
            wait([unit.future for unit in candidates if unit.future], None, FIRST_COMPLETED)
            running.watch.blocked += perf_counter() - began

    def _samples(self, unit: Unit) -> list[Any]:
        if self._pool is None or unit.future is None:
            return [request.deliver(self._fetcher, Miss.ABSENT) for request in unit.requests]
        answers = iter(self._pool.result(unit.questions(), unit.future))
        return [
            request.deliver(self._fetcher, next(answers) if asked else Miss.ABSENT)
            for request, asked in zip(unit.requests, unit.asked, strict=True)
        ]

    def get_state(self) -> dict[str, Any]:
        """The source's state before the oldest item not delivered, and what to skip from there."""
        running = self._fence.mine()
        if self._snapshot_frequency and not self._ahead:
            with self._pulling:
                if self._fence.is_current(running) and running.progress.is_level:
                    running.progress.snapshot(self.source.state_dict())
        source_state, skip, ahead = running.progress.resume()
        state = {self.SOURCE_KEY: source_state, self.SKIP_KEY: skip, self.AHEAD_KEY: ahead}
        if self._is_digested:
            state[self.DIGEST_KEY] = None if running.digest is None else running.digest.words()
        return state

    def stats(self) -> Stats:
        """What was read, built and stored so far, by this process and all workers."""
        return self._fetcher.tally.stats()

    def report(self) -> Report:
        """What `stats` and the newest whole pass mean, for people: ``print(mapper.report())``.

        It sees what takes samples from this node: training, or a Prefetcher in its stead.
        """
        newest = self._times
        return Report.of(
            self.stats(),
            newest,
            size=newest.samples if newest else self._fetcher.size,
            lifetime=self._fetcher.policy.lifetime,
            pipeline=self._pipeline(),
        )

    def _pipeline(self) -> Pipeline:
        """Who does what, as far as the passes so far have shown."""
        if self._lists and self._fetcher.finish is not None:
            return Pipeline(self._num_workers, WORKERS)
        reads = AHEAD if self._is_ahead_of_training else CONSUMER
        return Pipeline(self._num_workers, reads, rereads=isinstance(self._pool, ProcessPool))

    def digest(self) -> str:
        """A text for the samples of the newest whole pass, as `ReuseDataLoader.digest` has it.

        A pass that was resumed is whole too, if its state was saved with ``digest=True``.
        """
        return told(self._is_digested, self._digest)

    def close(self) -> None:
        """End the workers, warn of what went wrong, close the store. A reset begins anew."""
        if self._pool is not None:
            self._pool.close()
        self._fetcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _require_policy(source: Any, policy: ReusePolicy) -> None:
    """The sampler upstream, if there is one, must go by the same rule."""
    while source is not None:
        if isinstance(source, ReuseSampler) and source.policy != policy:
            raise ValueError(f"policy must be that of source, {source.policy!r}, got {policy!r}")
        source = getattr(source, "source", None)
