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
    size_text,
    stamp_facts,
    whole_number,
)
from reuseloader.codec import torch_load
from reuseloader.raised import describe
from reuseloader.record import (
    TRAILER_SIZE,
    Buffer,
    DamagedError,
    Stamp,
    announced_stamp,
    read_stamp,
)
from reuseloader.tensors import TensorsCodec

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
        return _shown(store, args.index, unpickle=args.unpickle)
    finally:
        store.close()


def _shown(store: StoreOnDisk, index: int, *, unpickle: bool) -> Outcome:
    place = place_of(store, index)
    facts: dict[str, Any] = {"place": place, "index": index}
    lines = [shown(place)]
    trouble, record = _read(store, index)
    if trouble is None and record is None:
        raise CommandError(f"no sample of index {index} is stored in {store.path}")
    if record is not None:
        facts |= {"bytes": len(record), "payload_bytes": max(0, len(record) - TRAILER_SIZE)}
    stamp = _stamp(record)
    if record is not None and trouble is None:
        trouble = _trouble(record)
    facts |= {"sound": trouble is None, "trouble": trouble}
    facts["stamp"] = stamp and stamp_facts(stamp)
    lines.append("sound: its checksums are right" if trouble is None else f"damaged: {trouble}")
    if record is not None:
        size = facts["payload_bytes"]
        lines.append(f"payload {size_text(size)} ({size:,} bytes)")
    if stamp is not None:
        lines += _stamp_lines(stamp)
    if record is not None and stamp is not None and trouble is None:
        payload = memoryview(record)[:-TRAILER_SIZE]
        trouble = _add_sample(facts, lines, payload, format_of(stamp.codec), unpickle=unpickle)
    return Outcome(facts, lines, is_wrong=trouble is not None)


def _read(store: StoreOnDisk, index: int) -> tuple[str | None, Buffer | None]:
    try:
        return None, store.read(index)
    except OSError as error:
        return reason(error), None


def _stamp(record: Buffer | None) -> Stamp | None:
    """What the trailer says, if it is sound, whatever lies before it."""
    if record is None:
        return None
    try:
        return announced_stamp(record[-TRAILER_SIZE:], len(record))
    except DamagedError:
        return None


def _trouble(record: Buffer) -> str | None:
    try:
        read_stamp(record)
    except DamagedError as error:
        return reason(error)
    return None


def _stamp_lines(stamp: Stamp) -> list[str]:
    return [
        f"format {format_of(stamp.codec)} (codec {stamp.codec:#010x})",
        f"generation {stamp.generation:,}, lifetime {stamp.lifetime:,}, seed {stamp.seed}",
        f"fingerprint {fingerprint_text(stamp.fingerprint.hex())}",
    ]


def _add_sample(
    facts: dict[str, Any],
    lines: list[str],
    payload: memoryview,
    format: str,
    *,
    unpickle: bool,
) -> str | None:
    """Add what can be said of the sample; return what went wrong, if anything."""
    if unpickle and format != TORCH:
        raise CommandError(f"--unpickle is for the default format; this one is {format}")
    if format == CUSTOM:
        return None
    if format == TORCH and not unpickle:
        members = _zip_members(payload)
        facts["members"] = members
        lines += ["", "members of its zip file (--unpickle shows the sample, and may run code):"]
        rows = (f"{shown(name)}  {size_text(size)}" for name, size in members.items())
        lines += first_of(rows, len(members))
        return None
    try:
        sample = TensorsCodec().decode(payload) if format == TENSORS else _unpickled(payload)
    except Exception as error:  # whatever unpickling raises
        trouble = " ".join(describe(error).split())
        facts["trouble"] = trouble
        lines += ["", f"it cannot be loaded: {shown(trouble)}"]
        return trouble
    facts["sample"] = parts_in(sample)
    lines += ["", *part_lines(facts["sample"])]
    return None


def _unpickled(payload: memoryview) -> Any:
    return torch_load(io.BytesIO(payload))


def _zip_members(payload: memoryview) -> dict[str, int]:
    """Names and sizes of what torch.save wrote; none for what is no zip file."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            return {info.filename: info.file_size for info in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return {}
