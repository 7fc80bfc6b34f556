"""The tensors of one delta: which name, shape and shard each part of a cut gets. Writes files, never commits them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hotdelta.chain import names
from hotdelta.chain.bundle import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk
from hotdelta.chain.identity import encode_identity
from hotdelta.chain.position import Node
from hotdelta.train.cut import Cut
from hotdelta.train.row_values import Array
from hotdelta.train.variables import OtherVariable

SHARD_ROLES = (names.ROLE_SERVING, names.ROLE_TRAINING)


def shard_of(role: str) -> int:
    return SHARD_ROLES.index(role)


def write_delta(
    directory: Path,
    prefix: str,
    cut: Cut,
    *,
    others: tuple[OtherVariable, ...],
    node: Node,
    parent: Node,
    disk: Disk,
) -> PreparedBundle:
    """Raises CommitError when the disk does not take it; then nothing is left behind."""
    tensors = dict(_tensors(cut, others, node, parent))
    layouts = [
        TensorLayout(name, array.dtype.name, array.shape, shard_of(role))
        for name, (role, array) in tensors.items()
    ]
    writer = BundleWriter(directory, prefix, layouts, shard_roles=SHARD_ROLES, disk=disk)
    try:
        for name, (_, array) in tensors.items():
            writer.write(name, array)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def state_tensors(node: Node, parent: Node | None, step: int) -> Mapping[str, Array]:
    """What every bundle says about itself, for a graph to read."""
    return {
        names.IDENTITY_TENSOR: np.array(encode_identity(node, parent), np.int64),
        names.STEP_TENSOR: np.array(step, np.int64),
    }


def _tensors(
    cut: Cut, others: tuple[OtherVariable, ...], node: Node, parent: Node
) -> Iterator[tuple[str, tuple[str, Array]]]:
    for block in cut.blocks:
        item = block.variable
        if block.shares_ids_of is None:
            yield item.key + names.IDS_SUFFIX, (item.role, block.ids)
        yield item.key + names.ROWS_SUFFIX, (item.role, block.rows)
    for other in others:
        yield (
            other.key + names.VALUE_SUFFIX,
            (other.role, _value_or_nothing(cut.values.get(other.key), other)),
        )
    for name, array in state_tensors(node, parent, cut.step).items():
        yield name, (names.ROLE_SERVING, array)
    trainer_state = np.frombuffer(cut.trainer_state, np.uint8)
    yield names.TRAINER_STATE_TENSOR, (names.ROLE_TRAINING, trainer_state)


def _value_or_nothing(value: Array | None, other: OtherVariable) -> Array:
    """A leading axis of 1 when the value changed and of 0 when not, so that a static graph can read every delta."""
    if value is not None:
        return value[np.newaxis]
    return np.empty((0, *other.shape), other.variable.dtype.as_numpy_dtype)
