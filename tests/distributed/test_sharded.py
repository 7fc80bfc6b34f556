"""Sharded variables in one process: no servers, the same shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.distribute.sharded_variable import ShardedVariable

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import ConfigurationError
from hotdelta.train import DeltaWriter
from hotdelta.train.tables import sharded
from hotdelta.train.tables.row_values import gather_rows, read_slice, read_whole, write_whole
from hotdelta.train.tables.sharded import ShardedTouchedRows
from tests.chain_replay import replay

pytestmark = pytest.mark.I1


def sharded_table(*rows: int) -> ShardedVariable:
    values = np.arange(sum(rows) * 2, dtype=np.float32).reshape(-1, 2)
    return ShardedVariable([tf.Variable(part) for part in np.split(values, np.cumsum(rows)[:-1])])


def whole(table: ShardedVariable) -> bytes:
    return np.concatenate([part.numpy() for part in table.variables]).tobytes()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_rows_are_found_and_written_by_id_whatever_the_shards(shards: list[int], data: st.DataObject) -> None:
    table = sharded_table(*shards)
    ids = np.array(data.draw(st.lists(st.integers(0, sum(shards) - 1))), np.int64)
    expected = np.arange(sum(shards) * 2, dtype=np.float32).reshape(-1, 2)
    np.testing.assert_array_equal(gather_rows(table, ids), expected[ids])
    np.testing.assert_array_equal(read_slice(table, 0, len(expected)), expected)
    write_whole(table, expected + 0.5)
    np.testing.assert_array_equal(read_whole(table), expected + 0.5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_touched_ids_come_back_once_whatever_the_shards(shards: list[int], data: st.DataObject) -> None:
    touched = ShardedTouchedRows(sharded_table(*shards), name="table")
    ids = data.draw(st.lists(st.integers(0, sum(shards) - 1), min_size=1))
    touched.record(tf.constant(ids, tf.int64))
    assert touched.count() == len(set(ids))
    taken = touched.take()
    assert taken.tolist() == sorted(set(ids))
    assert touched.take().tolist() == []
    touched.give_back(taken)
    assert touched.take().tolist() == taken.tolist()


def test_rows_travel_in_messages_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "MESSAGE_BYTES", 24)
    table = sharded_table(7, 6)
    expected = read_whole(table) * 2
    write_whole(table, expected)
    np.testing.assert_array_equal(read_whole(table), expected)


def test_rows_told_inside_a_function_are_recorded_after_the_writes(tmp_path: Path) -> None:
    table = sharded_table(4, 4)
    tracking = {"table": "touched"}
    with DeltaWriter(tmp_path, {"table": table}, tables=["table"], tracking=tracking) as writer:

        @tf.function
        def step(ids: tf.Tensor) -> None:
            second = table.variables[1]
            rows = tf.fill([tf.size(ids), 2], 9.0)
            tf.raw_ops.ResourceScatterUpdate(resource=second.handle, indices=ids, updates=rows)
            writer.touch("table", ids + 4)

        step(tf.constant([1, 3], tf.int64))
        position = writer.save()
        assert position is not None
        assert replay(tmp_path, position, ["table"]) == {"table": whole(table)}
        # No shard has it, so none would complain.
        with pytest.raises(ConfigurationError, match="table, which has 8 rows, is not one of them: 8"):
            writer.touch("table", [8])
        touch = tf.function(lambda ids: writer.touch("table", ids), autograph=False)
        with pytest.raises(tf.errors.InvalidArgumentError, match="table, which has 8 rows"):
            touch(tf.constant([8]))
    (delta,) = [found for found in Scanner(tmp_path).scan().manifests if found.kind is Kind.DELTA]
    assert delta.rows_changed == 2


def test_chain_goes_on_with_other_shards_and_with_none(tmp_path: Path) -> None:
    first = sharded_table(5, 5)
    with DeltaWriter(tmp_path, {"table": first}, tables=["table"]):
        first.variables[1].assign_add(tf.ones([5, 2]))
    second = sharded_table(2, 4, 4)
    with DeltaWriter(tmp_path, {"table": second}, tables=["table"]):
        assert whole(second) == whole(first)
        second.variables[0].assign_add(tf.ones([2, 2]))
    third = tf.Variable(tf.zeros([10, 2]))
    with DeltaWriter(tmp_path, {"table": third}, tables=["table"]):
        assert third.numpy().tobytes() == whole(second)


def test_optimizer_built_with_some_of_the_shards_is_refused(tmp_path: Path) -> None:
    table = sharded_table(4, 4)
    optimizer = hk.Adagrad(0.1)
    optimizer.build([table.variables[0]])
    with pytest.raises(ConfigurationError, match="1 of 2 shards"):
        DeltaWriter(tmp_path, {"table": table}, tables=["table"], optimizer=optimizer)


class Ranker(tf.Module):
    def __init__(self, table: ShardedVariable | tf.Variable) -> None:
        super().__init__()
        self.table = table

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def score(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.nn.embedding_lookup(self.table, ids)


@pytest.mark.parametrize(
    "serving, reason",
    [
        (Ranker(sharded_table(4, 4)), "serving_model"),
        (Ranker(tf.Variable(tf.zeros([9, 2]))), "same structure"),
    ],
    ids=["sharded", "other shape"],
)
def test_model_that_cannot_be_served_is_refused(serving: Ranker, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        DeltaWriter(
            tmp_path,
            Ranker(sharded_table(4, 4)),
            tables=["table"],
            serving_model=serving,
            signatures={"serving_default": serving.score},
        )
