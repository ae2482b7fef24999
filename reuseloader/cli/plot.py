"""The picture of a plan."""

from itertools import accumulate
from typing import Any

from reuseloader.cli.outcome import CommandError
from reuseloader.text import share

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
        if str(error.name).partition(".")[0] != "matplotlib":
            raise
        reason = "--png needs matplotlib: pip install reuseloader[examples]"
        raise CommandError(reason) from error
    size, epochs = facts["size"], facts["epochs"]
    name = f"lifetime {facts['lifetime']:,}"
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    part = share(facts["total_builds"], facts["builds_without_reuse"])
    figure.suptitle(f"{size:,} samples, {name}: {part} of the builds in {epochs:,} epochs")
    each, all_ = figure.subplots(1, 2)
    edges = [epoch - 0.5 for epoch in range(epochs + 1)]
    each.stairs(facts["builds"], edges, fill=True, color=_REUSE, label=name)
    each.axhline(size, color=_PLAIN, linestyle="--", label="without reuse")
    each.set_title("builds per epoch", fontsize=11)
    each.set_xlabel("epoch")
    done = range(epochs + 1)
    all_.plot(done, [size * end for end in done], color=_PLAIN, linestyle="--")
    all_.plot(done, [0, *accumulate(facts["builds"])], color=_REUSE, linewidth=2)
    for builds, colour in (("builds_without_reuse", _PLAIN), ("total_builds", _REUSE)):
        end = (epochs, facts[builds])
        all_.annotate(f" {facts[builds]:,}", end, color=colour, va="center", annotation_clip=False)
    all_.set_title("builds in all", fontsize=11)
    all_.set_xlabel("epochs done")
    all_.set_xlim(0, epochs)
    each.set_xlim(-0.5, epochs - 0.5)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    for axes in (each, all_):
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    figure.savefig(path, format="png", dpi=150)
