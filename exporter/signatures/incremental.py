"""The signatures that take a delta: in one call, and in two phases so that applying copies memory only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from exporter.signatures import update_tensors
from exporter.signatures.update_tensors import NODE_LENGTH, UpdateTensors
from exporter.signatures.variables import PREFIX_SPEC, ExportedVariables, assign, gather, report
from hotdelta import signatures as contract
from hotdelta.chain.format import names
from hotdelta.chain.format.position import IDENTITY_LENGTH
from hotdelta.chain.format.schema import Schema
from hotdelta.train.serving.trace import Signature, trace_signature


class Staging(tf.Module):
    """Room for one checked update beside the live variables; empty except between a stage and its apply.

    Nothing is staged when its identity is all zero (a run starts at 1).
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__(name="hotdelta_staging")
        self._specs = update_tensors.tensor_specs(schema)
        self._schema = schema
        self.parts = [_growing_variable(spec) for spec in self._specs]
        self.identity = _counter([IDENTITY_LENGTH], "hotdelta_staged_identity")
        self.step = _counter([], "hotdelta_staged_step")
        self.num_rows = _counter([], "hotdelta_staged_rows")
        # For each value 1 when the update changes it, 0 when what is staged is the value that was live already.
        self.changed = _counter([len(schema.others)], "hotdelta_staged_changed")

    def read(self) -> UpdateTensors:
        parts = {spec.name: part.read_value() for spec, part in zip(self._specs, self.parts, strict=True)}
        return update_tensors.from_parts(
            self._schema, parts, self.identity.read_value(), self.step.read_value()
        )

    def write(self, update: UpdateTensors, changed: tf.Tensor) -> list[tf.Operation]:
        parts = update.parts()
        return [
            *(
                assign(variable, parts[spec.name])
                for spec, variable in zip(self._specs, self.parts, strict=True)
            ),
            assign(self.changed, changed),
            assign(self.num_rows, update.num_rows()),
            assign(self.identity, update.identity),
            assign(self.step, update.step),
        ]

    def empty(self) -> list[tf.Operation]:
        emptied = [
            assign(variable, tf.zeros([0, *spec.shape[1:]], spec.dtype))
            for spec, variable in zip(self._specs, self.parts, strict=True)
        ]
        return [
            *emptied,
            assign(self.identity, tf.zeros([IDENTITY_LENGTH], tf.int64)),
            assign(self.num_rows, tf.zeros([], tf.int64)),
        ]


