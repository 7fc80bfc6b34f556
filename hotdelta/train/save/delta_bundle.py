"""The tensors of one delta: which name, shape and shard each part of a cut gets. Writes files, never commits them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from hotdelta.chain.bundle.delta_tensors import SHARD_ROLES, ids_tensor, shard_of, state_tensors
from hotdelta.chain.bundle.parts import discard_parts
from hotdelta.chain.bundle.writer import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.position import Node
from hotdelta.train.model.variables import OtherVariable
from hotdelta.train.rows.cut import Cut, RowBlock
from hotdelta.train.save.server_delta import merge_server_parts, rows_on_servers
from hotdelta.train.save.server_parts import plan_parts, unused_stem
from hotdelta.train.tables.row_values import Array
from hotdelta.train.tables.server_rows import ServerRows


def write_delta(
    directory: Path,
    prefix: str,
    cut: Cut,
    *,
    others: tuple[OtherVariable, ...],
    node: Node,
    parent: Node,
    disk: Disk,
    roles: Mapping[str, str] | None = None,
) -> PreparedBundle:
    """Raises CommitError when the disk does not take it; then nothing is left behind.

    `roles`: of the tables with keys; None: those of the cut's blocks.
    """
    tensors = dict(_tensors(cut, others, node, parent, roles))
    on_servers = rows_on_servers(cut.blocks)
    if not on_servers:
        return _write(directory, prefix, tensors, disk)
    stem = unused_stem(prefix)
    try:
        own = _write(directory, f"{stem}.own", tensors, disk)
        return merge_server_parts(own, prefix, plan_parts(directory, stem, on_servers), disk=disk)
    except BaseException:
        discard_parts(directory, stem, disk=disk)
        raise


def _write(
    directory: Path, prefix: str, tensors: Mapping[str, tuple[str, Array]], disk: Disk
) -> PreparedBundle:
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


def _tensors(
    cut: Cut,
    others: tuple[OtherVariable, ...],
    node: Node,
    parent: Node,
    given_roles: Mapping[str, str] | None,
) -> Iterator[tuple[str, tuple[str, Array]]]:
    with_ids = {block.variable.key + names.IDS_SUFFIX for block in cut.blocks if block.shares_ids_of is None}
    for block in cut.blocks:
        item = block.variable
        if not _finds_ids(block, with_ids):
            yield item.key + names.IDS_SUFFIX, (item.role, block.ids)
        if not isinstance(block.rows, ServerRows):
            yield item.key + names.ROWS_SUFFIX, (item.role, block.rows)
        elif not block.rows.parts:
            nothing = np.empty((0, *item.shape[1:]), item.variable.dtype.as_numpy_dtype)
            yield item.key + names.ROWS_SUFFIX, (item.role, nothing)
    roles = given_roles or {block.variable.key: block.variable.role for block in cut.blocks}
    for key, state in cut.keys.items():
        yield key + names.DELETED_SUFFIX, (roles[key], state.deleted)
    for other in others:
        yield (
            other.key + names.VALUE_SUFFIX,
            (other.role, _value_or_nothing(cut.values.get(other.key), other)),
        )
    for name, array in state_tensors(node, parent, cut.step).items():
        yield name, (names.ROLE_SERVING, array)
    trainer_state = np.frombuffer(cut.trainer_state, np.uint8)
    yield names.TRAINER_STATE_TENSOR, (names.ROLE_TRAINING, trainer_state)


def _finds_ids(block: RowBlock, with_ids: Collection[str]) -> bool:
    """Whether a reader finds the ids that it shares by its name alone: another table may be named like a slot."""
    shared = block.shares_ids_of
    return shared is not None and ids_tensor(with_ids, block.variable.key) == shared + names.IDS_SUFFIX


def _value_or_nothing(value: Array | None, other: OtherVariable) -> Array:
    """A leading axis of 1 when the value changed and of 0 when not, so that a static graph can read every delta."""
    if value is not None:
        return value[np.newaxis]
    return np.empty((0, *other.shape), other.variable.dtype.as_numpy_dtype)
