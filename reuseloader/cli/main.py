"""From arguments to an exit code: parses, runs a subcommand, prints its outcome or its error."""

import argparse
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from reuseloader.cli import advise, plan, prune, show, stat, verify
from reuseloader.cli.outcome import CommandError, Outcome, TheirError
from reuseloader.cli.words import shown

COMMANDS = (stat, verify, show, prune, plan, advise)  # modules with `add`

_EXIT_CODES = """exit codes:
  0    nothing is wrong
  1    something is: a damaged sample, or one that could not be removed
  2    it could not be done: wrong usage, no such directory, your own code raises
  130  interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (default: `sys.argv`) and return its exit code.

    Raises:
        SystemExit: 0 after ``--help``, 2 after arguments that no subcommand takes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may hold anything
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    if sys.stdout is None:  # `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for good
    try:
        outcome: Outcome = args.run(args)
        _print(outcome, as_json=args.json)
    except BrokenPipeError:  # by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 0
    except KeyboardInterrupt:
        return 130
    except (CommandError, ImportError, OSError) as error:
        if isinstance(error, TheirError):
            traceback.print_exception(error.__cause__)
        sys.stderr.write(f"reuseloader: error: {_one_line(error)}\n")
        return 2
    return int(outcome.is_wrong)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"reuseloader: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="reuseloader",
        description="Look at stores of prepared samples, check and prune them; choose a lifetime.",
        epilog=f"`reuseloader COMMAND --help` has examples.\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    for subparser in commands.choices.values():
        subparser.formatter_class = argparse.RawDescriptionHelpFormatter
        subparser.epilog = f"{subparser.epilog}\n\n{_EXIT_CODES}"
        subparser.add_argument("--json", action="store_true", help="print all as one JSON object")
    return parser


def _print(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(outcome.facts, indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in outcome.lines)
    sys.stdout.flush()


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{shown(error.filename)}: {error.strerror}"
    return " ".join(str(error).split())
