"""Records in the graph which rows of a table were written: beside each writer, after it, on the variable's device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.embedding.touched import ReservedFlags
from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable
from hotdelta.compat.v1.graph.writers import Uses, row_indices
from hotdelta.tensorflow_internals import is_in_control_flow, run_before, waiting_for

SCOPE = "hotdelta"


@dataclass(frozen=True, slots=True, eq=False)
class PartFlags:
    """One flag for each row of one part of a table, and the operations on them. Shared by the part's slots.

    `reset`: no row is touched. `of_table`: the flags of a table with keys, which are there before any recorder.

    Not among the graph's local variables: each worker of a cluster initializes those, and would lose what the others
    have recorded. Not among the global ones: a Saver saves those.
    """

    variable: tf.Variable
    touched_ids: tf.Tensor
    ids: tf.Tensor
    clear: tf.Operation
    give_back: tf.Operation
    reset: tf.Operation
    of_table: ReservedFlags | None = None

    def clearing(self, ids: tf.Tensor) -> tf.Operation:
        """Of rows that `touched_ids` gave."""
        return set_flags(self.variable, ids, 0) if self.of_table is None else self.of_table.clear(ids)

    def marking(self, ids: tf.Tensor) -> tf.Operation:
        return set_flags(self.variable, ids, 1) if self.of_table is None else self.of_table.mark(ids)

    def mark_all(self) -> tf.Operation:
        with tf.device(self.variable.device):
            if self.of_table is not None:
                return self.of_table.mark_all()
            return self.variable.assign(tf.ones_like(self.variable.initial_value), read_value=False)


def refusal(uses: Sequence[Uses]) -> str | None:
    """Why recording would not see every write; None when it does."""
    for use in uses:
        for writer in use.other_writers:
            return f"{writer.type} {writer.name} writes all rows"
        for writer in use.row_writers:
            followers = _followers(writer)
            if not followers:
                return f"nothing follows {writer.type} {writer.name}, so it may run without its recorder"
            if any(is_in_control_flow(operation) for operation in (writer, *followers)):
                return f"{writer.type} {writer.name} is used inside a cond or a loop"
        for assign in use.set_up:
            if is_in_control_flow(assign):
                return f"{assign.type} {assign.name} is inside a cond or a loop"
    return None


def make_flags(table: SavedVariable, part: Part, number: int) -> PartFlags:
    with tf.device(part.variable.device), tf.control_dependencies(None):
        variable = tf.compat.v1.Variable(
            tf.zeros([part.rows], tf.int8),
            trainable=False,
            collections=[],
            use_resource=True,
            name=f"{SCOPE}/touched/{table.key}/{number}",
        )
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        return PartFlags(
            variable,
            tf.reshape(tf.where(tf.not_equal(variable.read_value(), 0)), [-1]),
            ids,
            set_flags(variable, ids, 0),
            set_flags(variable, ids, 1),
            variable.initializer,
        )


def flags_of_table(flags: ReservedFlags) -> PartFlags:
    with tf.device(flags.variable.device), tf.control_dependencies(None):
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        return PartFlags(
            flags.variable,
            flags.touched(),
            ids,
            flags.clear(ids),
            flags.mark(ids),
            flags.reset(),
            flags,
        )


def add_recorder(flags: PartFlags, writer: Any) -> tf.Operation:
    """Whatever waits for the writer waits for the recorder from now on."""
    followers = _followers(writer)
    with tf.device(flags.variable.device):
        indices = row_indices(writer)
        one = tf.constant(1, tf.int8)
        with tf.control_dependencies([writer]):
            recorder = tf.raw_ops.ResourceScatterUpdate(
                resource=flags.variable.handle, indices=indices, updates=one, name=f"{SCOPE}/record"
            )
    for operation in followers:
        run_before(operation, recorder)
    return recorder


def mark_when_assigned(flags: PartFlags, assign: Any) -> tf.Operation:
    """All rows are due when `assign` runs, whoever runs it: an initializer that runs again, Variable.load, a restore.

    Nothing can be made to run after an operation that is fetched by itself, so the flags are set before it. Returns
    what sets them once more afterwards, for those who see it fetched: a delta may be taken in between.
    """
    with tf.device(flags.variable.device):
        run_before(assign, flags.mark_all())
        with tf.control_dependencies([assign]):
            return flags.mark_all()


def _followers(writer: Any) -> list[Any]:
    outputs = [operation for tensor in writer.outputs for operation in tensor.consumers()]
    return [*waiting_for(writer), *outputs]


def set_flags(variable: tf.Variable, ids: tf.Tensor, value: int) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=ids, updates=tf.constant(value, tf.int8)
    )
