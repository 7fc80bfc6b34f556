"""The variables of an export and the two signatures that every export has: restore_full and identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from exporter.signatures import update_tensors
from exporter.signatures.update_tensors import UpdateTensors
from hotdelta import signatures as contract
from hotdelta.chain.format import names
from hotdelta.chain.format.position import IDENTITY_LENGTH
from hotdelta.chain.format.schema import Schema, VariableSpec
from hotdelta.train.serving.module import ServingModule
from hotdelta.train.serving.trace import Signature, trace_signature

_BRANCH_BYTES = 1024 * 1024

PREFIX_SPEC = tf.TensorSpec([None], tf.string, name=contract.PREFIX_INPUT)


def checkpoint_key(index: int) -> str:
    """How TensorFlow names the value of the index-th variable of the schema when it saves a ExportedVariables."""
    return f"{contract.VARIABLES_ATTRIBUTE}/{index}/.ATTRIBUTES/VARIABLE_VALUE"


class ExportedVariables(tf.Module):
    """The served variables, and which state they hold. Its methods are traced into signatures, never called twice."""

    def __init__(self, serving: ServingModule, schema: Schema) -> None:
        super().__init__(name="hotdelta_live_model")
        self.serving = serving.root
        self.hotdelta_variables = list(serving.variables)
        self.unknown_keys = list(serving.unknown_keys)
        self.live_identity = tf.Variable(
            tf.zeros([IDENTITY_LENGTH], tf.int64), trainable=False, name="hotdelta_identity"
        )
        self.live_step = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="hotdelta_step")
        self._schema = schema

    def variable(self, key: str) -> tf.Variable:
        index = [spec.key for spec in self._schema.variables].index(key)
        return self.hotdelta_variables[index]

    def write(
        self, identity: tf.Tensor, step: tf.Tensor, writes: Callable[[], list[tf.Operation]]
    ) -> list[tf.Operation]:
        """Change variables, and say which state this is.

        Until all is written it is none: should a write fail, nobody takes what is half written for a state.
        """
        with tf.control_dependencies([assign(self.live_identity, tf.zeros([IDENTITY_LENGTH], tf.int64))]):
            written = writes()
        with tf.control_dependencies(written):
            return [*written, assign(self.live_identity, identity), assign(self.live_step, step)]

    def write_update(self, update: UpdateTensors) -> list[tf.Operation]:
        """Scatter the rows and assign the values (all present: leading axis 1)."""

        def writes() -> list[tf.Operation]:
            rows = [scatter(self.variable(key), ids, update.rows[key]) for key, ids in update.ids.items()]
            return rows + [
                assign(self.variable(key), tf.squeeze(value, axis=[0]))
                for key, value in update.values.items()
            ]

        return self.write(update.identity, update.step, writes)

    def reserve(self) -> list[tf.Operation]:
        """Give tables that grow the room for all rows that they may ever have, where they hold the rows in use alone.

        Whoever looks rows up meanwhile finds the same ones before and after.
        """
        capacities = {spec.key: spec.shape[0] for spec in self._schema.tables}
        growing = sorted(self._schema.growing)
        return [_reserve(self.variable(key), capacities[key]) for key in growing]

    def fill_unchanged(self, update: UpdateTensors) -> UpdateTensors:
        """The same update with the present value for every value that the delta left out.

        Whoever applies it then needs no branch, and an assignment copies nothing.
        """
        values = {key: _value_or_live(self.variable(key), value) for key, value in update.values.items()}
        return UpdateTensors(update.ids, update.rows, values, update.identity, update.step)


def _reserve(variable: tf.Variable, capacity: int) -> tf.Operation:
    rows = tf.raw_ops.VariableShape(input=variable.handle, out_type=tf.int64)[0]

    def reserve() -> tf.Tensor:
        held = variable.read_value()
        room = tf.raw_ops.Empty(shape=[capacity, *variable.shape[1:]], dtype=variable.dtype, init=False)
        with_rows = tf.tensor_scatter_nd_update(room, tf.range(rows)[:, tf.newaxis], held)
        with tf.control_dependencies([assign(variable, with_rows)]):
            return tf.identity(rows)

    return tf.cond(rows < capacity, reserve, lambda: tf.identity(rows)).op


def _value_or_live(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    """A branch costs two functions in the graph, no branch costs a copy of the value."""
    if variable.shape.num_elements() * variable.dtype.size < _BRANCH_BYTES:
        return tf.concat([value, tf.expand_dims(variable.read_value(), axis=0)], axis=0)[:1]
    return tf.cond(
        tf.shape(value)[0] > 0,
        lambda: tf.identity(value),
        lambda: tf.expand_dims(variable.read_value(), axis=0),
    )


class FullSignatures:
    """restore_full and identity."""

    def __init__(self, live: ExportedVariables, schema: Schema, *, empty_staging: Any = list) -> None:
        self._live = live
        self._schema = schema
        self._empty_staging = empty_staging

    def traced(self) -> Mapping[str, Signature]:
        return {
            contract.RESTORE_FULL: trace_signature(lambda fed: self._restore_full(*fed), [PREFIX_SPEC]),
            contract.IDENTITY: trace_signature(lambda _: self._identity(), []),
            **(
                {contract.KEY_COUNTS: trace_signature(lambda _: self._key_counts(), [])}
                if self._schema.key_tables
                else {}
            ),
        }

    def _restore_full(self, prefix: tf.Tensor) -> Mapping[str, tf.Tensor]:
        specs = self._schema.variables
        tensor_names = [*(spec.key for spec in specs), names.IDENTITY_TENSOR, names.STEP_TENSOR]
        dtypes = [*(tf.as_dtype(spec.dtype) for spec in specs), tf.int64, tf.int64]
        *values, identity, step = update_tensors.read_tensors(prefix, tensor_names, dtypes)
        identity, step = update_tensors.check_stamp(identity, step)
        values = [
            update_tensors.check_shape(spec.key, value, self._stored_shape(spec))
            for spec, value in zip(specs, values, strict=True)
        ]
        checks = [*update_tensors.prefix_asserts(prefix), *values, identity, step]

        def writes() -> list[tf.Operation]:
            variables = [self._live.variable(spec.key) for spec in specs]
            return [assign(variable, value) for variable, value in zip(variables, values, strict=True)]

        with tf.control_dependencies(checks):
            written = self._live.write(identity, step, writes) + self._empty_staging()
        counts = [
            tf.shape(value, out_type=tf.int64)[0]
            for spec, value in zip(specs, values, strict=True)
            if spec.is_table
        ]
        rows = tf.add_n(counts) if counts else tf.zeros([], tf.int64)
        return report(identity, step, rows, written=written, shape=tf.shape(prefix))

    def _stored_shape(self, spec: VariableSpec) -> tuple[int | None, ...]:
        """Of a table that grows a full has the rows in use."""
        return (None, *spec.shape[1:]) if spec.key in self._schema.growing else spec.shape

    def _identity(self) -> Mapping[str, tf.Tensor]:
        return {
            contract.IDENTITY_VALUE: self._live.live_identity.read_value(),
            contract.STEP_VALUE: self._live.live_step.read_value(),
        }

    def _key_counts(self) -> Mapping[str, tf.Tensor]:
        pairs = zip(self._schema.key_tables, self._live.unknown_keys, strict=True)
        return {
            table.rows: tf.concat(
                [self._live.variable(table.counts).read_value()[:2], unknown.read_value()[tf.newaxis]], axis=0
            )
            for table, unknown in pairs
        }


def report(
    identity: tf.Tensor, step: tf.Tensor, rows: tf.Tensor, *, written: Sequence[tf.Operation], shape: Any
) -> Mapping[str, tf.Tensor]:
    """What a signature answers; available only after everything was written."""
    values = {
        contract.RUN_OUTPUT: identity[0],
        contract.SEQ_OUTPUT: identity[1],
        contract.STEP_VALUE: tf.reshape(step, []),
        contract.ROWS_OUTPUT: rows,
    }
    with tf.control_dependencies(written):
        return {name: tf.fill(shape, tf.identity(value)) for name, value in values.items()}


def assign(variable: tf.Variable, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=_opaque(value))


def empty_variable(variable: tf.Variable) -> None:
    """Free the memory of a variable, now and not in a graph. What reads it finds no rows."""
    empty = tf.zeros([0], variable.dtype)
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty, validate_shape=False)


def scatter(variable: tf.Variable, ids: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=_opaque(ids), updates=_opaque(rows)
    )


def gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=variable.dtype)


def _opaque(tensor: tf.Tensor) -> tf.Tensor:
    """The same tensor, of whose shape the graph optimiser learns nothing from what is done with the result.

    From a write Grappler concludes which shape the written tensor and the variable must always have. With that it
    folds checks that guard the write, and sizes that are read from a variable before it is emptied.
    """
    optional = tf.raw_ops.OptionalFromValue(components=[tensor])
    (same,) = tf.raw_ops.OptionalGetValue(
        optional=optional, output_types=[tensor.dtype], output_shapes=[tf.TensorShape(None)]
    )
    return same
