"""Everything ReuseLoader raises or warns of its own.

- ReuseError
  - StateMismatchError (also a ValueError)
- ReuseWarning (a UserWarning)

Bad arguments are a plain TypeError or ValueError, as everywhere in Python.
"""


class ReuseError(Exception):
    """Base class of the errors that only ReuseLoader raises."""


class StateMismatchError(ReuseError, ValueError):
    """A saved state belongs to another order of samples than the one it is loaded into."""


class ReuseWarning(UserWarning):
    """Something costs speed or deserves a look; the samples delivered are right."""
