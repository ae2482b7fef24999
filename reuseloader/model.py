"""What an epoch costs at a lifetime: pure functions of numbers.

An epoch over n samples at lifetime L builds B of them: in epoch 0 all n; afterwards those with
``(epoch + index) % L == 0``, n / L on average and always within one of that. It reads the others.
Built samples that are used again are stored as well: all B, except in epoch 0, where the n // L
whose first use is also their last are not, and at lifetime 1, where none is.

Each of these works is done in one of three places, which run side by side:

- the *workers*: W of them share their work evenly, as the balanced order sees to (a plain order
  takes up to 1.3 times as long);
- a thread that runs *ahead* of training (torchdata's ``Prefetcher``), in the training process;
- the *consumer*, the training loop itself, which also trains.

An epoch takes as long as the busiest place:

    max(work of the workers / W, work ahead, training + work left to the consumer)

Builds, with their storing, are done by the workers, if there are any. Reading and `finish` belong
to the workers in a DataLoader, and to the process that trains in a graph of nodes: ahead, or
without a Prefetcher in the consumer. A graph's worker processes hand over even what they built
through the store, so there each sample is read once by the process that trains.

Left out: the filling of an empty pipeline, about a batch an epoch; collating and moving batches;
processors that training and workers take from each other.
"""

from dataclasses import dataclass

WORKERS, AHEAD, CONSUMER = "workers", "ahead", "consumer"
STATIC = 10**9  # a lifetime at which nothing is ever built again


@dataclass(frozen=True)
class Costs:
    """Seconds that a sample takes one worker."""

    build: float
    hit: float  # read and decode
    store: float = 0.0  # encode and write
    finish: float = 0.0


@dataclass(frozen=True)
class Pipeline:
    """Who does what.

    Args:
        num_workers: how many build beside training; 0 builds where samples are read.
        reads: where samples are read and finished: ``"workers"`` (DataLoader), ``"ahead"`` (a
            graph of nodes with a Prefetcher) or ``"consumer"`` (a graph without).
        rereads: whether what a worker built is read again where it is used, as with the worker
            processes of a graph.
        speedup: how many times the work of one worker all of them do; ``num_workers`` if None.
    """

    num_workers: int
    reads: str = WORKERS
    rereads: bool = False
    speedup: float | None = None

    @property
    def builds_in(self) -> str:
        """Where samples are built."""
        return WORKERS if self.num_workers else self.reads_in

    @property
    def reads_in(self) -> str:
        """Where samples are read; a DataLoader without workers does all in the consumer."""
        return CONSUMER if self.reads == WORKERS and not self.num_workers else self.reads


@dataclass(frozen=True)
class Prediction:
    """An epoch at a lifetime."""

    lifetime: int
    builds: float  # on average over epochs
    seconds: float
    wait: float  # seconds thereof that training stands still for samples


def steady_epoch(
    costs: Costs, pipeline: Pipeline, *, training: float, size: int, lifetime: int
) -> Prediction:
    """The mean epoch after the first, over ``size`` samples, with ``training`` seconds of its own.

    All numbers are >= 0, ``lifetime`` >= 1.
    """
    work = _steady_work(costs, pipeline, training, size, lifetime)
    return _prediction(lifetime, size / lifetime, training, work)


def first_epoch(
    costs: Costs, pipeline: Pipeline, *, training: float, size: int, lifetime: int
) -> Prediction:
    """Epoch 0, which builds all and stores what is used again."""
    work = _work(costs, pipeline, training, size, size, size - size // lifetime)
    return _prediction(lifetime, size, training, work)


def smallest_hiding(costs: Costs, pipeline: Pipeline, *, training: float, size: int) -> int | None:
    """The smallest lifetime up to `STATIC` at which training never waits for a build.

    From there on a longer lifetime only makes samples less fresh. None if there is no such: samples
    are built by the consumer itself, or reading them alone is too slow.
    """
    if pipeline.builds_in == CONSUMER:
        return None

    def keeps_up(lifetime: int, *places: str) -> bool:
        work = _steady_work(costs, pipeline, training, size, lifetime)
        return all(work[place] <= work[CONSUMER] for place in places)

    if keeps_up(1, WORKERS, AHEAD):
        return 1
    # From 2 on, the place that builds has less to do the longer the lifetime, unless a hit costs
    # more than a build; then it has too much at each, as it had at 1. The consumer never has less.
    low, high = 2, STATIC
    while low < high:
        middle = (low + high) // 2
        if keeps_up(middle, pipeline.builds_in):
            high = middle
        else:
            low = middle + 1
    return low if keeps_up(low, WORKERS, AHEAD) else None


def _steady_work(
    costs: Costs, pipeline: Pipeline, training: float, size: int, lifetime: int
) -> dict[str, float]:
    builds = size / lifetime
    return _work(costs, pipeline, training, size, builds, builds if lifetime > 1 else 0.0)


def _work(
    costs: Costs,
    pipeline: Pipeline,
    training: float,
    size: int,
    builds: float,
    stored: float,
) -> dict[str, float]:
    """Seconds that each place is at work."""
    reads = size if pipeline.rereads and pipeline.num_workers else size - builds
    work = {WORKERS: 0.0, AHEAD: 0.0, CONSUMER: training}
    work[pipeline.builds_in] += builds * costs.build + stored * costs.store
    work[pipeline.reads_in] += reads * costs.hit + size * costs.finish
    if pipeline.num_workers:
        work[WORKERS] /= pipeline.speedup or pipeline.num_workers
    return work


def _prediction(
    lifetime: int, builds: float, training: float, work: dict[str, float]
) -> Prediction:
    seconds = max(work.values())
    return Prediction(lifetime, builds, seconds, seconds - training)
