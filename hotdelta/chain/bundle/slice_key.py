"""Tensors that a bundle stores in slices of their rows, and the keys under which it does.

TensorFlow's ordered code: a zero, the name, the number of axes, and start and length of each axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotdelta.chain.bundle.index import BundleEntry, Extents, decode_key, encode_key
from hotdelta.errors import ManifestError

SLICE_MARK = "\0"

# Ordered code escapes 0x00 and 0xff, which the UTF-8 name of a tensor does not hold.
_END_OF_TEXT = b"\0\1"
_BITS_PER_BYTE = 7
_ONE_BYTE_LIMIT = 64

_NOT_IN_SLICES = frozenset({"float16", "uint16", "uint32", "uint64"})


def can_be_sliced(dtype: str) -> bool:
    """Whether RestoreV2 joins slices of it."""
    return dtype not in _NOT_IN_SLICES


def is_slice_key(key: str) -> bool:
    """Names of tensors never begin with a zero byte."""
    return key.startswith(SLICE_MARK)


def slice_key(name: str, extents: Extents) -> str:
    parts = [_number(0), encode_key(name) + _END_OF_TEXT, _number(len(extents))]
    parts += [_signed(value) for extent in extents for value in extent]
    return decode_key(b"".join(parts))


def slice_entries(name: str, pieces: Sequence[BundleEntry]) -> dict[str, BundleEntry]:
    """The entries of a tensor whose rows are those of the pieces, one after the other; none of them is empty."""
    whole_axes = ((0, -1),) * (len(pieces[0].shape) - 1)
    entries: dict[str, BundleEntry] = {}
    slices: list[Extents] = []
    end = 0
    for piece in pieces:
        slices.append(((end, piece.shape[0]), *whole_axes))
        entries[slice_key(name, slices[-1])] = piece
        end += piece.shape[0]
    shape = (end, *pieces[0].shape[1:])
    return {name: BundleEntry(pieces[0].dtype, shape, 0, 0, 0, 0, tuple(slices)), **entries}


def row_slices(name: str, entry: BundleEntry) -> list[str]:
    """The keys of the slices of a tensor, in the order of their rows. Raises ManifestError unless all are whole."""
    keys, end = [], 0
    if not entry.shape or any(len(extents) != len(entry.shape) for extents in entry.slices):
        raise ManifestError(f"tensor {name!r} is stored in parts of another rank")
    for extents in sorted(entry.slices):
        (first, rows), rest = extents[0], extents[1:]
        whole = [
            (0, size) if extent[1] < 0 else extent for extent, size in zip(rest, entry.shape[1:], strict=True)
        ]
        if whole != [(0, size) for size in entry.shape[1:]] or first != end or rows < 0:
            raise ManifestError(f"tensor {name!r} is not stored in parts of whole rows")
        end += rows
        keys.append(slice_key(name, extents))
    if end != entry.shape[0]:
        raise ManifestError(f"tensor {name!r} is stored in parts that are not all of it")
    return keys


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
