"""The key under which a tensor bundle stores one slice of a partitioned tensor.

TensorFlow's ordered code: a zero, the name, the number of axes, and start and length of each axis.
"""

from __future__ import annotations

from hotdelta.chain.bundle_index import Extents, decode_key, encode_key

SLICE_MARK = "\0"

# Ordered code escapes 0x00 and 0xff, which the UTF-8 name of a tensor does not hold.
_END_OF_TEXT = b"\0\1"
_BITS_PER_BYTE = 7
_ONE_BYTE_LIMIT = 64


def is_slice_key(key: str) -> bool:
    """Names of tensors never begin with a zero byte."""
    return key.startswith(SLICE_MARK)


def slice_key(name: str, extents: Extents) -> str:
    parts = [_number(0), encode_key(name) + _END_OF_TEXT, _number(len(extents))]
    parts += [_signed(value) for extent in extents for value in extent]
    return decode_key(b"".join(parts))


def _number(value: int) -> bytes:
    """How many bytes, then the bytes, most significant first."""
    digits = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


def _signed(value: int) -> bytes:
    """Two's complement behind a unary length in the leading bits, so that bytes sort as numbers do."""
    magnitude = ~value if value < 0 else value
    if magnitude < _ONE_BYTE_LIMIT:
        return bytes([0x80 ^ (value & 0xFF)])
    length = magnitude.bit_length() // _BITS_PER_BYTE + 1
    header = ((1 << length) - 1) << (8 * length - length)
    return (header ^ (value & ((1 << (8 * length)) - 1))).to_bytes(length, "big")
