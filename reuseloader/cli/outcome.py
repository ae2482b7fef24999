"""What a subcommand hands to `main`."""

from dataclasses import dataclass
from typing import Any


class CommandError(Exception):
    """It could not be done; the message says why, in one line."""


class TheirError(CommandError):
    """Code of the user's raised its ``__cause__``, whose traceback they will want to see."""


@dataclass(frozen=True)
class Outcome:
    """What a subcommand found or did."""

    facts: dict[str, Any]  # what ``--json`` prints
    lines: list[str]  # the same for people
    is_wrong: bool = False  # exit code 1
