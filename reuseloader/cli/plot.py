"""The picture of a plan."""

from itertools import accumulate
from typing import Any

from reuseloader.cli.outcome import CommandError

_REUSE, _PLAIN = "#1f6fb4", "#9a9a9a"


def draw_plan(facts: dict[str, Any], path: str) -> None:
    """Draw builds per epoch and in all, with and without reuse, as a PNG file.

    Raises:
        CommandError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, MaxNLocator
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        reason = "--png needs matplotlib: pip install reuseloader[examples]"
        raise CommandError(reason) from error
    size, lifetime, epochs = facts["size"], facts["lifetime"], range(facts["epochs"])
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    figure.suptitle(
        f"{size:,} samples, lifetime {lifetime:,}: {facts['share']:.1%} of the builds "
        f"in {len(epochs):,} epochs",
        fontsize=12,
    )
    each, all_ = figure.subplots(1, 2)
    each.bar(epochs, facts["builds"], width=0.8, color=_REUSE, label=f"lifetime {lifetime:,}")
    each.axhline(size, color=_PLAIN, linestyle="--", label="without reuse")
    each.set_title("builds per epoch", fontsize=11)
    ends = range(1, len(epochs) + 1)
    all_.plot(
        ends, [size * end for end in ends], color=_PLAIN, linestyle="--", label="without reuse"
    )
    total = list(accumulate(facts["builds"]))
    all_.plot(ends, total, color=_REUSE, linewidth=2, label=f"lifetime {lifetime:,}")
    all_.set_title("builds in all", fontsize=11)
    each.set_xlabel("epoch")
    all_.set_xlabel("epochs done")
    for axes in (each, all_):
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.legend(frameon=False)
    figure.savefig(path, format="png", dpi=150)
