"""The table format of LevelDB, in which TensorFlow keeps the index of a tensor bundle.

Sorted keys with their values in checksummed blocks, then a block that lists the blocks, then a footer. A key leaves out
what it shares with the one before, but not every 16th, and blocks lie side by side, so that no file can make its reader
take much more memory than it has bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotdelta.chain.bundle import digest
from hotdelta.chain.bundle.wire import ENDS_EARLY, MalformedError, read_varint, varint

_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_FOOTER_BYTES = 48
_HANDLES_BYTES = _FOOTER_BYTES - len(_MAGIC)
_TRAILER_BYTES = 5
_UNCOMPRESSED = 0
_BLOCK_BYTES = 256 * 1024
_RESTART_INTERVAL = 16
_MAX_KEY_BYTES = 64 * 1024


def encode_table(records: list[tuple[bytes, bytes]]) -> bytes:
    """The file that holds these keys, which are sorted and unique, with their values."""
    blocks = bytearray()
    handles = [
        (chunk[-1][0], _append_block(blocks, _encode_block(chunk, _RESTART_INTERVAL)))
        for chunk in _chunk(records)
    ]
    footer = _append_block(blocks, _encode_block([], 1))
    footer += _append_block(blocks, _encode_block(handles, 1))
    return bytes(blocks) + footer.ljust(_HANDLES_BYTES, b"\0") + _MAGIC


def decode_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys with their values. Raises MalformedError.

    Blocks lie side by side from the first byte to the footer: what no handle covers would go unchecked.
    """
    if len(data) < _FOOTER_BYTES or data[-len(_MAGIC) :] != _MAGIC:
        raise MalformedError("it does not end as a table does")
    footer = data[-_FOOTER_BYTES : -len(_MAGIC)]
    metaindex, end = _read_handle(footer, 0)
    index, end = _read_handle(footer, end)
    if any(footer[end:]):
        raise MalformedError("its footer is not padded with zeros")
    offset = 0
    previous: bytes | None = None
    for separator, value in _decode_block(_read_block(data, index)):
        handle, _ = _read_handle(value, 0)
        if handle[0] != offset:
            raise MalformedError("its blocks do not lie side by side")
        offset = _end(handle)
        for key, record in _decode_block(_read_block(data, handle)):
            if previous is not None and key <= previous:
                raise MalformedError("its keys are not in order")
            previous = key
            yield key, record
        if previous is None or previous > separator:
            raise MalformedError("its index block does not fit its data blocks")
    if any(_decode_block(_read_block(data, metaindex))):
        raise MalformedError("it has a metaindex")
    if (metaindex[0], index[0], len(data)) != (offset, _end(metaindex), _end(index) + _FOOTER_BYTES):
        raise MalformedError("its blocks do not lie side by side")


def _chunk(records: list[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    chunk: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in records:
        chunk.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _encode_block(records: list[tuple[bytes, bytes]], restart_interval: int) -> bytes:
    block = bytearray()
    restarts = []
    previous = b""
    for number, (key, value) in enumerate(records):
        shared = 0
        if number % restart_interval == 0:
            restarts.append(len(block))
        else:
            shared = _count_shared(previous, key)
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        previous = key
    restarts = restarts or [0]
    for restart in [*restarts, len(restarts)]:
        block += restart.to_bytes(4, "little")
    return bytes(block)


def _count_shared(left: bytes, right: bytes) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))


def _append_block(blocks: bytearray, block: bytes) -> bytes:
    handle = varint(len(blocks)) + varint(len(block))
    typed = block + bytes([_UNCOMPRESSED])
    blocks += typed + digest.masked_crc32c(typed).to_bytes(4, "little")
    return handle


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where that ends."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _end(handle: tuple[int, int]) -> int:
    return sum(handle) + _TRAILER_BYTES


def _read_block(data: bytes, handle: tuple[int, int]) -> bytes:
    offset, size = handle
    end = offset + size
    if _end(handle) > len(data) - _FOOTER_BYTES:
        raise MalformedError("a block lies outside the file")
    stored = int.from_bytes(data[end + 1 : end + _TRAILER_BYTES], "little")
    if digest.masked_crc32c(data[offset : end + 1]) != stored:
        raise MalformedError(f"the checksum of the block at {offset} does not match")
    if data[end] != _UNCOMPRESSED:
        raise MalformedError(
            "its blocks are compressed, which no tensor bundle needs; write it with TensorFlow's SaveV2"
        )
    return data[offset:end]


def _decode_block(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    num_restarts = int.from_bytes(block[-4:], "little") if len(block) >= 4 else 0
    limit = len(block) - 4 * (num_restarts + 1)
    if num_restarts == 0 or limit < 0:
        raise MalformedError("a block has no room for its restarts")
    most_bytes = _RESTART_INTERVAL * len(block)
    block = block[:limit]
    key, keys_bytes, offset = b"", 0, 0
    while offset < limit:
        if offset + 3 <= limit and max(sizes := block[offset : offset + 3]) < 0x80:
            # One byte each, as they nearly always are.
            (shared, unshared, value_size), offset = sizes, offset + 3
        else:
            shared, offset = read_varint(block, offset)
            unshared, offset = read_varint(block, offset)
            value_size, offset = read_varint(block, offset)
        if shared > len(key) or shared + unshared > _MAX_KEY_BYTES:
            raise MalformedError("a key is longer than it can be")
        start, value_start = offset, offset + unshared
        offset = value_start + value_size
        if offset > limit:
            raise MalformedError(ENDS_EARLY)
        key = key[:shared] + block[start:value_start]
        keys_bytes += len(key)
        if keys_bytes > most_bytes:
            raise MalformedError("its keys take more bytes than it can hold")
        yield key, block[value_start:offset]