class IncrementalSignatures:
    """restore_incremental, stage_*, staged_preimage, apply_staged and discard_staged."""

    def __init__(self, live: ExportedVariables, staging: Staging, schema: Schema) -> None:
        self._live = live
        self._staging = staging
        self._schema = schema

    def traced(self) -> Mapping[str, Signature]:
        fed = [
            *update_tensors.tensor_specs(self._schema),
            tf.TensorSpec([IDENTITY_LENGTH], tf.int64, name=contract.IDENTITY_VALUE),
            tf.TensorSpec([], tf.int64, name=contract.STEP_VALUE),
        ]
        return {
            contract.RESTORE_INCREMENTAL: _traced(self._restore_incremental, PREFIX_SPEC),
            contract.STAGE_INCREMENTAL: _traced(self._stage_incremental, PREFIX_SPEC),
            contract.STAGE_ROWS: _traced(self._stage_rows, *fed),
            contract.STAGED_PREIMAGE: _traced(self._staged_preimage),
            contract.APPLY_STAGED: _traced(self._apply_staged),
            contract.DISCARD_STAGED: _traced(self._discard_staged),
        }

    def _restore_incremental(self, prefix: tf.Tensor) -> Mapping[str, tf.Tensor]:
        checks, update = self._check(update_tensors.read_update(self._schema, prefix))
        checks = [*update_tensors.prefix_asserts(prefix), *checks]
        with tf.control_dependencies(checks):
            reserved = self._live.reserve()
        with tf.control_dependencies([*checks, *reserved]):
            written = self._live.write_update(self._live.fill_unchanged(update))
            with tf.control_dependencies(written):
                written += self._staging.empty()
        return report(
            update.identity, update.step, update.num_rows(), written=written, shape=tf.shape(prefix)
        )

    def _stage_incremental(self, prefix: tf.Tensor) -> Mapping[str, tf.Tensor]:
        update = update_tensors.read_update(self._schema, prefix)
        with tf.control_dependencies(update_tensors.prefix_asserts(prefix)):
            return self._stage(update, tf.shape(prefix))

    def _stage_rows(self, *fed: tf.Tensor) -> Mapping[str, tf.Tensor]:
        *parts, identity, step = fed
        specs = update_tensors.tensor_specs(self._schema)
        named = {spec.name: part for spec, part in zip(specs, parts, strict=True)}
        return self._stage(update_tensors.from_parts(self._schema, named, identity, step), [1])

    def _stage(self, read: UpdateTensors, shape: Any) -> Mapping[str, tf.Tensor]:
        checks, update = self._check(read)
        with tf.control_dependencies(checks):
            reserved = self._live.reserve()
        with tf.control_dependencies([*checks, *reserved]):
            written = self._staging.write(self._live.fill_unchanged(update), update.value_counts())
        return report(update.identity, update.step, update.num_rows(), written=written, shape=shape)

    def _staged_preimage(self) -> Mapping[str, tf.Tensor]:
        staged = self._staging.read()
        with tf.control_dependencies(self._staged_asserts(staged)):
            answer: dict[str, tf.Tensor] = {}
            for key, ids in staged.ids.items():
                answer[key + names.IDS_SUFFIX] = tf.identity(ids)
                answer[key + names.ROWS_SUFFIX] = gather(self._live.variable(key), ids)
            changed = self._staging.changed.read_value()
            for index, key in enumerate(staged.values):
                value = self._live.variable(key).read_value()
                answer[key + names.VALUE_SUFFIX] = value[tf.newaxis][: changed[index]]
            live_identity = self._live.live_identity.read_value()
            # The live state as a child of the staged one: fed to stage_rows after the apply, it undoes it.
            both = [live_identity[:NODE_LENGTH], staged.identity[:NODE_LENGTH]]
            answer[contract.IDENTITY_VALUE] = tf.concat(both, axis=0)
            answer[contract.STEP_VALUE] = self._live.live_step.read_value()
        return answer

    def _apply_staged(self) -> Mapping[str, tf.Tensor]:
        staged = self._staging.read()
        num_rows = self._staging.num_rows.read_value()
        with tf.control_dependencies(self._staged_asserts(staged)):
            written = self._live.write_update(staged)
            with tf.control_dependencies(written):
                written += self._staging.empty()
        return report(staged.identity, staged.step, num_rows, written=written, shape=[1])

    def _discard_staged(self) -> Mapping[str, tf.Tensor]:
        rows = self._staging.num_rows.read_value()
        with tf.control_dependencies([rows]):
            emptied = self._staging.empty()
        with tf.control_dependencies(emptied):
            return {contract.ROWS_OUTPUT: tf.fill([1], rows)}

    def _check(self, update: UpdateTensors) -> tuple[list[Any], UpdateTensors]:
        return update_tensors.check_update(self._schema, update, self._live.live_identity.read_value())

    def _staged_asserts(self, staged: UpdateTensors) -> list[tf.Operation]:
        """That something is staged, and for what is live: eight integers, so that it costs an apply nothing."""
        something = update_tensors.expect(
            staged.identity[0] > 0, "nothing is staged: call a stage signature first"
        )
        with tf.control_dependencies([something]):
            live_identity = self._live.live_identity.read_value()
            return [something, *update_tensors.parent_asserts(staged.identity, live_identity)]


def _traced(function: Callable[..., Mapping[str, tf.Tensor]], *specs: tf.TensorSpec) -> Signature:
    return trace_signature(lambda fed: function(*fed), specs)


def _growing_variable(spec: tf.TensorSpec) -> tf.Variable:
    empty = tf.zeros([0, *spec.shape[1:]], spec.dtype)
    return tf.Variable(
        empty,
        shape=spec.shape,
        trainable=False,
        name=f"hotdelta_staged/{update_tensors.operation_name(spec.name)}",
    )


def _counter(shape: list[int], name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, tf.int64), trainable=False, name=name)
