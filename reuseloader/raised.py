"""Notes on what other people's functions raise, and words for it, however odd its class."""

import pickle
from contextlib import suppress


def add_note(error: BaseException, note: str) -> None:
    """Add a note that a traceback shows, also to an exception that is a frozen dataclass."""
    try:
        error.add_note(note)
    except Exception:
        with suppress(Exception):
            vars(error).setdefault("__notes__", []).append(note)


def describe(error: BaseException) -> str:
    """Type and text, or the type alone where ``__str__`` itself raises."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return f"{name}, whose __str__ raises"


def portable(error: Exception) -> Exception:
    """``error``, or a RuntimeError with its text if it would not survive the way back."""
    try:
        error.__traceback__ = error.__traceback__  # as an executor does; a frozen one raises
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        pass
    stand_in = RuntimeError(describe(error))
    for note in getattr(error, "__notes__", ()):
        stand_in.add_note(note)
    return stand_in.with_traceback(error.__traceback__)
