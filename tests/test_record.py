import io
import struct

import pytest
import torch
import xxhash
from helpers import bits, sample_of
from hypothesis import given
from hypothesis import strategies as st

from reuseloader import IndexEpoch, ReuseDataset, ReusePolicy
from reuseloader.record import (
    TRAILER_SIZE,
    DamagedError,
    StaleError,
    Stamp,
    check_trailer,
    codec_id,
    fingerprint_digest,
    seal,
    unseal,
)

STAMP = Stamp(
    codec=codec_id("torch_save"),
    generation=5,
    seed=2**63 - 2,
    lifetime=10**9,
    fingerprint=fingerprint_digest("voices v2, 16 kHz"),
)
PAYLOAD = b"the payload \x00\xff"
GOLDEN = bytes.fromhex(
    "746865207061796c6f61642000ff52455553454c44520100000093c21c0c0500000000000000feff"
    "ffffffffff7f00ca9a3b000000008a5ad515cf658869423ea10f901b85b30e000000000000002769"
    "3bd9534128a789c0709f7504b628"
)
FILE = bytes.fromhex(
    "73616d706c65203452455553454c445201000000000000000100000000000000419ee7a452fb9716"
    "0300000000000000b1af9ff03d86ab172e2fa8aea11a0ecb0800000000000000b0707f0bb581c96b"
    "c9effd8ca3eacacb"
)
OTHERS = {
    "codec": codec_id("dump"),
    "generation": 4,
    "seed": 2**63 - 1,
    "lifetime": 1,
    "fingerprint": fingerprint_digest("voices v3, 16 kHz"),
}
UINT64 = st.integers(0, 2**64 - 1)
STAMPS = st.builds(
    Stamp, st.integers(0, 2**32 - 1), UINT64, UINT64, UINT64, st.binary(min_size=16, max_size=16)
)


def write_raw(sample, file):
    file.write(sample)


def read_raw(file):
    return file.read()


def raw_build(key):
    return b"sample %d" % key.index


def test_a_record_is_these_bytes():
    """A record never changes its form: files of every earlier version stay readable."""
    assert seal(PAYLOAD, STAMP) == GOLDEN


def test_a_stored_file_is_these_bytes(tmp_path):
    """The file of a sample is the record of its policy, fingerprint and save function."""
    policy = ReusePolicy(3, 7)
    with ReuseDataset(
        raw_build, 9, tmp_path, policy, fingerprint="données", save=write_raw, load=read_raw
    ) as dataset:
        dataset[IndexEpoch(4, 2)]
    stored = bytearray((tmp_path / "00000004.pt").read_bytes())
    codec = slice(len(b"sample 4") + 12, len(b"sample 4") + 16)  # of any rule
    assert any(stored[codec])
    stored[codec] = bytes(4)
    assert stored[:-8] == FILE[:-8]  # the last checksum covers the codec too


def test_the_trailer_has_the_documented_layout():
    """Every field of the trailer lies where the module's table says, little-endian."""
    trailer = seal(PAYLOAD, STAMP)[len(PAYLOAD) :]
    assert len(trailer) == TRAILER_SIZE == 80
    assert trailer[:8] == b"REUSELDR"
    assert struct.unpack("<II", trailer[8:16]) == (1, xxhash.xxh32_intdigest(b"torch_save"))
    assert struct.unpack("<QQQ", trailer[16:40]) == (5, 2**63 - 2, 10**9)
    assert trailer[40:56] == fingerprint_digest("voices v2, 16 kHz")
    assert struct.unpack("<QQQ", trailer[56:]) == (
        len(PAYLOAD),
        xxhash.xxh3_64_intdigest(PAYLOAD),
        xxhash.xxh3_64_intdigest(trailer[:72]),
    )


