"""The few forms of the protocol-buffer wire format that the index of a tensor bundle needs, bounds checked."""

from __future__ import annotations

from dataclasses import dataclass, field

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_SIZE = 2**62


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


class Reader:
    """A cursor over bytes that raises MalformedError where they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def is_empty(self) -> bool:
        return self._offset >= len(self._data)

    def rest(self) -> bytes:
        return self._data[self._offset :]

    def take(self, size: int) -> bytes:
        end = self._offset + size
        if end > len(self._data):
            raise MalformedError("it ends too early")
        taken, self._offset = self._data[self._offset : end], end
        return taken

    def varint(self) -> int:
        offset = self._offset
        if offset < len(self._data) and self._data[offset] < 0x80:
            # One byte, as nearly all numbers of an index are.
            self._offset = offset + 1
            return self._data[offset]
        return self._long_varint()

    def _long_varint(self) -> int:
        value = 0
        for position in range(_MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * position)
            if byte == 0 and position:
                # No writer does this, but a flipped bit before padding does.
                raise MalformedError("a number is longer than it has to be")
            if byte < 0x80:
                return value & (2**64 - 1)
        raise MalformedError("a number has too many bytes")

    def handle(self) -> tuple[int, int]:
        """Offset and size of a block."""
        return self.varint(), self.varint()


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of one message, by number; of a repeated scalar the last counts."""

    values: dict[int, list[int | bytes]] = field(default_factory=dict)

    def count(self, number: int) -> int:
        return len(self.values.get(number, ()))

    def integer(self, number: int) -> int:
        """A count, size or offset: what is negative or absurd is malformed."""
        value = self.values.get(number, [0])[-1]
        if not isinstance(value, int) or value > _MAX_SIZE:
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
    message = Message()
    reader = Reader(data)
    values = message.values
    while not reader.is_empty():
        tag = reader.varint()
        values.setdefault(tag >> 3, []).append(_read_value(reader, tag & 7))
    return message


def _read_value(reader: Reader, wire_type: int) -> int | bytes:
    if wire_type == _VARINT:
        return reader.varint()
    if wire_type == _BYTES:
        return reader.take(reader.varint())
    if wire_type == _FIXED32:
        return int.from_bytes(reader.take(4), "little")
    if wire_type == _FIXED64:
        return int.from_bytes(reader.take(8), "little")
    raise MalformedError(f"a field has the unknown wire type {wire_type}")
