"""One update as tensors, and every check that it must pass before the first write.

A check is an assert that the caller makes a control input of its writes: without that a bad id in the second table
is found after the first table was changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hotdelta.chain.format import names
from hotdelta.chain.format.position import IDENTITY_LENGTH
from hotdelta.chain.format.schema import Schema, VariableSpec

NODE_LENGTH = IDENTITY_LENGTH // 2

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


@dataclass(frozen=True, slots=True)
class UpdateTensors:
    """What a delta holds for serving: ids and rows of tables, values with a leading axis of 0 or 1 of the others."""

    ids: Mapping[str, tf.Tensor]
    rows: Mapping[str, tf.Tensor]
    values: Mapping[str, tf.Tensor]
    identity: tf.Tensor
    step: tf.Tensor

    def parts(self) -> dict[str, tf.Tensor]:
        """The tensors, without identity and step, under their names in a bundle."""
        return {
            **{key + names.IDS_SUFFIX: ids for key, ids in self.ids.items()},
            **{key + names.ROWS_SUFFIX: rows for key, rows in self.rows.items()},
            **{key + names.VALUE_SUFFIX: value for key, value in self.values.items()},
        }

    def value_counts(self) -> tf.Tensor:
        """For each value 1 when it is there and 0 when it is not."""
        counts = [_length(value) for value in self.values.values()]
        return tf.concat(counts, axis=0) if counts else tf.zeros([0], tf.int64)

    def num_rows(self) -> tf.Tensor:
        counts = [tf.size(ids, out_type=tf.int64) for ids in self.ids.values()]
        return tf.add_n(counts) if counts else tf.zeros([], tf.int64)


def tensor_specs(schema: Schema) -> list[tf.TensorSpec]:
    """Names, dtypes and shapes of the parts of an update, without identity and step, in a fixed order."""
    specs: list[tf.TensorSpec] = []
    for table in schema.tables:
        specs.append(tf.TensorSpec([None], tf.int64, name=table.key + names.IDS_SUFFIX))
        specs.append(tf.TensorSpec([None, *table.shape[1:]], table.dtype, name=table.key + names.ROWS_SUFFIX))
    for other in schema.others:
        specs.append(tf.TensorSpec([None, *other.shape], other.dtype, name=other.key + names.VALUE_SUFFIX))
    return specs


def from_parts(
    schema: Schema, parts: Mapping[str, tf.Tensor], identity: tf.Tensor, step: tf.Tensor
) -> UpdateTensors:
    return UpdateTensors(
        ids={table.key: parts[table.key + names.IDS_SUFFIX] for table in schema.tables},
        rows={table.key: parts[table.key + names.ROWS_SUFFIX] for table in schema.tables},
        values={other.key: parts[other.key + names.VALUE_SUFFIX] for other in schema.others},
        identity=identity,
        step=step,
    )


def read_tensors(
    prefix: tf.Tensor, tensor_names: Sequence[str], dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """One RestoreV2 call for all tensors of a bundle: each call opens and reads the index anew."""
    return list(
        tf.raw_ops.RestoreV2(
            prefix=prefix[0],
            tensor_names=list(tensor_names),
            shape_and_slices=[""] * len(tensor_names),
            dtypes=list(dtypes),
        )
    )


def read_update(schema: Schema, prefix: tf.Tensor) -> UpdateTensors:
    specs = tensor_specs(schema)
    tensor_names = [*(spec.name for spec in specs), names.IDENTITY_TENSOR, names.STEP_TENSOR]
    *tensors, identity, step = read_tensors(
        prefix, tensor_names, [*(spec.dtype for spec in specs), tf.int64, tf.int64]
    )
    parts = {spec.name: tensor for spec, tensor in zip(specs, tensors, strict=True)}
    return from_parts(schema, parts, identity, step)


def check_update(
    schema: Schema, update: UpdateTensors, live_identity: tf.Tensor
) -> tuple[list[Any], UpdateTensors]:
    """Every check of an update, as control inputs for its writes, and the update with the shapes that it has then."""
    parts = {
        spec.name: check_shape(spec.name, part, spec.shape)
        for spec, part in zip(tensor_specs(schema), _ordered_parts(schema, update), strict=True)
    }
    identity, step = check_stamp(update.identity, update.step)
    checked = from_parts(schema, parts, identity, step)
    checks = [*parts.values(), identity, step, *parent_asserts(identity, live_identity)]
    checks += [_rows_assert(table, checked) for table in schema.tables]
    checks += [_ids_assert(table, checked.ids[table.key]) for table in schema.tables]
    return [*checks, *_counts_asserts(schema, checked)], checked


def check_shape(name: str, tensor: tf.Tensor, shape: Any) -> tf.Tensor:
    """The tensor, once it is known to have that shape; a failure shows the name and both shapes."""
    return tf.ensure_shape(tensor, shape, name=f"check_shape/{operation_name(name)}")


def operation_name(key: str) -> str:
    """What an operation for this key may be called: a key can be any text, the name of an operation cannot."""
    return _NOT_IN_NAMES.sub("_", key)


def check_stamp(identity: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return (
        check_shape(names.IDENTITY_TENSOR, identity, [IDENTITY_LENGTH]),
        check_shape(names.STEP_TENSOR, step, []),
    )


def prefix_asserts(prefix: tf.Tensor) -> list[tf.Operation]:
    return [
        expect(tf.reduce_all(tf.equal(prefix, prefix[:1])), "all prefixes of a call must be equal", prefix)
    ]


def parent_asserts(identity: tf.Tensor, live_identity: tf.Tensor) -> list[tf.Operation]:
    parent, live = identity[NODE_LENGTH:], live_identity[:NODE_LENGTH]
    message = "the update does not follow the live state: its parent (run, seq, state id) and the live one"
    return [expect(tf.reduce_all(tf.equal(parent, live)), message, parent, live)]


def _ordered_parts(schema: Schema, update: UpdateTensors) -> list[tf.Tensor]:
    parts = update.parts()
    return [parts[spec.name] for spec in tensor_specs(schema)]


def _rows_assert(table: VariableSpec, update: UpdateTensors) -> tf.Operation:
    num_ids, num_rows = _length(update.ids[table.key]), _length(update.rows[table.key])
    return expect(tf.equal(num_ids, num_rows)[0], f"{table.key}: as many ids as rows", num_ids, num_rows)


def _ids_assert(table: VariableSpec, ids: tf.Tensor) -> tf.Operation:
    """Strictly increasing, so that there is no duplicate and the ends say whether all are in range."""
    is_increasing = tf.reduce_all(ids[1:] > ids[:-1])
    in_range = tf.logical_and(tf.reduce_all(ids[:1] >= 0), tf.reduce_all(ids[-1:] < table.shape[0]))
    message = (
        f"{table.key}: ids must be strictly increasing and between 0 and {table.shape[0] - 1}; first, last"
    )
    return expect(tf.logical_and(is_increasing, in_range), message, ids[:1], ids[-1:])


def _counts_asserts(schema: Schema, update: UpdateTensors) -> list[tf.Operation]:
    if not schema.others:
        return []
    counts = update.value_counts()
    keys = ", ".join(other.key for other in schema.others)
    return [expect(tf.reduce_all(counts <= 1), f"each value is there once or not at all: {keys}", counts)]


def _length(tensor: tf.Tensor) -> tf.Tensor:
    """The size of the first axis, as a vector of one."""
    return tf.slice(tf.shape(tensor, out_type=tf.int64), [0], [1])


def expect(condition: tf.Tensor, message: str, *values: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.Assert(condition=condition, data=[tf.constant(message), *values], summarize=8)
