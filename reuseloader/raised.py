"""Notes on what other people's functions raise, and words for it, however odd its class."""

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
