"""Simulate 1,024 ranks that share 10**9 samples: balance, disjointness, cost of a position.

    python -W error tests/stress/ranks.py --rounds 100

A round is one epoch of a random lifetime, seed, placement and order, shuffled or not. Some ranks
are walked through from end to end: length, builds, nothing twice. All ranks together are looked at
where they take their whole rounds, at random places, and in the tail, where they take what is left:
no two have an index in common, and each builds what is due. At the end the cost of a position is
measured for few and many samples and ranks: it may not grow.
"""

import random
import statistics
import sys
import time
from itertools import chain, islice

import numpy as np
from report import Report, arguments

from reuseloader import ReusePolicy
from reuseloader.order import SampleOrder

WALKED = 2  # ranks walked through in a round
PLACES = 3  # whole rounds of blocks looked at in a round
COUNT = 2**15  # positions of which the cost is measured
TIMES = 15
GROWTH = 3.0  # times the cost for few samples and one rank


class Epoch:
    """One epoch of all ranks."""

    def __init__(self, rng: random.Random, size: int, ranks: int) -> None:
        self.size = size - rng.randrange(size // 10)
        self.ranks = ranks
        self.policy = ReusePolicy(rng.choice([1, 2, 3, 4, 5, 8, 100]), rng.getrandbits(64))
        self.shuffle = rng.random() < 0.7
        self.placement = rng.choice(["shared", "local"])
        self.number = rng.randrange(1, 1000)

    def __str__(self) -> str:
        order = f"{'' if self.shuffle else 'un'}shuffled, {self.placement}"
        return f"{self.policy}, epoch {self.number}, {self.size} samples, {order}"

    def order(self, rank: int) -> SampleOrder:
        """The order of one rank."""
        return self.policy.sample_order(
            self.size,
            shuffle=self.shuffle,
            rank=rank,
            world_size=self.ranks,
            placement=self.placement,
        )

    def drawn(self, rank: int, start: int = 0, count: int | None = None) -> np.ndarray:
        """The indices of a rank from its position ``start`` on."""
        blocks = self.order(rank).blocks(self.number, start)
        return np.fromiter(islice(chain.from_iterable(blocks), count), dtype=np.int64)

    def builds(self, indices: np.ndarray) -> int:
        """How many of them begin a generation."""
        return int(((indices + self.number) % self.policy.lifetime == 0).sum())


def walk(epoch: Epoch, rank: int, report: Report) -> None:
    """One rank from end to end."""
    indices = epoch.drawn(rank)
    length = -(-epoch.size // epoch.ranks)
    report.expect(len(indices) == length, "lengths wrong", f"{epoch}: rank {rank}, {len(indices)}")
    own = indices[: length - (rank >= epoch.ranks - -epoch.size % epoch.ranks)]  # without padding
    report.expect(len(np.unique(own)) == len(own), "indices twice", f"{epoch}: rank {rank}")
    due = epoch.policy.builds(epoch.number, epoch.size) / epoch.ranks
    fair = abs(epoch.builds(own) - due) < 1
    report.expect(
        fair, "builds uneven", f"{epoch}: rank {rank} builds {epoch.builds(own)} of {due}"
    )
    report.count("pairs walked", len(own))


def look(epoch: Epoch, start: int, count: int, report: Report) -> None:
    """All ranks at the same positions; in whole rounds each block of each rank builds one."""
    parts = [epoch.drawn(rank, start, count) for rank in range(epoch.ranks)]
    together = np.concatenate(parts)
    where = f"{epoch}: positions from {start} on"
    report.expect(len(np.unique(together)) == len(together), "indices twice", where)
    builds = [epoch.builds(part) for part in parts]
    report.expect(max(builds) - min(builds) <= 1, "builds uneven", f"{where}: {builds}")
    report.count("positions of all ranks", count)


def run(rng: random.Random, size: int, ranks: int, report: Report) -> None:
    """One round."""
    epoch = Epoch(rng, size, ranks)
    for rank in rng.sample(range(ranks), WALKED):
        walk(epoch, rank, report)
    lifetime = epoch.policy.lifetime
    whole = epoch.size // lifetime // ranks
    for turn in [0, *(rng.randrange(whole) for _ in range(PLACES - 1))]:
        look(epoch, turn * lifetime, lifetime, report)
    look(epoch, whole * lifetime, epoch.size // ranks - whole * lifetime, report)


def cost(size: int, ranks: int, placement: str) -> float:
    """Seconds for `COUNT` positions in the middle of a rank's pass."""
    order = ReusePolicy(4).sample_order(
        size, shuffle=True, rank=ranks // 2, world_size=ranks, placement=placement
    )
    begin = time.perf_counter()
    indices = chain.from_iterable(order.blocks(1, order.length() // 2))
    for _ in islice(indices, COUNT):
        pass
    return time.perf_counter() - begin


def measure(size: int, ranks: int, report: Report) -> None:
    """Few samples and many, one rank and many, in turn."""
    cases = [(10 * COUNT, 1, "shared"), (size, 1, "shared")]
    cases += [(size, ranks, placement) for placement in ("shared", "local")]
    seconds = [[cost(*case) for case in cases] for _ in range(TIMES)]
    medians = [statistics.median(case) for case in zip(*seconds, strict=True)]
    for (samples, number, placement), median in zip(cases, medians, strict=True):
        text = (
            f"{samples} samples, {number} ranks, {placement}: "
            f"{median / COUNT * 1e9:.0f} ns a position, {median / medians[0]:.2f} times the first"
        )
        print(text, flush=True)
        report.expect(median < GROWTH * medians[0], "costs grow", text)


def main() -> int:
    chosen = arguments(__doc__, rounds=100, size=10**9, ranks=1024)
    rng = random.Random(chosen.seed)
    report = Report("lengths wrong", "indices twice", "builds uneven", "costs grow")
    for _ in range(chosen.rounds):
        run(rng, chosen.size, chosen.ranks, report)
        report.count("rounds")
    measure(chosen.size, chosen.ranks, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
