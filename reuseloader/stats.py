"""What a loader has done so far, in numbers."""

from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Stats:
    """Totals since a loader was made, of all its workers, threads and processes.

    Every sample was a hit or a build, also one that was made ahead and never taken. Seconds are
    summed over workers, so that two that build for a second each count two.
    """

    hits: int = 0  # samples read back
    new_generation: int = 0  # built since their first use was due, as the rule says
    absent: int = 0  # built in mid-life: nothing was stored
    other_stamp: int = 0  # built in mid-life: of another seed, lifetime, fingerprint or codec
    damaged: int = 0  # built in mid-life: what was stored could not be read
    unsaved: int = 0  # built, delivered, and not stored for an error
    unsaved_reason: str = ""  # of the first of those: place and error
    bytes_read: int = 0  # by hits, trailers included
    bytes_written: int = 0
    build_seconds: float = 0.0
    load_seconds: float = 0.0  # read and decode, of hits
    store_seconds: float = 0.0  # encode and write
    finish_seconds: float = 0.0

    @property
    def builds(self) -> int:
        """How many samples were built, for whatever reason."""
        return self.new_generation + self.absent + self.other_stamp + self.damaged

    @property
    def samples(self) -> int:
        """How many samples were read or built."""
        return self.hits + self.builds

    @property
    def hit_rate(self) -> float:
        """Hits per sample, 0 to 1; 0 before the first sample."""
        return self.hits / self.samples if self.samples else 0.0


@dataclass(frozen=True)
class PassTimes:
    """The newest whole pass of a loader; one that was resumed is none."""

    epoch: int
    elapsed: float  # seconds from its first item asked for to its end
    waited: float  # seconds thereof that its consumer waited for items
    samples: int  # that it delivered
    ahead: bool = False  # whether the consumer is a thread that runs ahead of training


class PassWatch:
    """Times one pass, where its items are taken."""

    __slots__ = ("_asked", "_began", "_waited")

    def __init__(self) -> None:
        self._began = self._asked = self._waited = 0.0

    def ask(self) -> None:
        """The consumer asks for an item."""
        self._asked = perf_counter()
        if self._began == 0.0:
            self._began = self._asked

    def got(self) -> None:
        """It has the item."""
        self._waited += perf_counter() - self._asked

    def ended(self, epoch: int, samples: int, *, ahead: bool = False) -> PassTimes:
        """There was no item left: the whole pass."""
        self.got()
        return PassTimes(epoch, perf_counter() - self._began, self._waited, samples, ahead)
