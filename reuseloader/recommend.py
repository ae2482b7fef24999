"""From measured numbers to advice: pure functions."""

from collections.abc import Callable, Mapping

from reuseloader.advice import Advice, Machine, Workers
from reuseloader.measure import Samples
from reuseloader.model import (
    AHEAD,
    STATIC,
    WORKERS,
    Costs,
    Pipeline,
    Prediction,
    first_epoch,
    smallest_hiding,
    steady_epoch,
)
from reuseloader.report import why_none

_NEAR = 1.05  # times the best: not worth more workers, or samples less fresh
_SHOWN = (1, 2, 4, 8, 16)  # lifetimes that are always predicted
_LONG = 8  # a lifetime from which on accuracy deserves a word
_READY = 2  # batches that each worker of a DataLoader, or a Prefetcher, holds ready


def numbers_of_workers(cores: int) -> list[int]:
    """What is tried: 1, 2, 4, ... and all processors."""
    doubled = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [*doubled, cores]


def recommended(
    samples: Samples,
    rates: Mapping[int, float],
    size: int,
    batch_size: int,
    *,
    step: float | None,
    pipeline: str,
    machine: Machine,
) -> Advice:
    """The advice that follows from what was measured; ``rates`` are builds/s, by workers."""
    share = -(-size // machine.ranks)  # of a rank
    training = 0.0 if step is None else step * share / batch_size
    plans = {n: _Plan(pipeline, n, rates, samples.costs, training, share) for n in rates if n}
    best = min(n for n in plans if _NEAR * rates[n] >= max(rates[n] for n in plans))
    hiding = {n: plan.hiding for n, plan in plans.items() if plan.hiding is not None}
    lifetime = None
    if step is None:
        num_workers = best
        reason = (
            "The fewest that build about as many as any tried. Which lifetime hides the builds "
            "depends on how long training takes: give step."
        )
    elif hiding:
        lifetime = min(hiding.values())
        num_workers = min(n for n in hiding if hiding[n] == lifetime)
        reason = (
            "That builds every sample while training runs: there is nothing to gain from reuse."
            if lifetime == 1
            else "The shortest lifetime at which training never waits for a build, with the fewest "
            "workers that allow it."
        )
    else:
        num_workers = best
        lifetime = plans[best].quickest()
        reason = why_none(plans[best].pipeline, plans[best].costs)
        if lifetime > 1:
            reason += " A longer lifetime would gain less than 5 %."
    if lifetime is not None and lifetime > _LONG:
        reason += " Long lifetimes can cost accuracy: weigh it against the waiting at shorter ones."
    held = samples.in_memory * machine.ranks
    plan = plans[num_workers]
    return Advice(
        size,
        batch_size,
        pipeline,
        machine,
        samples.costs,
        samples.stored,
        samples.in_memory,
        step,
        tuple(Workers(n, rate, held * _held(pipeline, n, batch_size)) for n, rate in rates.items()),
        tuple(plan.epoch(one) for one in sorted({*_SHOWN, lifetime or 1})),
        plan.epoch(lifetime or 1, first_epoch).seconds,
        samples.stored * size,
        lifetime,
        num_workers,
        reason,
    )


class _Plan:
    """A pipeline with so many workers, and what its epochs cost."""

    def __init__(
        self,
        kind: str,
        num_workers: int,
        rates: Mapping[int, float],
        costs: Costs,
        training: float,
        size: int,
    ) -> None:
        graph = kind == "graph"
        self.pipeline = Pipeline(
            num_workers,
            AHEAD if graph else WORKERS,
            rereads=graph,
            speedup=rates[num_workers] / rates[1],
        )
        # in a worker a build takes another time than here: torch has one thread there
        self.costs = Costs(1 / rates[1], costs.hit, costs.store, costs.finish)
        self._training = training
        self._size = size
        self.hiding = smallest_hiding(self.costs, self.pipeline, training=training, size=size)

    def epoch(self, lifetime: int, kind: Callable[..., Prediction] = steady_epoch) -> Prediction:
        """A mean epoch after the first, or another kind."""
        return kind(
            self.costs,
            self.pipeline,
            training=self._training,
            size=self._size,
            lifetime=lifetime,
        )

    def quickest(self) -> int:
        """The smallest power of two about as quick as any lifetime."""
        tried = [1 << power for power in range(STATIC.bit_length())]
        best = min(self.epoch(one).seconds for one in tried)
        return min(one for one in tried if self.epoch(one).seconds <= _NEAR * best)


def _held(kind: str, num_workers: int, batch_size: int) -> int:
    """Samples that are made and not yet taken by training."""
    if kind == "graph":
        return 2 * num_workers + _READY * batch_size
    return max(1, _READY * num_workers) * batch_size
