"""Tables that no writer of tables would write, with every checksum in order."""

from __future__ import annotations

import tracemalloc

import pytest

from hotdelta.chain.bundle import table_file
from hotdelta.chain.bundle.index import decode_index
from hotdelta.chain.bundle.wire import MalformedError, bytes_field, varint_field

pytestmark = pytest.mark.I4

HEADER = (b"", varint_field(1, 1) + bytes_field(3, varint_field(1, 1)))
NEVER = 10**9


def table(records: list[tuple[bytes, bytes]], restart_interval: int) -> bytes:
    """One block, in which only every so many keys are whole."""
    blocks = bytearray()
    handle = table_file._append_block(blocks, table_file._encode_block(records, restart_interval))
    footer = table_file._append_block(blocks, table_file._encode_block([], 1))
    footer += table_file._append_block(blocks, table_file._encode_block([(records[-1][0], handle)], 1))
    return bytes(blocks) + footer.ljust(table_file._HANDLES_BYTES, b"\0") + table_file._MAGIC


def long_keys(count: int, length: int) -> list[tuple[bytes, bytes]]:
    return [HEADER, *((b"k" * length + number.to_bytes(3, "big"), b"") for number in range(count))]


def test_keys_that_share_nearly_everything_do_not_fill_memory() -> None:
    """18 KB that would become 60 MB."""
    content = table(long_keys(2000, 30_000), NEVER)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match="more bytes than it can hold"):
            decode_index(content)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(content)
    finally:
        tracemalloc.stop()


def test_keys_that_share_as_much_as_they_may_are_read() -> None:
    records = long_keys(200, 30_000)
    found = decode_index(table_file.encode_table(records)).entries
    assert len(found) == 200
