"""Feed the reader of `format="tensors"` with inputs that search for what it has not met yet.

    python tests/stress/fuzz_tensors.py --rounds 1000000

A round is one payload, made from an earlier one by a few random changes of its bytes or of its
structure. Only DamagedError may be raised; what is accepted must be stored as the same payload
again, once stored; no input may make memory grow.
"""

import json
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import Report, arguments
from guided import search

from reuseloader import tensors
from reuseloader.record import DamagedError
from reuseloader.tensors import TensorsCodec

CODEC = TensorsCodec()
LENGTH = struct.Struct("<Q")
FIELDS = np.dtype([("a", "<i2"), ("b", [("c", "<f4", (2,))])])
SAMPLES: tuple[Any, ...] = (
    None,
    [1, 2.5, True, "text", b"bytes", 2**70],
    {"x": torch.arange(6.0).view(2, 3), 3: (np.arange(4, dtype=">u2"), torch.empty(0, 2))},
    {"y": np.zeros(2, FIELDS), (1, None): torch.tensor(1j), "when": np.zeros(1, "M8[s]")},
)
NODES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 7, 16, 2**31, 2**40, 2**62, 2**63, 2**64, 2**100, 0.5, 1e308, "", "a"),
    *([], {}, [0], [1], [-1], [2, 3], [0, 2**40], [2**32, 2**32], [2**33 + 1, 2**33 - 1], ["a", 9]),
    *("list", "tuple", "dict", "tensor", "array", "bytes", "int", "object"),
    *("float32", "bfloat16", "bool", "qint8", "complex64", "float8_e5m2", "load"),
    *(
        "|O",
        "|S0",
        "|V0",
        "|V2147483647",
        "<f4",
        ">i8",
        "<U3",
        "<M8[ns]",
        "<M8[foo]",
        "f4,f4",
        "0xff",
    ),
    *(
        [["a", "<f4"]],
        [["a", "<f4", [2]]],
        [["a", "<f4", [2**40]]],
        [["", "|V4"]],
        [[["t", "n"], "<i4"]],
    ),
    *(["bytes", 16], ["tensor", "uint8", [16]], ["array", "|u1", [16]], ["int", "0x10"]),
)


def bits(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 8, 16))]


def insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((bytes(16), rng.randbytes(1), b"[", b"]", b",", b'"', b"9" * 30))


def structure(data: bytearray, rng: random.Random) -> None:
    """Another node somewhere in the structure."""
    end = len(data) - LENGTH.size
    if end < 0:
        return
    start = max(0, end - LENGTH.unpack_from(data, end)[0])
    try:
        tree = [json.loads(data[start:end].decode("utf-8", "surrogatepass"))]
    except (ValueError, RecursionError):
        return
    place: Any = tree
    at: Any = 0
    while isinstance(place[at], list) and place[at] and rng.random() < 0.8:
        place = place[at]
        at = rng.randrange(len(place))
    kind = rng.random()
    if kind < 0.7:
        place[at] = rng.choice(NODES)
    elif kind < 0.85 and place is not tree:
        place.insert(at, rng.choice(NODES))
    elif place is not tree:
        del place[at]
    text = json.dumps(tree[0], ensure_ascii=False).encode("utf-8", "surrogatepass")
    data[start:] = text[:4000] + LENGTH.pack(min(len(text), 4000))


CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(structure, structure, structure, structure),
    *(bits, cut, insert),
)


def changed(data: bytes, rng: random.Random) -> bytes:
    new = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(CHANGES)(new, rng)
    return bytes(new)


def read(data: bytes, report: Report) -> None:
    """Decode an input; what is a sample must be one for good."""
    try:
        sample = CODEC.decode(data)
    except DamagedError:
        report.count("damaged")
        return
    report.count("read")
    payload = CODEC.encode(sample)
    good = CODEC.encode(CODEC.decode(payload)) == payload
    report.expect(good, "samples that change", repr(data))


def main() -> int:
    chosen = arguments(__doc__, rounds=1_000_000)
    report = Report("crashes", "samples that change", "too much memory")
    search(chosen, report, tensors, [CODEC.encode(sample) for sample in SAMPLES], changed, read)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
