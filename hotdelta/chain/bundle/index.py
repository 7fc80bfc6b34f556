"""The `.index` file of a TensorFlow tensor bundle: which tensors there are, and where in which data file.

The header has the empty key, every other key is the name of a tensor. Reading never trusts: a damaged file
gives DamagedError and never another exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hotdelta.chain.bundle.dtypes import DTYPE_NUMBERS, DTYPES
from hotdelta.chain.bundle.file_bytes import read_plainly
from hotdelta.chain.bundle.table_file import decode_table, encode_table
from hotdelta.chain.bundle.wire import (
    MAX_SIZE,
    MalformedError,
    bytes_field,
    fixed32_field,
    parse_message,
    read_varint,
    varint_field,
)
from hotdelta.errors import DamagedError

MAX_INDEX_BYTES = 64 * 1024 * 1024

_MAX_RANK = 254
# Field numbers of an entry and their wire types, as the one byte that they are.
_DTYPE_TAG, _SHAPE_TAG, _SHARD_TAG, _OFFSET_TAG, _SIZE_TAG, _CRC_TAG = 0x08, 0x12, 0x18, 0x20, 0x28, 0x35
_NUMBER_TAGS = frozenset({_DTYPE_TAG, _SHARD_TAG, _OFFSET_TAG, _SIZE_TAG})

Extents = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """Where one tensor is. `crc32c` is masked. A sliced tensor has no bytes of its own, its slices do.

    A slice has a start and a length for each axis; length -1 is the whole axis.
    """

    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[Extents, ...] = ()

    @property
    def is_sliced(self) -> bool:
        return bool(self.slices)


@dataclass(frozen=True, slots=True)
class BundleIndex:
    num_shards: int
    entries: Mapping[str, BundleEntry]


def encode_index(index: BundleIndex) -> bytes:
    """The bytes of the index file; TensorFlow writes the same, with shorter keys in its index block."""
    header = varint_field(1, index.num_shards) + bytes_field(3, varint_field(1, 1))
    records = [(b"", header)]
    records += sorted((encode_key(name), _encode_entry(entry)) for name, entry in index.entries.items())
    return encode_table(records)


def decode_index(data: bytes) -> BundleIndex:
    """Raises MalformedError, which says what is wrong."""
    records = decode_table(data)
    key, header = next(records, (b"?", b""))
    if key != b"":
        raise MalformedError("the header is missing")
    num_shards = _decode_header(header)
    entries = {}
    for key, value in records:
        entry = _decode_entry(value)
        if entry.shard >= num_shards:
            raise MalformedError(f"tensor {key!r} is in shard {entry.shard} of {num_shards}")
        entries[decode_key(key)] = entry
    return BundleIndex(num_shards, entries)


def read_index(path: Path) -> BundleIndex:
    """Raises DamagedError when the file is missing, or is not the index of a tensor bundle."""
    try:
        content = read_plainly(path, MAX_INDEX_BYTES)
    except OSError as error:
        raise DamagedError(
            f"index {path.name} cannot be read: {error.strerror}", path=path, position="", retryable=True
        ) from error
    if len(content) > MAX_INDEX_BYTES:
        raise DamagedError(
            f"index {path.name} is larger than {MAX_INDEX_BYTES} bytes", path=path, position=""
        )
    return parse_index(content, path)


def parse_index(data: bytes, path: Path | str) -> BundleIndex:
    """Raises DamagedError when these bytes, which were read from `path`, are not the index of a tensor bundle."""
    try:
        return decode_index(data)
    except MalformedError as error:
        found = Path(path)
        raise DamagedError(f"index {found.name}: {error}", path=found, position="") from error


def encode_key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def decode_key(key: bytes) -> str:
    """Keys of slices of partitioned variables are not text; they survive as surrogates."""
    return key.decode("utf-8", "surrogateescape")


def _encode_entry(entry: BundleEntry) -> bytes:
    shape = b"".join(bytes_field(2, varint_field(1, size)) for size in entry.shape)
    return (
        varint_field(1, DTYPE_NUMBERS[entry.dtype])
        + bytes_field(2, shape)
        + varint_field(3, entry.shard)
        + varint_field(4, entry.offset)
        + varint_field(5, entry.size)
        + fixed32_field(6, entry.crc32c)
        + b"".join(bytes_field(7, _encode_slice(extents)) for extents in entry.slices)
    )


def _encode_slice(extents: Extents) -> bytes:
    """An axis without a length is the whole axis."""
    return b"".join(
        bytes_field(1, varint_field(1, start) + (varint_field(2, length) if length >= 0 else b""))
        for start, length in extents
    )


@lru_cache(maxsize=64)
def _decode_header(data: bytes) -> int:
    fields = parse_message(data)
    if fields.integer(2):
        raise MalformedError("it was written on a big-endian machine")
    version = parse_message(fields.message(3))
    if version.integer(2) > 1:
        raise MalformedError(f"it needs a reader of version {version.integer(2)}")
    if not 0 < fields.integer(1) < 100_000:
        raise MalformedError(f"it has {fields.integer(1)} shards")
    return fields.integer(1)


def _decode_entry(data: bytes) -> BundleEntry:
    """In one pass over the fields that entries have; anything that is unusual is left to the parser of messages.

    A chain of 20,000 deltas has 100,000 entries and more.
    """
    numbers, shape = {}, b""
    at, end = 0, len(data)
    while at < end:
        tag, at = data[at], at + 1
        if tag == _CRC_TAG:
            crc, at = data[at : at + 4], at + 4
            numbers[tag] = int.from_bytes(crc, "little")
        elif tag == _SHAPE_TAG:
            size, at = read_varint(data, at)
            shape, at = data[at : at + size], at + size
        elif tag in _NUMBER_TAGS:
            numbers[tag], at = read_varint(data, at)
        else:
            return _decode_any_entry(data)
    if at != end or max(numbers.values(), default=0) > MAX_SIZE:
        return _decode_any_entry(data)
    find = numbers.get
    number = find(_DTYPE_TAG, 0)
    return BundleEntry(
        dtype=DTYPES.get(number) or f"tensorflow-{number}",
        shape=_decode_shape(shape),
        shard=find(_SHARD_TAG, 0),
        offset=find(_OFFSET_TAG, 0),
        size=find(_SIZE_TAG, 0),
        crc32c=find(_CRC_TAG, 0),
    )


def _decode_any_entry(data: bytes) -> BundleEntry:
    fields = parse_message(data)
    number = fields.integer(1)
    return BundleEntry(
        dtype=DTYPES.get(number, f"tensorflow-{number}"),
        shape=_decode_shape(fields.message(2)),
        shard=fields.integer(3),
        offset=fields.integer(4),
        size=fields.integer(5),
        crc32c=fields.fixed32(6),
        slices=tuple(_decode_slice(part) for part in fields.messages(7)),
    )


def _decode_slice(data: bytes) -> Extents:
    extents = (parse_message(extent) for extent in parse_message(data).messages(1))
    return tuple((extent.integer(1), extent.integer(2) if extent.count(2) else -1) for extent in extents)


@lru_cache(maxsize=4096)
def _decode_shape(data: bytes) -> tuple[int, ...]:
    """Remembered: the deltas of a chain have the same few shapes, ten thousands of times."""
    fields = parse_message(data)
    if fields.count(2) > _MAX_RANK or fields.integer(3):
        raise MalformedError("a tensor has no definite shape")
    return tuple(parse_message(dimension).integer(1) for dimension in fields.messages(2))
