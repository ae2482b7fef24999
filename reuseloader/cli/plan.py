"""``reuseloader plan``: what a lifetime saves, from the closed form alone."""

import argparse
from itertools import accumulate
from math import gcd
from typing import Any

from reuseloader.cli.outcome import Outcome
from reuseloader.cli.words import byte_size, whole_number
from reuseloader.policy import ReusePolicy
from reuseloader.text import amount, plural, share, table

_ROWS = 40  # of the table; of a longer one the middle is left out

_EXAMPLES = """examples:
  reuseloader plan --size 50000 --lifetime 4
  reuseloader plan --size 50000 --lifetime 4 --epochs 90 --batch-size 256 --bytes-per-sample 150KB
  reuseloader plan --size 50000 --lifetime 4 --png plan.png

The numbers are those of uninterrupted passes in which every index is fetched once."""


def add(commands: Any) -> None:
    """Add this subcommand."""
    text = "say how many samples a lifetime builds, in each epoch and in all"
    parser = commands.add_parser("plan", help=text, description=text, epilog=_EXAMPLES)
    parser.add_argument(
        "--size", metavar="N", type=whole_number(1), required=True, help="samples of an epoch"
    )
    parser.add_argument(
        "--lifetime",
        metavar="L",
        type=whole_number(1),
        required=True,
        help="epochs for which a sample is used",
    )
    parser.add_argument(
        "--epochs", metavar="E", type=whole_number(1), default=20, help="of the run (default: 20)"
    )
    parser.add_argument(
        "--batch-size", metavar="B", type=whole_number(1), help="say how many builds a batch has"
    )
    parser.add_argument(
        "--bytes-per-sample",
        metavar="SIZE",
        type=byte_size,
        help="say what is stored; of a prepared sample, such as 150KB",
    )
    parser.add_argument(
        "--png", metavar="FILE", help="draw it (needs pip install reuseloader[examples])"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Outcome:
    """What ``args.lifetime`` means for ``args.epochs`` epochs of ``args.size`` samples."""
    facts = _facts(args)
    lines = _lines(facts)
    if args.png is not None:
        from reuseloader.cli.plot import draw_plan

        draw_plan(facts, args.png)
        lines.append(f"drawn in {args.png}")
    return Outcome(facts, lines)


def _facts(args: argparse.Namespace) -> dict[str, Any]:
    size, lifetime, epochs = args.size, args.lifetime, args.epochs
    policy = ReusePolicy(lifetime)
    builds = [policy.builds(epoch, size) for epoch in range(epochs)]
    total = sum(builds)
    facts: dict[str, Any] = {
        "size": size,
        "lifetime": lifetime,
        "epochs": epochs,
        "builds": builds,
        "total_builds": total,
        "builds_without_reuse": size * epochs,
        "share": total / (size * epochs),
    }
    if args.batch_size is not None:
        fewest, most = _builds_of_batches(args.batch_size, lifetime, size)
        facts["batch"] = {"size": args.batch_size, "fewest_builds": fewest, "most_builds": most}
    if args.bytes_per_sample is not None:
        at_last_use = size // lifetime  # in epoch 0, those that no later one uses
        written = 0 if lifetime == 1 else total - at_last_use
        facts["stored"] = {
            "bytes_per_sample": args.bytes_per_sample,
            "most_bytes": 0 if lifetime == 1 else size * args.bytes_per_sample,
            "bytes_written": written * args.bytes_per_sample,
        }
    return facts


def _builds_of_batches(batch_size: int, lifetime: int, size: int) -> tuple[int, int]:
    """Fewest and most builds of a batch from epoch 1 on, in balanced order, but for the last batch.

    Every block of ``lifetime`` positions has one, anywhere in it. A batch has those of the blocks
    that it covers, and may have those of the blocks that it cuts. Batches begin at all multiples of
    ``step`` within a block.
    """
    if lifetime >= size:  # an epoch has one, or none
        return 0, 1
    step = gcd(batch_size, lifetime)
    if step == lifetime:
        return batch_size // lifetime, batch_size // lifetime
    return max(0, (batch_size + step) // lifetime - 1), 1 - (step - batch_size) // lifetime


def _lines(facts: dict[str, Any]) -> list[str]:
    size, epochs = facts["size"], facts["epochs"]
    rows = [
        (str(epoch), f"{builds:,}", f"{built:,}", f"{plain:,}", share(built, plain))
        for epoch, (builds, built) in enumerate(
            zip(facts["builds"], accumulate(facts["builds"]), strict=True)
        )
        for plain in [size * (epoch + 1)]
    ]
    if len(rows) > _ROWS:
        rows[_ROWS // 2 : -_ROWS // 2] = [("...",) * 5]
    total, without = facts["total_builds"], facts["builds_without_reuse"]
    lines = [
        f"{plural(size, 'sample')}, lifetime {facts['lifetime']:,}",
        "",
        *table([("epoch", "builds", "in all", "without reuse", "share"), *rows], ">>>>>"),
        "",
        f"{total:,} builds in {plural(epochs, 'epoch')} instead of {without:,}: "
        f"{share(total, without)}",
    ]
    if "batch" in facts:
        lines += _batch_lines(facts["batch"], facts["lifetime"], size)
    if "stored" in facts:
        stored = facts["stored"]
        lines.append(
            f"on the disk: {amount(stored['most_bytes'])} at most; "
            f"written in all: {amount(stored['bytes_written'])}"
        )
    return lines


def _batch_lines(batch: dict[str, int], lifetime: int, size: int) -> list[str]:
    fewest, most = batch["fewest_builds"], batch["most_builds"]
    number = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    lines = [
        f"a batch of {batch['size']:,} builds {number} samples from epoch 1 on "
        f"(in balanced order; the last batch of an epoch may differ)"
    ]
    if fewest != most and lifetime < size:
        lines.append(f"a multiple of {lifetime:,} would build equally many in every batch")
    return lines
