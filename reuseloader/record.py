"""Payload <-> record: a payload followed by a fixed trailer that says what it is.

All numbers are little-endian. The 80 bytes of the trailer:

====== ==== ===========================================================================
offset size field
====== ==== ===========================================================================
0      8    magic ``REUSELDR``
8      4    version of this layout, 1
12     4    codec: XXH32 of the name of ``save`` and of its module
16     8    generation
24     8    seed of the sample
32     8    lifetime
40     16   fingerprint: BLAKE2b-128 of its UTF-8 text
56     8    length of the payload in bytes
64     8    XXH3-64 of the payload
72     8    XXH3-64 of the 72 bytes above
====== ==== ===========================================================================

With the payload first, a program that knows nothing of the trailer can often still read the file:
``torch.load`` does.
"""

import struct
from hashlib import blake2b
from typing import NamedTuple

import xxhash

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct("<8sIIQQQ16s")
_TAIL = struct.Struct("<QQQ")
_MAGIC = b"REUSELDR"
_VERSION = 1
TRAILER_SIZE = _HEAD.size + _TAIL.size


class StaleError(Exception):
    """A sound record of another stamp: an older generation, or other settings."""


class DamagedError(Exception):
    """Not a sound record: cut short, changed, or never written by ReuseLoader."""


class Stamp(NamedTuple):
    """What a record must say to be read; anything else is built anew."""

    codec: int
    generation: int
    seed: int
    lifetime: int
    fingerprint: bytes

    def head(self) -> bytes:
        """The leading part of a trailer that carries this stamp."""
        return _HEAD.pack(_MAGIC, _VERSION, *self)


def codec_id(name: str) -> int:
    """The number that stands for a codec's name in a trailer."""
    return xxhash.xxh32_intdigest(name.encode())


def fingerprint_digest(fingerprint: str) -> bytes:
    """The 16 bytes that stand for a fingerprint in a trailer, the same in every process."""
    return blake2b(fingerprint.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def seal(payload: Buffer, stamp: Stamp) -> bytes:
    """The record of a payload."""
    head = stamp.head()
    sums = struct.pack("<QQ", len(payload), xxhash.xxh3_64_intdigest(payload))
    check = struct.pack("<Q", xxhash.xxh3_64_intdigest(head + sums))
    return b"".join((payload, head, sums, check))


def read_stamp(record: Buffer) -> Stamp:
    """The stamp of a record, whatever it is; DamagedError if the record is not sound."""
    view = memoryview(record)
    trailer = view[-TRAILER_SIZE:]
    _check_payload(view[:-TRAILER_SIZE], *_read_trailer(trailer))
    return _unpacked_stamp(trailer)


def announced_stamp(trailer: Buffer, size: int) -> Stamp:
    """The stamp of a record of ``size`` bytes, judged by its trailer alone.

    Raises:
        DamagedError: no sound trailer, or one of a record of another size.
    """
    length, _ = _read_trailer(trailer)
    _check_length(size - TRAILER_SIZE, length)
    return _unpacked_stamp(trailer)


def is_announced(trailer: Buffer, size: int) -> bool:
    """Whether a sound trailer announces a record of ``size`` bytes."""
    try:
        length, _ = _read_trailer(trailer)
    except DamagedError:
        return False
    return length + TRAILER_SIZE == size


def check_trailer(trailer: Buffer, stamp: Stamp) -> tuple[int, int]:
    """Return (length, checksum) of the payload that a trailer of this stamp announces.

    Raises:
        DamagedError: no sound trailer.
        StaleError: a sound one of another stamp.
    """
    announced = _read_trailer(trailer)
    if trailer[: _HEAD.size] != stamp.head():
        raise StaleError
    return announced


def unseal(record: Buffer, stamp: Stamp) -> memoryview:
    """The payload of a record, if it is sound and carries this stamp.

    Raises:
        DamagedError: the record is not sound.
        StaleError: it carries another stamp.
    """
    view = memoryview(record)
    payload = view[:-TRAILER_SIZE]
    _check_payload(payload, *check_trailer(view[-TRAILER_SIZE:], stamp))
    return payload


def _read_trailer(trailer: Buffer) -> tuple[int, int]:
    if len(trailer) != TRAILER_SIZE or trailer[: len(_MAGIC)] != _MAGIC:
        raise DamagedError("it does not end with a trailer of ReuseLoader")
    length, payload_sum, trailer_sum = _TAIL.unpack_from(trailer, _HEAD.size)
    if xxhash.xxh3_64_intdigest(trailer[: TRAILER_SIZE - 8]) != trailer_sum:
        raise DamagedError("the checksum of its trailer differs")
    return length, payload_sum


def _unpacked_stamp(trailer: Buffer) -> Stamp:
    _magic, version, *stamp = _HEAD.unpack_from(trailer)
    if version != _VERSION:
        raise DamagedError(f"its layout is version {version}, not {_VERSION}")
    return Stamp(*stamp)


def _check_length(found: int, length: int) -> None:
    if found != length:
        raise DamagedError(f"it has {found} bytes of payload where {length} were written")


def _check_payload(payload: memoryview, length: int, payload_sum: int) -> None:
    _check_length(len(payload), length)
    if xxhash.xxh3_64_intdigest(payload) != payload_sum:
        raise DamagedError("the checksum of its payload differs")
