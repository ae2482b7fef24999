"""``reuseloader advise``: measure a build, and recommend a lifetime and a number of workers."""

import argparse
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import Any

from reuseloader.advising import advise, directory_beside
from reuseloader.cli.named import named
from reuseloader.cli.outcome import CommandError, Outcome, TheirError
from reuseloader.cli.words import whole_number
from reuseloader.errors import ReuseError
from reuseloader.lmdb_store import LMDBStore
from reuseloader.validate import seconds

_EXAMPLES = """examples:
  reuseloader advise train:build --size 50000 --path cache/train --batch-size 256 --step 0.12
  reuseloader advise src/train.py:build --size 50000 --path cache/train --batch-size 256 \\
      --step src/train.py:step --finish src/train.py:augment --format tensors

MODULE is what Python would import from this directory, or a file FILE.py; NAME may have dots. To be
run on the machine that will train, when it is otherwise idle. What DIR holds is neither read nor
changed. What your functions print goes to stderr."""


def add(commands: Any) -> None:
    """Add this subcommand."""
    text = "measure a build, and recommend a lifetime and a number of workers"
    parser = commands.add_parser("advise", help=text, description=text, epilog=_EXAMPLES)
    parser.add_argument("build", metavar="MODULE:NAME", help="the build, as the loader will get it")
    parser.add_argument(
        "--size",
        metavar="N",
        type=whole_number(1),
        required=True,
        help="samples of an epoch, of all ranks on this machine together",
    )
    parser.add_argument(
        "--path",
        metavar="DIR",
        required=True,
        help="where samples will be stored: the disk that is measured",
    )
    parser.add_argument(
        "--batch-size",
        metavar="B",
        type=whole_number(1),
        required=True,
        help="samples that training takes at a time",
    )
    parser.add_argument(
        "--step",
        metavar="STEP",
        type=_step,
        help="what training takes for a batch: seconds, or MODULE:NAME of a function of a batch; "
        "without it no lifetime is recommended",
    )
    parser.add_argument(
        "--pipeline",
        choices=("graph", "dataloader"),
        default="graph",
        help="what is planned: torchdata nodes with ReuseMapper, or ReuseDataLoader "
        "(default: graph)",
    )
    parser.add_argument("--lmdb", action="store_true", help="samples will lie in an LMDBStore")
    parser.add_argument(
        "--format", choices=("torch", "tensors"), default="torch", help="(default: torch)"
    )
    parser.add_argument("--finish", metavar="MODULE:NAME", help="as the loader will get it")
    parser.add_argument(
        "--collate-fn", metavar="MODULE:NAME", help="makes the batch for a STEP that is a function"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="(default: 0)")
    parser.add_argument(
        "--multiprocessing-context",
        choices=get_all_start_methods(),
        help="how workers start (default: Python's own)",
    )
    parser.add_argument(
        "--ranks-per-machine",
        metavar="R",
        type=whole_number(1),
        help="ranks that share this machine (default: what torchrun says, or 1)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Outcome:
    """Measure and recommend, by `reuseloader.advise`."""
    if not args.path:
        raise CommandError("--path must name a directory, got ''")
    with (
        directory_beside(args.path) as place,  # if not, it is said before anything is imported
        redirect_stdout(sys.stderr),
    ):
        store = _lmdb(place) if args.lmdb else place
        build = named(args.build)
        step = named(args.step) if isinstance(args.step, str) else args.step
        finish = _named_or_none(args.finish)
        collate_fn = _named_or_none(args.collate_fn)
        try:
            advice = advise(
                build,
                args.size,
                store,
                batch_size=args.batch_size,
                step=step,
                pipeline=args.pipeline,
                seed=args.seed,
                format=args.format,
                finish=finish,
                collate_fn=collate_fn,
                multiprocessing_context=args.multiprocessing_context,
                ranks_per_machine=args.ranks_per_machine,
            )
        except ReuseError as error:
            raise CommandError(str(error)) from error
        except Exception as error:  # of the functions that were named
            raise TheirError(f"{args.build} could not be measured (see above)") from error
    return Outcome(asdict(advice), str(advice).split("\n"))


def _step(text: str) -> float | str:
    """For argparse: seconds, or the name of a function."""
    if ":" in text:
        return text
    try:
        return seconds("it", float(text))
    except ValueError:
        reason = f"must be seconds above 0, or MODULE:NAME, got {text!r}"
        raise argparse.ArgumentTypeError(reason) from None


def _named_or_none(text: str | None) -> Callable[..., Any] | None:
    return None if text is None else named(text)


def _lmdb(place: Path) -> LMDBStore:
    """A store in a directory that will be removed: advise measures another one beside it."""
    store = LMDBStore(place / "store")
    store.close()
    return store
