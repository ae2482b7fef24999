"""The node where pairs become samples."""

import threading
from collections.abc import Mapping
from itertools import chain
from multiprocessing.context import BaseContext
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
from reuseloader.nodes.pulling import Pulling
from reuseloader.nodes.running import Running, Taken
from reuseloader.nodes.sampler import ReuseSampler
from reuseloader.nodes.window import Window
from reuseloader.nodes.worker import WorkerInit
from reuseloader.pickling import process_context
from reuseloader.policy import ReusePolicy
from reuseloader.report import Report
from reuseloader.stats import PassTimes, Stats
from reuseloader.tally import Miss
from reuseloader.validate import callable_or_none, instance, int_at_least


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
        in_order = instance(bool, "in_order", in_order)
        self._is_digested = instance(bool, "digest", digest)
        if method not in ("thread", "process"):
            raise ValueError(f"method must be 'thread' or 'process', got {method!r}")
        context = process_context(multiprocessing_context)
        if max_concurrent is None:
            max_concurrent = max(1, 2 * self._num_workers)
        max_concurrent = int_at_least(1, "max_concurrent", max_concurrent)
        self._snapshot_frequency = int_at_least(0, "snapshot_frequency", snapshot_frequency)
        group = 1 if prebatch is None else int_at_least(1, "prebatch", prebatch)
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
        if self._num_workers > 0 and method == "thread":
            self._pool = ThreadPool(self._fetcher, self._num_workers, worker_init_fn)
        elif self._num_workers > 0:
            self._pool = ProcessPool(self._fetcher, self._num_workers, worker_init_fn, context)
        # what is taken as it is pulled needs a snapshot of the source only when somebody asks
        ahead = self._pool is not None or group > 1
        self._fence: Fence[Running] = Fence()
        self._pulling = Pulling(
            source, self._fetcher, self._fence, self._snapshot_frequency if ahead else 0
        )
        self._window: Window | None = None
        if ahead:
            self._window = Window(
                self._pulling,
                self._fetcher,
                self._pool,
                group=group,
                max_concurrent=max_concurrent,
                in_order=in_order,
            )
        self._times: PassTimes | None = None
        self._digest: Digest | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the source's next pass, or go on where ``initial_state`` was taken."""
        super().reset(initial_state)
        self._fetcher.tally.warn()
        if self._pool is not None:
            self._pool.start()
        state = self._checked(initial_state)
        with self._pulling.lock:  # waits for a thread of the pass before that is pulling just now
            self.source.reset(state[self.SOURCE_KEY])
            progress = Progress(
                self.source.state_dict(), state[self.SKIP_KEY], state[self.AHEAD_KEY]
            )
            running = Running(
                progress,
                is_resumed=initial_state is not None,
                digest=state.get(self.DIGEST_KEY),
                is_digested=self.DIGEST_KEY in state,
            )
            before = self._fence.begin(running)
        if before is not None:
            before.cancel()

    def _checked(self, state: dict[str, Any] | None) -> dict[str, Any]:
        if state is None:
            return {
                self.SOURCE_KEY: None,
                self.SKIP_KEY: 0,
                self.AHEAD_KEY: [],
                self.DIGEST_KEY: None,
            }
        if not (isinstance(state, Mapping) and self._is_sound(state)):
            raise StateMismatchError(
                f"the state must be one of ReuseMapper, with {self.SOURCE_KEY}, {self.SKIP_KEY} "
                f"and {self.AHEAD_KEY}, got {state!r}. Load it into a graph of the same nodes"
            )
        return state

    def _is_sound(self, state: Mapping[str, Any]) -> bool:
        ahead, digest = state.get(self.AHEAD_KEY), state.get(self.DIGEST_KEY)
        lists: list[Any] = [ahead, () if digest is None else digest]
        return (
            state.get(self.SOURCE_KEY) is not None
            and all(isinstance(numbers, (list, tuple)) for numbers in lists)
            and all(_is_number(n) for n in chain([state.get(self.SKIP_KEY)], *lists))
            and (digest is None or len(digest) == Digest.WORDS)
        )

    def next(self) -> Any:
        """The next sample, or list of samples."""
        running = self._fence.check()
        running.watch.ask()
        try:
            taken = self._alone(running) if self._window is None else self._window.take(running)
            if taken is None:
                self._end(running)
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

    def _alone(self, running: Running) -> Taken | None:
        """Pull an item and make its sample here: nothing is pulled that is not taken."""
        if running.current is None:
            running.current = self._pulling.pull(running)
        if running.current is None:
            return None
        number, request = running.current
        sample = request.deliver(self._fetcher, Miss.ABSENT)
        running.current = None  # only now: after an error it is tried again
        return number, request, sample

    def _end(self, running: Running) -> NoReturn:
        """Raise what ended the source."""
        self._fetcher.tally.warn()
        if isinstance(running.error, StopIteration):
            if not running.is_resumed:
                ahead = not _in_main_thread()  # a Prefetcher's thread
                self._times = running.watch.ended(running.epoch, running.samples, ahead=ahead)
            self._digest = running.whole_digest()
            raise StopIteration
        raise running.error

    def get_state(self) -> dict[str, Any]:
        """The source's state before the oldest item not delivered, and what to skip from there."""
        running = self._fence.mine()
        if self._snapshot_frequency and self._window is None:
            with self._pulling.lock:
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
        if self._pulling.lists and self._fetcher.finish is not None:
            return Pipeline(self._num_workers, WORKERS)
        reads = AHEAD if self._times is not None and self._times.ahead else CONSUMER
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


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 0


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _require_policy(source: Any, policy: ReusePolicy) -> None:
    """The sampler upstream, if there is one, must go by the same rule."""
    while source is not None:
        if isinstance(source, ReuseSampler) and source.policy != policy:
            raise ValueError(f"policy must be that of source, {source.policy!r}, got {policy!r}")
        source = getattr(source, "source", None)
