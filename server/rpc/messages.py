"""The messages and services of all protocols that are spoken here by gRPC, by their public names.

In a pool of their own: TensorFlow, and stubs that somebody imports beside us, have theirs of the same names. Nothing
here is TensorFlow, and what is generated is data, which every release of protobuf reads (scripts/make_contracts.py).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_COMPILED = Path(__file__).with_name("contracts.binpb")

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