@given(payload=st.binary(max_size=300), stamp=STAMPS)
def test_what_was_sealed_comes_back(payload, stamp):
    """Any payload, also an empty one, comes back under its stamp, and the trailer announces it."""
    record = seal(payload, stamp)
    assert bytes(unseal(record, stamp)) == payload
    assert check_trailer(record[-TRAILER_SIZE:], stamp)[0] == len(payload)


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_seen(bit):
    """A record with one bit changed, wherever it lies, is damaged."""
    for place in range(len(GOLDEN)):
        record = bytearray(GOLDEN)
        record[place] ^= 1 << bit
        with pytest.raises(DamagedError):
            unseal(bytes(record), STAMP)


def test_every_truncation_is_seen():
    """A record that lost bytes at its end or at its start is damaged, down to the empty one."""
    for size in range(len(GOLDEN)):
        for record in (GOLDEN[:size], GOLDEN[len(GOLDEN) - size :]):
            with pytest.raises(DamagedError):
                unseal(record, STAMP)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 16, 40, 80])
@pytest.mark.parametrize("filler", [b"\0", b"\xff"])
def test_every_overwritten_block_is_seen(length, filler):
    """A record with a block of zeros or ones in it is damaged, unless that changed nothing."""
    for start in range(len(GOLDEN) - length + 1):
        record = GOLDEN[:start] + filler * length + GOLDEN[start + length :]
        if record != GOLDEN:
            with pytest.raises(DamagedError):
                unseal(record, STAMP)


def test_anything_added_is_seen():
    """A record with bytes before or behind it, or a second one, is damaged."""
    for extra in (b"\0", b"x" * 80, b"x" * 5000, GOLDEN, GOLDEN[-TRAILER_SIZE:]):
        for record in (extra + GOLDEN, GOLDEN + extra):
            with pytest.raises(DamagedError):
                unseal(record, STAMP)


def test_exchanged_payloads_are_seen():
    """The trailer of one record behind the payload of another of the same length is damaged."""
    other = seal(PAYLOAD[::-1], STAMP)
    with pytest.raises(DamagedError):
        unseal(PAYLOAD + other[len(PAYLOAD) :], STAMP)


@given(data=st.binary(max_size=400))
def test_foreign_bytes_are_damaged(data):
    """Bytes that ReuseLoader never wrote are damaged, never a payload and never another error."""
    with pytest.raises(DamagedError):
        unseal(data, STAMP)
    with pytest.raises(DamagedError):
        unseal(data + b"REUSELDR" + data[:72].ljust(72, b"\0"), STAMP)


@pytest.mark.parametrize("field", Stamp._fields)
def test_another_stamp_is_stale(field):
    """A sound record that differs in any one field of its stamp is stale, not damaged."""
    record = seal(PAYLOAD, STAMP._replace(**{field: OTHERS[field]}))
    with pytest.raises(StaleError):
        unseal(record, STAMP)
    with pytest.raises(StaleError):
        check_trailer(record[-TRAILER_SIZE:], STAMP)


@given(here=STAMPS, there=STAMPS)
def test_only_the_same_stamp_is_read(here, there):
    """A record is read under its own stamp and under no other."""
    if here == there:
        assert bytes(unseal(seal(PAYLOAD, there), here)) == PAYLOAD
    else:
        with pytest.raises(StaleError):
            unseal(seal(PAYLOAD, there), here)


def test_fingerprints_are_told_apart_by_value():
    """Any two strings have different digests: empty, long, not ASCII, half a surrogate."""
    texts = ["", " ", "a", "A", "ä", "a\u0308", "\0", "\ud800", "x" * 10_000, "x" * 10_001]
    assert len({fingerprint_digest(text) for text in texts}) == len(texts)
    assert all(len(fingerprint_digest(text)) == 16 for text in texts)


def test_torch_load_reads_a_stored_file(tmp_path):
    """``torch.load`` opens a stored file by hand, by path or from memory, trailer and all."""
    policy = ReusePolicy(4, 1)
    with ReuseDataset(sample_of, 200, tmp_path, policy) as dataset:
        stored = bits(dataset[IndexEpoch(124, 0)])
    path = tmp_path / "00000124.pt"
    assert bits(torch.load(path, weights_only=False)) == stored
    assert bits(torch.load(io.BytesIO(path.read_bytes()), weights_only=False)) == stored
