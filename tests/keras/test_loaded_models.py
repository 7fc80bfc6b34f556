"""Models whose names are easily mistaken, and layers that keep constants: what is loaded is what they go on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
import hotdelta.keras as hk
from tests.keras.small_models import assert_saved, by_hand, live

FEATURES = np.arange(12, dtype=np.float32).reshape(4, 3)
TARGETS = np.ones((4, 1), np.float32)
IDS = np.array([[1, 2], [3, 5]])


class Tower(keras.Model):
    """Has a table of the name that the model below has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.items = hk.Embedding(20, 4)

    def call(self, ids: Any) -> Any:
        return self.items(ids)


class NamedLikeASlot(keras.Model):
    """`optimizer/accumulators/items/embeddings` is of `items`, and the other table is `accumulators/items`."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.accumulators = hk.Embedding(20, 4), Tower()
        self.score = keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.score(self.items(ids[:, 0]) + self.accumulators(ids[:, 1]))


def named_like_a_slot(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = NamedLikeASlot()
    model.compile(hk.Adagrad(0.1), "mse")
    model(IDS)
    return model


@pytest.fixture
def trained(tmp_path: Path) -> keras.Model:
    model = named_like_a_slot(1)
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        model.train_on_batch(IDS, TARGETS[:2])
        callback.step()
    return model


def slots(model: keras.Model) -> list[Any]:
    return [variable.numpy().tolist() for variable in model.optimizer.variables]


def test_a_slot_is_resumed_although_another_table_is_named_like_it(
    trained: keras.Model, tmp_path: Path
) -> None:
    model = named_like_a_slot(2)
    with by_hand(tmp_path) as callback:
        callback.resume(model)
    assert slots(model) == slots(trained)


def test_a_slot_is_loaded_although_another_table_is_named_like_it(
    trained: keras.Model, tmp_path: Path
) -> None:
    model = named_like_a_slot(2)
    hio.load_persistables(model, tmp_path)
    assert slots(model) == slots(trained)


def normalizing(data: Any) -> keras.Model:
    normalize = keras.layers.Normalization()
    normalize.adapt(data)
    score = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((3,)), keras.Sequential([normalize]), score])
    model.compile("sgd", "mse")
    return model


def resume(model: keras.Model, run_dir: Path) -> None:
    with by_hand(run_dir) as callback:
        callback.resume(model)


@pytest.mark.parametrize("load", [resume, hio.load_persistables])
def test_what_was_traced_before_a_load_normalizes_by_what_was_loaded(
    tmp_path: Path, load: Callable[[keras.Model, Path], Any]
) -> None:
    saved, model = normalizing(FEATURES), normalizing(FEATURES * 9)
    resume(saved, tmp_path)
    inner = model.layers[0]
    inner.predict(FEATURES, verbose=0)
    model.predict(FEATURES, verbose=0)
    model.test_on_batch(FEATURES, TARGETS)
    model.train_on_batch(FEATURES, TARGETS)
    load(model, tmp_path)

    np.testing.assert_array_equal(inner.predict(FEATURES, verbose=0), saved.layers[0](FEATURES))
    np.testing.assert_array_equal(model.predict(FEATURES, verbose=0), saved.predict(FEATURES, verbose=0))
    assert model.test_on_batch(FEATURES, TARGETS) == saved.test_on_batch(FEATURES, TARGETS)
    for one in (model, saved):
        one.train_on_batch(FEATURES, TARGETS)
    np.testing.assert_array_equal(model(FEATURES), saved(FEATURES))


def test_a_load_in_the_middle_of_a_fit_leaves_the_save_when_a_step_raises(tmp_path: Path) -> None:
    model = normalizing(FEATURES)
    hio.save_persistables(model, tmp_path / "saved")

    def load_after_the_first(batch: int, logs: Any) -> None:
        if batch == 0:
            hio.load_persistables(model, tmp_path / "saved")

    def data() -> Any:
        yield from [(FEATURES, TARGETS)] * 3
        raise RuntimeError("no more data")

    dataset = tf.data.Dataset.from_generator(
        data, output_signature=(tf.TensorSpec((4, 3)), tf.TensorSpec((4, 1)))
    )
    callback = by_hand(tmp_path / "run")
    loading = keras.callbacks.LambdaCallback(on_train_batch_end=load_after_the_first)
    with pytest.raises(tf.errors.OpError, match="no more data"):
        model.fit(dataset, verbose=0, shuffle=False, callbacks=[loading, callback])
    assert_saved(callback)
    callback.close()


class Holder(keras.layers.Layer):
    """Holds what Keras does not look into: strings, and variables under names that its weights have."""

    def __init__(self) -> None:
        super().__init__(name="holder")
        self.module = tf.Module()
        self.module.words, self.module.rate = tf.Variable(["a", "b"]), tf.Variable(2.0)
        self.words = tf.Variable("c")
        self._scale, self.scale_1 = tf.Variable(3.0), tf.Variable(4.0)

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(), name="scale", initializer="ones")
        self.scale = tf.Variable(5.0)

    def call(self, inputs: Any) -> Any:
        return inputs * self.weight * self.scale * self._scale * self.scale_1 * self.module.rate


def test_strings_are_left_out_and_a_variable_named_like_a_weight_is_numbered(tmp_path: Path) -> None:
    values: list[Any] = []
    keys: list[set[str]] = []
    for change in (1.0, 0.0):
        model = keras.Sequential([keras.Input((3,)), Holder()])
        model.compile("sgd", "mse")
        held = model.layers[0]
        for number, variable in enumerate((held.scale, held._scale, held.scale_1, held.module.rate)):
            variable.assign_add(change * (number + 1))
        with by_hand(tmp_path) as callback:
            callback.resume(model)
            keys.append({key for key in live(callback) if key.startswith("holder/")})
        values.append(model(FEATURES).numpy().tolist())
    names = ("scale", "scale_1", "scale_1_1", "scale_2", "module/rate")
    assert keys == [{f"holder/{name}" for name in names}] * 2
    assert values[0] == values[1]
