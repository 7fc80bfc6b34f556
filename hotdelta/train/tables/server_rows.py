"""Rows in the memory of the parameter servers that hold them: gathered and kept there, never fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.train.servers.fetching import fetch, here
from hotdelta.train.tables.sharded import Shard, asking_servers, is_remote, parts_of, shards_of
from hotdelta.train.tables.touched import Ids


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Consecutive rows of a block, from its `first`-th on, as a tensor on one server (a device name)."""

    server: str
    first: int
    count: int
    tensor: tf.Tensor


@dataclass(frozen=True, slots=True)
class ServerRows:
    """The rows of one block, in the order of its ids: each part on the server that holds those rows."""

    parts: tuple[HeldRows, ...]


def is_on_servers(variable: Any) -> bool:
    return all(is_remote(part) for part in parts_of(variable))


def gather_on_servers(variable: Any, ids: Ids) -> ServerRows:
    """Copies of the given rows, beside the rows. `ids` are sorted; when this returns the copies are made."""
    parts = []
    for shard in shards_of(variable):
        first, end = np.searchsorted(ids, [shard.first, shard.first + shard.rows])
        if end > first:
            tensor = _gather(shard, ids[first:end] - shard.first)
            parts.append(HeldRows(shard.variable.device, int(first), int(end - first), tensor))
    wait_for(part.tensor for part in parts)
    return ServerRows(tuple(parts))


def wait_for(tensors: Any) -> None:
    """Operations on servers are queued: what asks for a shape gets it when the tensor is there.

    Without that a training step that is scheduled after the cut might run before the gather.
    """
    for server, shape in [(tensor.backing_device, _shape(tensor)) for tensor in tensors]:
        with asking_servers(server):
            fetch(shape)


def _shape(tensor: tf.Tensor) -> tf.Tensor:
    with asking_servers(tensor.backing_device), tf.device(tensor.backing_device):
        return tf.raw_ops.Shape(input=tensor)


def _gather(shard: Shard, ids: Ids) -> tf.Tensor:
    with asking_servers(shard.variable.device), tf.device(shard.variable.device):
        return tf.raw_ops.ResourceGather(
            resource=shard.variable.handle, indices=here(ids), dtype=shard.variable.dtype
        )
