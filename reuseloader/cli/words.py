"""Numbers, names and settings, as people read them."""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

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


def size_text(size: float) -> str:
    """A number of bytes: ``999 B``, ``1.2 GB``."""
    if size < 1000:
        return f"{size:.0f} B"
    for scale, unit in ((1e3, "kB"), (1e6, "MB"), (1e9, "GB")):
        if size / scale < 999.95:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 1e12:,.1f} TB"


def counted(number: int, thing: str) -> str:
    """``1 sample``, ``1,000 samples``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


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


def table(rows: Sequence[tuple[str, ...]], left: int = 1) -> list[str]:
    """Rows of equally many cells as lines; the ``left`` first columns are flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines


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
    """For argparse: a number of bytes such as ``150000``, ``150kB``, ``1.5 MB``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 150kB, got {text!r}")
    return float(match[1]) * _UNITS[match[2].lower()]
