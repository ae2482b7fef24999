"""Ranks that were not told which they are: a warning in place of the same order on every rank."""

from torch import distributed

from reuseloader.errors import warn


class ForgottenRanks:
    """Warns once if an order is drawn in a process group of several ranks without a rank.

    Not when it is made: a group may be initialised later, and a trainer may shard it yet.
    """

    def __init__(self, rank: int | None) -> None:
        self._looks = rank is None

    def look(self) -> None:
        """Warn if it is so. Never raises."""
        if not (self._looks and distributed.is_available() and distributed.is_initialized()):
            return
        ranks = distributed.get_world_size()
        if ranks == 1:
            return
        self._looks = False
        message = (
            f"this process is one of {ranks} ranks, but no rank was given: every rank would draw "
            f"the same order. Pass rank={distributed.get_rank()}, world_size={ranks}; a trainer "
            f"that shards by itself (Lightning, Accelerate) needs neither"
        )
        warn(message, stacklevel=4)
