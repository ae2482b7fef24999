"""Everything ReuseLoader raises or warns of its own.

- ReuseError
  - ImpureBuildError
  - StateMismatchError (also a ValueError)
- ReuseWarning (a UserWarning)

Bad arguments are a plain TypeError or ValueError, as everywhere in Python.
"""

import logging
import warnings

_logger = logging.getLogger("reuseloader")


class ReuseError(Exception):
    """Base class of the errors that only ReuseLoader raises."""


class ImpureBuildError(ReuseError):
    """Samples would depend on more than their key: on workers, order, time, or being stored."""


class StateMismatchError(ReuseError, ValueError):
    """A saved state belongs to another order of samples than the one it is loaded into."""


class ReuseWarning(UserWarning):
    """Something costs speed or deserves a look; the samples delivered are right."""


def warn(message: str, stacklevel: int) -> None:
    """Warn; under ``python -W error`` log instead, since a warning must not cost a pass."""
    try:
        warnings.warn(message, ReuseWarning, stacklevel=stacklevel + 1)
    except ReuseWarning:
        _logger.warning(message)
