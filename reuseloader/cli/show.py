"""``reuseloader show``: one record, and what can be said of its sample."""

import argparse
import io
import zipfile
from typing import Any

from reuseloader.audit import reason
from reuseloader.cli.opened import StoreOnDisk, add_directory, look, place_of
from reuseloader.cli.outcome import CommandError, Outcome
from reuseloader.cli.summary import part_lines, parts_in
from reuseloader.cli.words import (
    CUSTOM,
    TENSORS,
    TORCH,
    fingerprint_text,
    first_of,
    format_of,
    shown,
    stamp_facts,
    whole_number,
)
from reuseloader.codec import FileCodec
from reuseloader.raised import describe
from reuseloader.record import TRAILER_SIZE, DamagedError, announced_stamp, read_stamp
from reuseloader.tensors import TensorsCodec
from reuseloader.text import amount, table

_EXAMPLES = """examples:
  reuseloader show cache/train 123
  reuseloader show cache/train 123 --unpickle

A sample of format="tensors" is summarised as it is. One of the default format is pickled: without
--unpickle only its parts are listed. What a save function of your own wrote, only you can load."""


def add(commands: Any) -> None:
    """Add this subcommand."""
    text = "show one record: its stamp, whether it is sound, a summary of its sample"
    parser = commands.add_parser("show", help=text, description=text, epilog=_EXAMPLES)
    add_directory(parser)
    parser.add_argument("index", metavar="INDEX", type=whole_number(0), help="of the sample")
    parser.add_argument(
        "--unpickle",
        action="store_true",
        help="load a sample of the default format with torch.load, which runs any code that the "
        "file names: only for files that you trust",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Outcome:
    """The record of ``args.index`` in the store of ``args.directory``."""
    store = look(args.directory)
    try:
        facts = _facts(store, args.index, unpickle=args.unpickle)
    finally:
        store.close()
    return Outcome(facts, _lines(facts), is_wrong=facts["trouble"] is not None)


def _facts(store: StoreOnDisk, index: int, *, unpickle: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"place": place_of(store, index), "index": index, "trouble": None}
    try:
        record = store.read(index)
        if record is None:
            raise CommandError(f"no sample of index {index} is stored in {store.path}")
        facts["bytes"] = len(record)
        stamp = announced_stamp(record[-TRAILER_SIZE:], len(record))
        facts["stamp"] = stamp_facts(stamp)
        facts["payload_bytes"] = len(record) - TRAILER_SIZE
        read_stamp(record)
    except (DamagedError, OSError) as error:
        facts["trouble"] = f"damaged: {reason(error)}"
    else:
        payload = memoryview(record)[:-TRAILER_SIZE]
        facts |= _content(payload, format_of(stamp.codec), unpickle=unpickle)
    return facts


def _content(payload: memoryview, format: str, *, unpickle: bool) -> dict[str, Any]:
    """What can be said of the sample of a sound record."""
    if unpickle and format != TORCH:
        raise CommandError(f"--unpickle is for the default format; this one is {format}")
    if format == CUSTOM:
        return {}
    if format == TORCH and not unpickle:
        return {"members": _zip_members(payload)}
    try:
        decode = TensorsCodec().decode if format == TENSORS else FileCodec().decode
        return {"sample": parts_in(decode(payload))}
    except Exception as error:  # unpickling raises whatever it likes
        return {"trouble": f"cannot be loaded: {' '.join(describe(error).split())}"}


def _zip_members(payload: memoryview) -> dict[str, int]:
    """Names and sizes of what torch.save wrote; none for what is no zip file."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            return {info.filename: info.file_size for info in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return {}


# --- for people -----------------------------------------------------------------------------------


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [
        shown(facts["place"]),
        shown(facts["trouble"] or "sound: its checksums are right"),
    ]
    if "stamp" in facts:
        stamp = facts["stamp"]
        lines += [
            f"payload {facts['payload_bytes']:,} bytes, trailer {TRAILER_SIZE}",
            f"format {stamp['format']}, codec {stamp['codec']:#010x}",
            f"generation {stamp['generation']:,}, lifetime {stamp['lifetime']:,}, "
            f"seed {stamp['seed']}",
            f"fingerprint {fingerprint_text(stamp['fingerprint'])}",
        ]
        if stamp["format"] == CUSTOM and facts["trouble"] is None:
            lines += ["", "what the sample holds, only its own load function can tell"]
    elif "bytes" in facts:
        lines.append(f"{facts['bytes']:,} bytes")
    if "members" in facts:
        members = facts["members"]
        lines += ["", "in its zip file (--unpickle shows the sample, and runs what code it names):"]
        rows = [(shown(name), amount(size)) for name, size in members.items()]
        lines += first_of(table(rows, "<>"), len(rows))
    if "sample" in facts:
        lines += ["", *part_lines(facts["sample"])]
    return lines
