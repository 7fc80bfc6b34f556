"""The messages and services of all protocols that are spoken here by gRPC, by their public names.

In a pool of their own: TensorFlow, and stubs that somebody imports beside us, have theirs of the same names. Nothing
here is TensorFlow, and what is generated is data, which every release of protobuf reads (scripts/make_contracts.py).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy.typing as npt
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_COMPILED = Path(__file__).with_name("contracts.binpb")

# The dtypes whose lists are their bytes in a message.
PACKED = ("float32", "float64")
_LENGTH_DELIMITED = 2

# Only protobuf knows what a message has in it.
Message = Any
MessageKind = Any


@functools.cache
def pool() -> Any:
    found = DescriptorPool()
    for file in FileDescriptorSet.FromString(_COMPILED.read_bytes()).file:
        found.AddSerializedFile(file.SerializeToString())
    return found


@functools.cache
def kind(name: str) -> MessageKind:
    """The class of the messages with this full name."""
    return GetMessageClass(pool().FindMessageTypeByName(name))


def service(name: str) -> Any:
    """The description of a service: its methods, and their messages."""
    return pool().FindServiceByName(name)


def packed(message: Message, field: str, array: npt.NDArray[Any]) -> bytes:
    """What `message` has to read to have the numbers of an array of `PACKED` in its list: they are not looked at."""
    number = message.DESCRIPTOR.fields_by_name[field].number
    content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return b"".join((_varint(number << 3 | _LENGTH_DELIMITED), _varint(len(content)), content))


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
