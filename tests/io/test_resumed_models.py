"""Models and optimizers that keep what Keras does not count among their variables: training goes on bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
from tests.io.models import bits, different
from tests.keras.small_models import by_hand

pytestmark = pytest.mark.I1

BATCH, STEPS = 4, 3


def stateful() -> keras.Model:
    """Each batch goes on with the sequences of the one before."""
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(BATCH, 3, 2)),
            keras.layers.Bidirectional(keras.layers.LSTM(2, stateful=True), name="both"),
            keras.layers.Dense(1, name="score"),
        ]
    )
    model.compile("sgd", "mse")
    return model


def accumulating() -> keras.Model:
    """Saved between two batches of one step."""
    model = keras.Sequential([keras.Input((3, 2)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5, gradient_accumulation_steps=2), "mse")
    return model


class WideAndDeep(keras.Model):
    """Trains each half with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = keras.layers.Dense(1), keras.layers.Dense(1)
        self.wide_optimizer, self.deep_optimizer = keras.optimizers.Ftrl(0.1), keras.optimizers.Adam(0.1)

    def build(self, shape: Any) -> None:
        for layer, optimizer in ((self.wide, self.wide_optimizer), (self.deep, self.deep_optimizer)):
            layer.build((None, 6))
            optimizer.build(layer.trainable_variables)
        self.built = True

    def call(self, inputs: Any) -> Any:
        flat = tf.reshape(inputs, (-1, 6))
        return self.wide(flat) + self.deep(flat)

    def train_step(self, data: Any) -> dict[str, Any]:
        inputs, wanted = data[:2]
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(inputs) - wanted) ** 2)
        for layer, optimizer in ((self.wide, self.wide_optimizer), (self.deep, self.deep_optimizer)):
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return {"loss": loss}


def wide_and_deep() -> keras.Model:
    model = WideAndDeep()
    model.build((None, 3, 2))
    model.compile()
    return model


def train(model: keras.Model, *, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(STEPS):
        inputs, wanted = random.random((BATCH, 3, 2), np.float32), random.random((BATCH, 1), np.float32)
        model.train_on_batch(inputs, wanted)


@pytest.mark.parametrize("make", [stateful, accumulating, wide_and_deep])
def test_training_goes_on_as_if_it_had_never_stopped(make: Callable[[], keras.Model], tmp_path: Path) -> None:
    first, second = make(), make()
    train(first, seed=1)
    hio.save_persistables(first, tmp_path)

    loaded = hio.load_persistables(second, tmp_path)

    assert loaded.step == int(first.optimizer.iterations)
    assert not different(bits(first), bits(second))
    for model in (first, second):
        train(model, seed=2)
    assert not different(bits(first), bits(second))


def test_state_of_a_recurrent_layer_is_a_persistable_of_its_own() -> None:
    keys = {info.key for info in hio.describe(stateful()) if "rnn_state" in info.key}
    places = ("forward_layer", "backward_layer")
    assert keys == {f"both/{place}/{name}" for place in places for name in ("rnn_state", "rnn_state_1")}


def test_a_chain_has_the_state_of_every_optimizer(tmp_path: Path) -> None:
    first, second = wide_and_deep(), wide_and_deep()
    with by_hand(tmp_path, serving_graph=False) as checkpoint:
        checkpoint.resume(first)
        train(first, seed=1)
        checkpoint.step(STEPS)

    hio.load_persistables(second, tmp_path)

    assert not different(bits(first), bits(second))
    assert "optimizer/deep_optimizer/velocities/deep/kernel" in bits(second)


def test_an_optimizer_that_is_not_built_is_not_saved_and_named(caplog: pytest.LogCaptureFixture) -> None:
    model = accumulating()
    model.teacher_optimizer = keras.optimizers.Adam()
    assert not [info for info in hio.describe(model) if "teacher" in info.key]
    assert "an optimizer is not saved attribute=teacher_optimizer" in caplog.text
