"""A table is *touched* only when every trace proves it; otherwise it is compared, and one warning says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Tracking
from hotdelta.errors import ConfigurationError
from tests.keras.small_models import ROWS, assert_saved, batches, by_hand, fit, small_model

pytestmark = pytest.mark.I5

TABLE = "items/embeddings"


class CustomStep(keras.Model):
    """A train_step that also writes to the table in a way of its own."""

    write: Any = None

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        self.write(self.get_layer("items")._embeddings._value)
        return logs


def custom(write: Any) -> keras.Model:
    inputs = keras.Input((3,), dtype="int64")
    rows = hk.Embedding(ROWS, 4, name="items")(inputs)
    model = CustomStep(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.write = write
    model.compile(hk.Adagrad(0.1), "mse")
    return model


def conditional_write(table: tf.Variable) -> None:
    tf.cond(tf.reduce_sum(table[0]) > 1e9, lambda: table.assign(table * 2).op, tf.no_op)


def looped_write(table: tf.Variable) -> None:
    def body(count: tf.Tensor) -> tf.Tensor:
        table.assign(table * 1.01)
        return count + 1

    tf.while_loop(lambda count: count < 2, body, [tf.constant(0)])


def raw_write(table: tf.Variable) -> None:
    tf.raw_ops.AssignAddVariableOp(resource=table.handle, value=tf.ones((ROWS, 4)))


def called_write(table: tf.Variable) -> None:
    tf.function(raw_write)(table)


WRITERS: dict[str, Any] = {
    "weight decay": lambda: small_model(hk.SGD(0.1, weight_decay=0.01)),
    "EMA": lambda: small_model(hk.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)),
    "assign": lambda: custom(lambda table: table.assign(table * 1.01)),
    "raw": lambda: custom(raw_write),
    "called": lambda: custom(called_write),
    "cond": lambda: custom(conditional_write),
    "while": lambda: custom(looped_write),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_trace_that_writes_every_row_is_compared_with_one_warning(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = WRITERS[name]()
    with by_hand(tmp_path, save_incremental_steps=2) as callback:
        fit(model, 5, callback, epochs=2)
        assert callback.tracking == {TABLE: Tracking.CHANGED}
        assert_saved(callback)
    warnings = [record for record in caplog.records if "compared row by row" in record.getMessage()]
    assert len(warnings) == 1
    assert f"tables={TABLE} " in warnings[0].getMessage()
    assert "writes all rows" in warnings[0].getMessage()


@pytest.mark.parametrize("name", ["weight decay", "raw", "cond"])
def test_touched_that_was_demanded_raises_instead(tmp_path: Path, name: str) -> None:
    model = WRITERS[name]()
    callback = by_hand(tmp_path, tracking={TABLE: "touched"})
    callback.resume(model)
    model.train_on_batch(*batches(1))
    with pytest.raises(ConfigurationError, match=f"{TABLE}' cannot be tracked as touched"):
        callback.step()
    with pytest.raises(ConfigurationError, match="cannot be tracked as touched"):
        callback.close()


def test_touched_that_the_optimizer_cannot_record_raises_at_once(tmp_path: Path) -> None:
    callback = by_hand(tmp_path, tracking={TABLE: "touched"})
    with pytest.raises(ConfigurationError, match="Adam does not record the rows"):
        callback.resume(small_model(keras.optimizers.Adam(0.1)))


def test_a_row_write_in_a_custom_step_stays_touched_and_exact(tmp_path: Path) -> None:
    def write(table: tf.Variable) -> None:
        table.scatter_update(tf.IndexedSlices(tf.ones((1, 4)), tf.constant([ROWS - 1])))

    with by_hand(tmp_path, save_incremental_steps=1) as callback:
        fit(custom(write), 3, callback)
        assert_saved(callback)
