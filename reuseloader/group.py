"""Ranks that were not told which they are: a warning in place of the same order on every rank."""

import logging
import warnings

from torch import distributed

from reuseloader.errors import ReuseWarning

_logger = logging.getLogger("reuseloader")


class ForgottenRanks:
    """Warns once if an order is made or drawn in a process group of several ranks without a rank.

    A group may be initialised after the order was made, so both moments are looked at.
    """

    def __init__(self, rank: int | None) -> None:
        self._looks = rank is None
        self.look()

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
        try:
            warnings.warn(message, ReuseWarning, stacklevel=4)
        except ReuseWarning:  # python -W error must not cost a rank its pass
            _logger.warning(message)
