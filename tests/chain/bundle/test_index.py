from __future__ import annotations

import contextlib
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain.bundle.digest import masked_crc32c
from hotdelta.chain.bundle.dtypes import DTYPES
from hotdelta.chain.bundle.index import (
    BundleEntry,
    BundleIndex,
    decode_index,
    encode_index,
    read_index,
)
from hotdelta.chain.bundle.table_file import encode_table
from hotdelta.chain.bundle.wire import MalformedError, bytes_field, varint, varint_field
from hotdelta.errors import DamagedError

EXTENTS = st.tuples(st.integers(0, 2**40), st.integers(1, 2**40) | st.just(-1))
ENTRIES = st.builds(
    BundleEntry,
    dtype=st.sampled_from(sorted(DTYPES.values())),
    shape=st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    shard=st.integers(0, 2),
    offset=st.integers(0, 2**60),
    size=st.integers(0, 2**60),
    crc32c=st.integers(0, 2**32 - 1),
    slices=st.lists(st.lists(EXTENTS, max_size=3).map(tuple), max_size=3).map(tuple),
)
INDEXES = st.builds(
    BundleIndex, st.just(3), st.dictionaries(st.text(min_size=1, max_size=30), ENTRIES, max_size=40)
)
SMALL = encode_index(
    BundleIndex(
        1, {f"tower/emb-{n}": BundleEntry("float32", (3, n), 0, 64 * n, 12 * n, 77) for n in range(20)}
    )
)


@settings(max_examples=100)
@given(index=INDEXES)
def test_index_survives_its_bytes(index: BundleIndex) -> None:
    assert decode_index(encode_index(index)) == index


def test_index_of_many_blocks_survives_its_bytes() -> None:
    entries = {f"layer/{n:05d}/kernel": BundleEntry("float32", (n,), 0, n, 4 * n, n) for n in range(20_000)}
    data = encode_index(BundleIndex(1, entries))
    assert len(data) > 2 * 256 * 1024
    assert decode_index(data).entries == entries


def test_every_flip_of_a_byte_is_found() -> None:
    for offset in range(len(SMALL)):
        for bit in (0x01, 0x80, 0xFF):
            damaged = bytearray(SMALL)
            damaged[offset] ^= bit
            with pytest.raises(MalformedError):
                decode_index(bytes(damaged))


def test_every_truncation_is_found() -> None:
    for size in range(len(SMALL)):
        with pytest.raises(MalformedError):
            decode_index(SMALL[:size])


@settings(max_examples=300)
@given(records=st.dictionaries(st.binary(max_size=8), st.binary(max_size=40), max_size=5))
def test_well_formed_tables_of_anything_give_malformed_and_nothing_else(records: dict[bytes, bytes]) -> None:
    header = varint_field(1, 1)
    with contextlib.suppress(MalformedError):
        decode_index(encode_table(sorted({b"": header, **records}.items())))
    with contextlib.suppress(MalformedError):
        decode_index(encode_table(sorted(records.items())))


@settings(max_examples=300)
@given(data=st.binary(max_size=200))
def test_bytes_of_anything_give_malformed_and_nothing_else(data: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_index(data + SMALL[-48:])


def test_compressed_block_is_named() -> None:
    end = SMALL.index(b"\0" + masked_crc32c(b"\0\0\0\0\1\0\0\0\0").to_bytes(4, "little"))
    block = SMALL[end - 8 : end] + b"\1"
    damaged = SMALL[: end - 8] + block + masked_crc32c(block).to_bytes(4, "little") + SMALL[end + 5 :]
    with pytest.raises(MalformedError, match="compressed"):
        decode_index(damaged)


@pytest.mark.parametrize(
    "header,reason",
    [
        (varint_field(1, 1) + varint_field(2, 1), "big-endian"),
        (varint_field(1, 1) + bytes_field(3, varint_field(2, 9)), "version 9"),
        (b"", "0 shards"),
    ],
)
def test_header_that_cannot_be_read_says_why(header: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        decode_index(encode_table([(b"", header)]))


def test_prefix_compression_cannot_blow_up_memory() -> None:
    long_key = b"k" * 60_000
    records = [(b"", varint_field(1, 1))] + [(long_key + bytes([n]), b"") for n in range(255)]
    data = encode_table(records)
    tracemalloc.start()
    try:
        decode_index(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * 2**20


def test_unreadable_index_is_damage_that_may_be_retried(tmp_path: Path) -> None:
    with pytest.raises(DamagedError) as caught:
        read_index(tmp_path / "missing.index")
    assert caught.value.retryable
    path = tmp_path / "bad.index"
    path.write_bytes(SMALL[:-1])
    with pytest.raises(DamagedError, match=r"bad\.index"):
        read_index(path)


@given(value=st.integers(0, 2**64 - 1))
def test_varint_is_as_long_as_it_has_to_be(value: int) -> None:
    assert len(varint(value)) == max(1, -(-value.bit_length() // 7))
