"""The few forms of the protocol-buffer wire format that the index of a tensor bundle needs, bounds checked."""

from __future__ import annotations

from dataclasses import dataclass, field

ENDS_EARLY = "it ends too early"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
MAX_SIZE = 2**62


class MalformedError(ValueError):
    """Bytes that are not what they should be. Never leaves hotdelta.chain: callers, who know the path, translate."""


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint_field(number: int, value: int) -> bytes:
    """A field that is left out when it is zero, as TensorFlow's version of the format does."""
    return varint(number << 3 | _VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def fixed32_field(number: int, value: int) -> bytes:
    return varint(number << 3 | _FIXED32) + value.to_bytes(4, "little") if value else b""


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The number that begins at an offset, and where it ends. Raises MalformedError."""
    if offset < len(data) and data[offset] < 0x80:
        # One byte, as nearly all numbers of an index are.
        return data[offset], offset + 1
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if offset >= len(data):
            raise MalformedError(ENDS_EARLY)
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte == 0 and shift:
            # No writer does this, but a flipped bit before padding does.
            raise MalformedError("a number is longer than it has to be")
        if byte < 0x80:
            return value & (2**64 - 1), offset
    raise MalformedError("a number has too many bytes")


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of one message, by number; of a repeated scalar the last counts."""

    values: dict[int, list[int | bytes]] = field(default_factory=dict)

    def count(self, number: int) -> int:
        return len(self.values.get(number, ()))

    def integer(self, number: int) -> int:
        """A count, size or offset: what is negative or absurd is malformed."""
        value = self.values.get(number, [0])[-1]
        if not isinstance(value, int) or value > MAX_SIZE:
            raise MalformedError(f"field {number} is not a size")
        return value

    def fixed32(self, number: int) -> int:
        value = self.values.get(number, [0])[-1]
        if not isinstance(value, int) or value >= 2**32:
            raise MalformedError(f"field {number} is not a checksum")
        return value

    def message(self, number: int) -> bytes:
        value = self.values.get(number, [b""])[-1]
        if not isinstance(value, bytes):
            raise MalformedError(f"field {number} is not a message")
        return value

    def messages(self, number: int) -> list[bytes]:
        values = self.values.get(number, [])
        if not all(isinstance(value, bytes) for value in values):
            raise MalformedError(f"field {number} is not a message")
        return [value for value in values if isinstance(value, bytes)]


def parse_message(data: bytes) -> Message:
    values: dict[int, list[int | bytes]] = {}
    offset, end = 0, len(data)
    while offset < end:
        tag, offset = read_varint(data, offset)
        wire_type = tag & 7
        value: int | bytes
        if wire_type == _VARINT:
            value, offset = read_varint(data, offset)
        else:
            size = _FIXED_BYTES.get(wire_type, 0)
            if wire_type == _BYTES:
                size, offset = read_varint(data, offset)
            elif not size:
                raise MalformedError(f"a field has the unknown wire type {wire_type}")
            start, offset = offset, offset + size
            if offset > end:
                raise MalformedError(ENDS_EARLY)
            value = data[start:offset]
            if wire_type != _BYTES:
                value = int.from_bytes(value, "little")
        if (found := values.get(tag >> 3)) is None:
            values[tag >> 3] = [value]
        else:
            found.append(value)
    return Message(values)
