"""Feed the reader of records with inputs that search for what it has not met yet.

    python tests/stress/fuzz.py --rounds 1000000

A round is one input, made from an earlier one by a few random changes, half of the time with its
checksums put right again, so that it gets past them. An input that takes a new way through
record.py is kept to be changed further. Only DamagedError and StaleError may be raised; what is
accepted must be just what `seal` writes; no input may make memory grow.
"""

import random
import struct
import sys
from collections.abc import Callable

import xxhash
from common import Report, arguments
from guided import search

from reuseloader import record
from reuseloader.record import (
    TRAILER_SIZE,
    DamagedError,
    StaleError,
    Stamp,
    check_trailer,
    fingerprint_digest,
    read_stamp,
    seal,
    unseal,
)

STAMP = Stamp(codec=7, generation=3, seed=2**62, lifetime=4, fingerprint=fingerprint_digest("f"))
PAYLOADS = (b"x", b"payload" * 20, bytes(300))
SIZES = (0, 1, 79, 80, 81, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
SUMS = struct.Struct("<QQ")
LENGTH_AT, TRAILER_SUM_AT = TRAILER_SIZE - 24, TRAILER_SIZE - 8  # in the trailer


# --- inputs ---------------------------------------------------------------------------------------


def flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << rng.randrange(8)


def write(data: bytearray, rng: random.Random) -> None:
    """A byte, a word or a block of zeros over what is there."""
    at = _place(data, rng)
    new = rng.choice((rng.randbytes(1), rng.randbytes(8), bytes(16), b"\xff" * 8, b"REUSELDR"))
    data[at : at + len(new)] = new


def cut(data: bytearray, rng: random.Random) -> None:
    at = _place(data, rng)
    del data[at : at + rng.choice((1, 8, len(data)))]


def insert(data: bytearray, rng: random.Random) -> None:
    at = _place(data, rng)
    data[at:at] = rng.randbytes(rng.choice((1, 8, 80)))


def twice(data: bytearray, rng: random.Random) -> None:
    at = _place(data, rng)
    data += data[at:]
    del data[2000:]


def length(data: bytearray, rng: random.Random) -> None:
    """Another length of the payload."""
    if len(data) >= TRAILER_SIZE:
        struct.pack_into("<Q", data, len(data) - TRAILER_SIZE + LENGTH_AT, rng.choice(SIZES))


def version(data: bytearray, rng: random.Random) -> None:
    if len(data) >= TRAILER_SIZE:
        struct.pack_into("<I", data, len(data) - TRAILER_SIZE + 8, rng.choice((0, 1, 2, 2**32 - 1)))


CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip,
    flip,
    write,
    cut,
    insert,
    twice,
    length,
    version,
)


def _place(data: bytearray, rng: random.Random) -> int:
    """Anywhere; half of the time in the trailer."""
    if rng.random() < 0.5:
        return max(0, len(data) - 1 - rng.randrange(TRAILER_SIZE))
    return rng.randrange(len(data)) if data else 0


def put_right(data: bytearray, rng: random.Random) -> None:
    """Right checksums, of the trailer alone or of the payload too."""
    start = len(data) - TRAILER_SIZE
    if start < 0:
        return
    if rng.random() < 0.5:
        SUMS.pack_into(data, start + LENGTH_AT, start, xxhash.xxh3_64_intdigest(data[:start]))
    checksum = xxhash.xxh3_64_intdigest(data[start : start + TRAILER_SUM_AT])
    struct.pack_into("<Q", data, start + TRAILER_SUM_AT, checksum)


def changed(data: bytes, rng: random.Random) -> bytes:
    new = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(CHANGES)(new, rng)
    if rng.random() < 0.5:
        put_right(new, rng)
    return bytes(new)


# --- what the reader does with them ---------------------------------------------------------------


def read(data: bytes, report: Report) -> None:
    """Read an input in every way there is."""
    count = report.count
    try:
        stamp = read_stamp(data)
        count("sound")
        good = seal(data[:-TRAILER_SIZE], stamp) == data
        report.expect(good, "accepted what seal does not write", f"read_stamp({data!r})")
    except DamagedError:
        count("damaged")
    try:
        payload = unseal(data, STAMP)
        count("read")
        good = seal(bytes(payload), STAMP) == data
        report.expect(good, "accepted what seal does not write", f"unseal({data!r})")
    except DamagedError:
        pass
    except StaleError:
        count("stale")
    trailer = data[-TRAILER_SIZE:]
    try:
        size, _ = check_trailer(trailer, STAMP)
        good = trailer[: TRAILER_SIZE - 24] == STAMP.head() and 0 <= size < 2**64
        report.expect(good, "accepted what seal does not write", f"check_trailer({trailer!r})")
    except (DamagedError, StaleError):
        pass


def main() -> int:
    chosen = arguments(__doc__, rounds=1_000_000)
    report = Report("crashes", "accepted what seal does not write", "too much memory")
    inputs = [b"", *(seal(payload, STAMP) for payload in PAYLOADS)]
    search(chosen, report, record, inputs, changed, read)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
