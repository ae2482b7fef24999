"""How far ReuseMapper looks ahead in a pass, and what it takes from there."""

from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any

from reuseloader.fetcher import Fetcher
from reuseloader.nodes.pool import Pool
from reuseloader.nodes.pulling import Pulling
from reuseloader.nodes.running import Running, Taken, Unit
from reuseloader.tally import Miss

_LONGEST = 256  # lifetimes: how far the look-ahead goes to keep builds in flight


class Window:
    """Pulls items in units, begins builds in workers, and takes units in order or as they come.

    Args:
        pulling: where items come from.
        fetcher: makes the samples that no worker makes.
        pool: the workers; with None all is made here, and no unit is pulled before it is taken.
        group: the items of a unit, at least 1.
        max_concurrent: how many units may be begun and not yet taken, at least 1.
        in_order: whether units are taken as they were pulled.
    """

    def __init__(
        self,
        pulling: Pulling,
        fetcher: Fetcher,
        pool: Pool | None,
        *,
        group: int,
        max_concurrent: int,
        in_order: bool,
    ) -> None:
        self._pulling = pulling
        self._fetcher = fetcher
        self._pool = pool
        self._group = group
        self._max_concurrent = max_concurrent
        self._in_order = in_order
        self._look_ahead = 1
        if pool is not None:
            self._look_ahead = max_concurrent * min(fetcher.policy.lifetime, _LONGEST)

    def take(self, running: Running) -> Taken | None:
        """Take what is ready, after looking ahead to keep the workers busy; None at the end."""
        if not running.ready:
            self._fill(running)
            if not running.window:
                return None
            unit = self._take_unit(running)
            samples = self._samples(unit)
            running.window.remove(unit)
            running.building -= any(unit.asked)
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
            pulled = self._pulling.pull(running)
            if pulled is None:
                break
            unit.add(*pulled)
        return unit

    def _take_unit(self, running: Running) -> Unit:
        """The unit to deliver next, in order or as soon as there is one."""
        candidates = [running.window[0]] if self._in_order else running.window
        while True:
            for unit in candidates:
                if unit.future is None or unit.future.done():
                    return unit
            wait([unit.future for unit in candidates if unit.future], None, FIRST_COMPLETED)

    def _samples(self, unit: Unit) -> list[Any]:
        if self._pool is None or not any(unit.asked):
            return [request.deliver(self._fetcher, Miss.ABSENT) for request in unit.requests]
        if unit.future is None:
            unit.future = self._pool.submit(unit.questions())
        try:
            answers = iter(self._pool.result(unit.questions(), unit.future))
        except Exception:
            unit.future = None  # who asks again has it tried again, as without workers
            raise
        return [
            request.deliver(self._fetcher, next(answers) if asked else Miss.ABSENT)
            for request, asked in zip(unit.requests, unit.asked, strict=True)
        ]
