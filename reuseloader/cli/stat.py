"""``reuseloader stat``: what lies in a store, judged by the ends of its records alone."""

import argparse
from typing import Any

from reuseloader.cli.opened import add_directory, look
from reuseloader.cli.outcome import Outcome
from reuseloader.cli.survey import survey
from reuseloader.cli.words import MOST, fingerprint_text, first_of, shown
from reuseloader.text import amount, plural, table

_BAR = 40  # characters of the longest bar of a histogram

_EXAMPLES = """examples:
  reuseloader stat cache/train
  reuseloader stat cache/train --json | jq .samples

Of each record only the last 80 bytes are read; `reuseloader verify` reads all. Nothing is changed,
and the store may be in use."""


def add(commands: Any) -> None:
    """Add this subcommand."""
    text = "say what lies in a store: samples, settings, generations"
    parser = commands.add_parser("stat", help=text, description=text, epilog=_EXAMPLES)
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Outcome:
    """What lies in the store of ``args.directory``."""
    store = look(args.directory)
    try:
        facts = survey(store)
    finally:
        store.close()
    return Outcome(facts, _lines(facts), is_wrong=bool(facts["damaged_trailers"]))


# --- for people -----------------------------------------------------------------------------------


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{shown(facts['path'])}: {_kind(facts)}"]
    samples = plural(facts["samples"], "sample")
    if facts["samples"]:
        sizes = facts["sample_bytes"]
        lines.append(
            f"{samples}, {amount(facts['bytes'])}, "
            f"indices {facts['first_index']:,} to {facts['last_index']:,}"
        )
        if sizes["min"] is not None:
            small, mean, large = (amount(sizes[name]) for name in ("min", "mean", "max"))
            lines.append(f"size of a sample: {small} to {large}, mean {mean}")
    else:
        lines.append("no samples")
    lines += _last_run_lines(facts["last_run"])
    for group in facts["settings"]:
        lines += _group_lines(group)
    damaged = facts["damaged_trailers"]
    if damaged:
        lines += ["", f"damaged, as far as their ends show: {len(damaged):,}"]
        lines += first_of((f"{shown(n)}  {why}" for n, why in damaged.items()), len(damaged))
    temps = facts["temps"]
    if temps:
        lines += ["", f"being written, or left by a process that was killed: {len(temps):,}"]
        lines += first_of(map(_temp_line, temps), len(temps))
    strays = facts["strays"]
    if strays:
        lines += ["", f"not of ReuseLoader: {len(strays):,}"]
        lines += first_of(map(shown, strays), len(strays))
    return lines


def _kind(facts: dict[str, Any]) -> str:
    if facts["store"] == "directory":
        return "a directory of files"
    return f"an LMDB store, its file {amount(facts['file_bytes'])}"


def _last_run_lines(run: dict[str, Any] | None) -> list[str]:
    if run is None:
        return ["last run: unknown"]
    size = "an unknown number of samples"
    if run["size"] is not None:
        size = f"{plural(run['size'], 'sample')}, {run['stored']:,} of them stored"
    fingerprint = shown(fingerprint_text(str(run["fingerprint"])))
    return [f"last run: {size}; build {shown(run['build'])}, fingerprint {fingerprint}"]


def _group_lines(group: dict[str, Any]) -> list[str]:
    generations = group["generations"]
    most = max(generations.values())
    left_out = len(generations) - MOST
    rows = [
        ("generation", f"{generation:,}", f"{count:,}", "#" * max(1, round(_BAR * count / most)))
        for generation, count in list(generations.items())[-MOST:]
    ]
    return [
        "",
        f"{group['format']}, lifetime {group['lifetime']:,}, "
        f"fingerprint {fingerprint_text(group['fingerprint'])}: "
        f"{plural(group['samples'], 'sample')}, {amount(group['bytes'])}",
        *([f"  {left_out:,} older generations (--json lists all)"] if left_out > 0 else []),
        *table(rows, "<>><", "  "),
    ]


def _temp_line(temp: dict[str, Any]) -> str:
    fate = "in use" if temp["owner_lives"] else "abandoned: the next start removes it"
    return f"{temp['name']}  {fate}"
