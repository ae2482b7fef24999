"""Numbers and tables as people read them."""

from collections.abc import Sequence
from textwrap import fill

WIDTH = 90  # columns of what is printed


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: ``"0.0210 ms"``, ``"3.50 s"``, ``"12.5 min"``."""
    for least, unit, name in ((7200.0, 3600.0, "h"), (600.0, 60.0, "min"), (1.0, 1.0, "s")):
        if seconds >= least:
            return f"{_three(seconds / unit)} {name}"
    return f"{_three(1000 * seconds)} ms" if seconds else "0 s"


def amount(size: float) -> str:
    """Bytes in the unit that suits them: ``"80 B"``, ``"150 KB"``, ``"2.50 MB"``."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if size >= 0.9995 * unit:  # rounded it is one
            return f"{_three(size / unit)} {name}"
    return f"{size:.0f} B"


def number(value: float) -> str:
    """A count: ``"12,500"``, or ``"2.5"`` where it is no whole number and small."""
    return f"{round(value):,}" if value >= 100 or value == int(value) else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """A part of the whole: ``"12.5 %"``."""
    return f"{100 * part / whole if whole else 0.0:.1f} %"


def plural(count: float, noun: str) -> str:
    """A count with its noun: ``"1 build"``, ``"2 builds"``."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def table(rows: Sequence[Sequence[str]], align: str, indent: str = "") -> list[str]:
    """Rows of cells as lines; ``align`` has ``"<"`` (left) or ``">"`` (right) for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        )
        lines.append(indent + "  ".join(cells).rstrip())
    return lines


def paragraph(text: str, indent: str = "") -> str:
    """The text in lines of at most `WIDTH` columns."""
    return fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _three(value: float) -> str:
    """Three digits that count, never as a power of ten."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:#.3g}" if value >= 0.001 else "< 0.001"
