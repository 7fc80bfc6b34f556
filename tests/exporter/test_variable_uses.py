"""What a signature may do with variables: look rows up in tables, read the others, and change no weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from exporter.graph.variable_uses import make_servable
from hotdelta.errors import ConfigurationError
from hotdelta.train.serving.module import trace_module

pytestmark = [pytest.mark.I5, pytest.mark.optimized]

Call = Callable[[tf.Variable, tf.Tensor], tf.Tensor]
IDS = [tf.TensorSpec([None], tf.int64, name="ids")]


def _nested(call: Call) -> Call:
    return lambda table, ids: tf.function(lambda inner_ids: call(table, inner_ids))(ids)


def _in_a_branch(call: Call) -> Call:
    return lambda table, ids: tf.cond(
        tf.size(ids) > 1, lambda: call(table, ids), lambda: tf.zeros([tf.size(ids), 4])
    )


def _in_a_loop(call: Call) -> Call:
    def looped(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
        def body(count: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return count + 1, total + tf.reduce_sum(call(table, ids))

        return tf.while_loop(lambda count, _: count < 2, body, [0, 0.0])[1]

    return looped


WRAPPERS = {"plain": lambda call: call, "nested": _nested, "branch": _in_a_branch, "loop": _in_a_loop}


def _multiply(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.gather(table, ids), table, transpose_b=True)


def _check(call: Call, allowed: tuple[str, ...] = ()) -> None:
    table = tf.Variable(tf.zeros([8, 4]))
    function: Any = tf.function(lambda ids: call(table, ids), input_signature=IDS)
    keys = {id(table): "my/table"}
    module, schema = trace_module({"serving_default": function}, keys=keys, tables=["my/table"])
    make_servable(module, schema, allow_whole_reads=allowed)


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_whole_reads_are_refused_by_the_name_of_the_table(wrapper: Callable[[Call], Call]) -> None:
    with pytest.raises(ConfigurationError, match=r"my/table.*`allow_whole_table_reads=\['my/table'\]`"):
        _check(wrapper(_multiply))


def test_returning_a_whole_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="my/table"):
        _check(lambda table, _: table.read_value())


def test_what_a_branch_hands_on_is_still_the_table() -> None:
    def read_what_is_chosen(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
        chosen = tf.cond(
            tf.size(ids) > 1, lambda: tf.identity(table.handle), lambda: tf.identity(table.handle)
        )
        read = tf.raw_ops.ReadVariableOp(resource=chosen, dtype=tf.float32)
        return tf.gather(table, ids) + tf.reduce_sum(read)

    with pytest.raises(ConfigurationError, match="my/table"):
        _check(read_what_is_chosen)


def test_a_whole_read_that_is_allowed_by_name_passes() -> None:
    _check(_multiply, allowed=("my/table",))


def test_allowing_what_is_no_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'other' is not a table.*my/table"):
        _check(_multiply, allowed=("other",))


def _check_writes(call: Call, dtype: tf.DType = tf.float32) -> None:
    weight = tf.Variable(tf.zeros([3], dtype))
    function: Any = tf.function(lambda ids: call(weight, ids), input_signature=IDS)
    module, schema = trace_module({"serving_default": function}, keys={id(weight): "my/weight"}, tables=[])
    make_servable(module, schema)


def _count(weight: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    weight.assign_add(tf.ones([3], weight.dtype))
    return tf.zeros([tf.size(ids), 4])


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_a_prediction_that_changes_a_weight_is_refused_by_its_name(wrapper: Callable[[Call], Call]) -> None:
    with pytest.raises(ConfigurationError, match=r"changes variable 'my/weight'.*AssignAddVariableOp"):
        _check_writes(wrapper(_count))


def test_reading_a_weight_and_moving_a_seed_on_pass() -> None:
    _check_writes(lambda weight, ids: tf.gather(weight, ids) + tf.reduce_sum(weight))
    _check_writes(_count, tf.int64)
