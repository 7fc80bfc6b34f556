"""Every operation of a trace that can write to a variable is found, wherever its handle goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from hotdelta.train.rows.trace_check import inspect_trace

ROWS = [[1.0, 2.0]]
Write = Callable[[tf.Tensor], None]


def add_row(handle: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterAdd(resource=handle, indices=[1], updates=ROWS)


def assign(handle: tf.Tensor) -> None:
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([4, 2]))


def in_place(table: tf.Variable, write: Write) -> None:
    write(table.handle)


def behind_identity(table: tf.Variable, write: Write) -> None:
    write(tf.identity(table.handle))


def in_a_branch(table: tf.Variable, write: Write) -> None:
    if tf.random.uniform([]) > 0.5:
        write(table.handle)


def in_a_loop(table: tf.Variable, write: Write) -> None:
    for _ in tf.range(3):
        write(table.handle)


def in_a_function(table: tf.Variable, write: Write) -> None:
    tf.function(lambda: write(table.handle))()


def handed_out_by_a_function(table: tf.Variable, write: Write) -> None:
    write(tf.function(lambda: tf.identity(table.handle))())


@pytest.mark.parametrize(
    "place", [in_place, behind_identity, in_a_branch, in_a_loop, in_a_function, handed_out_by_a_function]
)
@pytest.mark.parametrize("write", [add_row, assign])
def test_a_write_is_found_wherever_the_handle_goes(
    place: Callable[[tf.Variable, Write], None], write: Write
) -> None:
    table, other = tf.Variable(tf.zeros([4, 2])), tf.Variable(tf.zeros([4, 2]))

    @tf.function
    def step() -> tf.Tensor:
        place(table, write)
        return tf.gather(other, [0])

    found = inspect_trace(step.get_concrete_function().graph, {"table": table, "other": other})

    expected = {"table": {"ResourceScatterAdd" if write is add_row else "AssignVariableOp"}}
    assert found.row_writers == (expected if write is add_row else {})
    assert found.other_writers == (expected if write is assign else {})
    assert found.readers == {"other": {"ResourceGather"}}
