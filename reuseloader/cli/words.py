"""Names and settings as people read them, numbers as they write them."""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator

from reuseloader.codec import FileCodec
from reuseloader.record import Stamp, fingerprint_digest
from reuseloader.tensors import TensorsCodec
from reuseloader.validate import int_at_least

TORCH, TENSORS, CUSTOM = "torch", "tensors", "unknown (custom save)"
MOST = 20  # things of a kind that are listed

_FORMATS = {FileCodec().id: TORCH, TensorsCodec.id: TENSORS}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)


def format_of(codec: int) -> str:
    """The name of the format of this number in a stamp."""
    return _FORMATS.get(codec, CUSTOM)


def stamp_facts(stamp: Stamp) -> dict[str, object]:
    """A stamp's fields under their names."""
    return {
        "format": format_of(stamp.codec),
        "codec": stamp.codec,
        "generation": stamp.generation,
        "seed": stamp.seed,
        "lifetime": stamp.lifetime,
        "fingerprint": stamp.fingerprint.hex(),
    }


def fingerprint_text(digest: str) -> str:
    """A fingerprint's digest in hexadecimal; that of "" is no fingerprint at all."""
    return "none" if digest == fingerprint_digest("").hex() else digest


def shown(name: object) -> str:
    """A name on one line of a terminal, whatever characters it has."""
    text = str(name)
    return text if text.isprintable() else repr(text)


def first_of(lines: Iterable[str], total: int) -> Iterator[str]:
    """The first `MOST` of ``total`` lines, and how many more there are."""
    for number, line in enumerate(lines):
        if number == MOST:
            yield f"  and {total - MOST:,} more (--json lists all)"
            return
        yield f"  {line}"


def whole_number(minimum: int) -> Callable[[str], int]:
    """For argparse: an int in [minimum, 2**63 - 1]."""

    def parse(text: str) -> int:
        try:
            return int_at_least(minimum, "it", int(text))
        except ValueError:
            reason = f"must be a whole number from {minimum} on, got {text!r}"
            raise argparse.ArgumentTypeError(reason) from None

    return parse


def byte_size(text: str) -> float:
    """For argparse: a number of bytes such as ``150000``, ``150KB``, ``1.5 MB``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 150KB, got {text!r}")
    return float(match[1]) * _UNITS[match[2].lower()]
