"""The same samples made again and again, and why one of them came out otherwise."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from reuseloader.contract import first_breach
from reuseloader.difference import first_difference
from reuseloader.errors import ImpureBuildError
from reuseloader.fetcher import Fetcher
from reuseloader.fresh_process import FreshProcess, Made
from reuseloader.key import ReuseKey
from reuseloader.raised import add_note
from reuseloader.random_states import SEEDERS, seed_all
from reuseloader.seeding import NotInMainThreadError

# trials, by the number that their global random states follow from
_FIRST, _AGAIN, _THREAD = range(3)
_RULE = {
    "build": "build must give the same sample for the same key",
    "finish": "finish must give the same for the same sample and key",
}
_GENERATORS = {
    "random": ("`random`", "random.Random({seed})"),
    "numpy.random": ("NumPy, `np.random`", "np.random.default_rng({seed})"),
    "torch": ("torch", "generator=torch.Generator().manual_seed({seed})"),
}


class Trials:
    """The samples of some keys as they were first made, and as they are made later."""

    def __init__(self, fetcher: Fetcher, keys: Sequence[ReuseKey]) -> None:
        self._fetcher = fetcher
        self._keys = keys
        self._first: list[Made] = []

    def build_first(self) -> None:
        """Build one after another, through save and load; keep what was loaded."""
        live = []
        for number, key in enumerate(self._keys):
            seed_all(_FIRST, number)
            sample = self._fetcher.make(key)
            payload = self._fetcher.encode(key, sample)
            loaded = self._loaded(key, payload)
            found = first_difference(sample, loaded)
            if found is not None:
                raise ImpureBuildError(
                    f"save and load must give back every value, type and dtype, but for "
                    f"{_words(key)}: {found.between('as built', 'as loaded')}"
                )
            live.append(sample)
            made = Made(loaded)
            if self._fetcher.finish is not None:
                made = Made(loaded, self._fetcher.finished(key, self._loaded(key, payload)))
            self._first.append(made)
        for key, sample, made in zip(self._keys, live, self._first, strict=True):
            found = first_difference(made.built, sample)
            if found is not None:
                raise ImpureBuildError(
                    f"build must not change a sample that it has returned, but for {_words(key)}: "
                    f"{found.between('as returned', 'after later builds')}. Return a copy of what "
                    f"build keeps (`.clone()`, `.copy()`), and change nothing but that copy"
                )
        self._built_in = int(time.time())

    def require_agreement(self) -> None:
        """Samples of all indices are of one kind, as they are delivered."""
        delivered = [
            made.built if self._fetcher.finish is None else made.finished for made in self._first
        ]
        first_key = self._keys[0]
        for key, sample in zip(self._keys, delivered, strict=True):
            found = first_breach(delivered[0], sample)
            if found is not None:
                raise ImpureBuildError(
                    f"samples must agree in names, types, dtypes and numbers of dimensions, but "
                    f"{found.between(f'for {_words(first_key)}', f'for {_words(key)}')}. "
                    f"Pass contract=False if they are meant to differ"
                )

    def build_again(self) -> None:
        """Build from the last to the first, under other global random states."""
        for number, _ in [*enumerate(self._keys)][::-1]:
            self._build(number, _AGAIN, "built again", self._why_again)

    def build_in_thread(self) -> None:
        """Build in this thread, which is another one, unless build says that it must not be."""
        with suppress(NotInMainThreadError):
            for number, _ in enumerate(self._keys):
                self._build(number, _THREAD, "built in another thread", _why_in_thread)

    def build_in_process(self, process: FreshProcess) -> None:
        """Compare with what another process builds, at another second of the clock."""
        # a pause of less than a second, also where somebody sets or stops the clock
        time.sleep(min(max(self._built_in + 1.001 - time.time(), 0), 1))

        def why(what: str, number: int, sample: Any) -> str:
            return self._why_in_process(what, number, sample, process.start_method)

        how = f"made in another process ({process.start_method})"
        for number, made in process.samples():
            self._compare("build", number, made.built, how, why)
            if self._fetcher.finish is not None:
                self._compare("finish", number, made.finished, how, why)

    def _build(self, number: int, trial: int, how: str, why: Callable[..., str]) -> None:
        seed_all(trial, number)
        key = self._keys[number]
        sample = self._fetcher.make(key)
        self._compare("build", number, sample, how, why)
        if self._fetcher.finish is not None:
            self._compare("finish", number, self._fetcher.finished(key, sample), how, why)

    def _compare(
        self, what: str, number: int, sample: Any, how: str, why: Callable[..., str]
    ) -> None:
        first = self._first[number]
        found = first_difference(first.built if what == "build" else first.finished, sample)
        if found is not None:
            raise ImpureBuildError(
                f"{_RULE[what]}, but for {_words(self._keys[number])}: "
                f"{found.between('at first', how)}. {why(what, number, sample)}"
            )

    def _made(self, what: str, number: int) -> Any:
        """A sample made anew, that nothing will change."""
        key = self._keys[number]
        if what == "finish":
            payload = self._fetcher.encode(key, self._first[number].built)
            return self._fetcher.finished(key, self._loaded(key, payload))
        return self._loaded(key, self._fetcher.encode(key, self._fetcher.make(key)))

    def _loaded(self, key: ReuseKey, payload: bytes) -> Any:
        try:
            return self._fetcher.codec.decode(payload)
        except Exception as error:
            add_note(error, f"in load for {_words(key)}")
            raise

    def _why_again(self, what: str, number: int, sample: Any) -> str:
        """The cause, found by further builds."""
        seed = "key.seed" if what == "build" else "key.use_seed"

        def made() -> Any:
            return self._made(what, number)

        seed_all(_FIRST, number)
        reference = made()
        seed_all(_FIRST, number)
        if first_difference(reference, made()) is not None:
            return (
                f"It is not the global random states: {what} reads the clock, or keeps something "
                f"from call to call (a generator made once, a counter, data changed in place). "
                f"Make random generators from {seed} in each call, and change nothing that is kept"
            )
        for name, reseed in SEEDERS.items():
            seed_all(_FIRST, number)
            reseed(_AGAIN)
            if first_difference(reference, made()) is not None:
                generator, remedy = _GENERATORS[name]
                return (
                    f"It draws from the global random state of {generator}. "
                    f"Use {remedy.format(seed=seed)} instead"
                )
        return (
            "It depends on what was made before: on the first call, on the one before it, on a "
            "cache, or on data that was changed in place. What is kept from call to call must "
            "stay as it is, and a cached value depend on nothing but what it is looked up by"
        )

    def _why_in_process(self, what: str, number: int, sample: Any, start_method: str) -> str:
        first = getattr(self._first[number], "built" if what == "build" else "finished")
        seed_all(_FIRST, number)
        if first_difference(self._made(what, number), first) is not None:
            return (
                f"It differs here too by now: {what} reads the clock, in seconds perhaps. Nothing "
                f"but the key may decide a sample"
            )
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            if first_difference(self._made(what, number), sample) is None:
                return (
                    "It rounds otherwise where torch runs with one thread, as in worker processes. "
                    "Call torch.set_num_threads(1) in the main process, or compute in NumPy"
                )
        finally:
            torch.set_num_threads(threads)
        fresh = "the order of a set (sort it), " if start_method != "fork" else ""
        return (
            f"Something that no key decides is different there: {fresh}os.getpid(), the "
            f"environment, or a cache that was filled in another order (what is cached must depend "
            f"on nothing but what it is looked up by)"
        )


def _why_in_thread(what: str, number: int, sample: Any) -> str:
    return (
        "It depends on the thread: on threading.local, or on the name or number of the thread. "
        "Keep nothing in a thread that decides what a sample is"
    )


def _words(key: ReuseKey) -> str:
    return f"index {key.index}, epoch {key.epoch}"
