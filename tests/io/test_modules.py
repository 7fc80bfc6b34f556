"""What of a tf.Module is saved and loaded, and what it may not hold."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

import hotdelta.io as hio
import hotdelta.keras as hk
from hotdelta.errors import ConfigurationError
from hotdelta.train import DeltaWriter
from tests.io.models import bits, different


def test_a_module_and_plain_variables_are_saved_and_loaded(tmp_path: Path) -> None:
    module = tf.Module()
    module.table = tf.Variable(np.random.default_rng(0).random((5, 2), np.float32))
    module.count = tf.Variable(3, trainable=False)
    module.optimizer = hk.Adagrad(0.1)
    other = tf.Module()
    other.table, other.count = tf.Variable(tf.zeros((5, 2))), tf.Variable(0, trainable=False)
    other.optimizer = hk.Adagrad(0.2)

    hio.save_persistables(module, tmp_path / "module")
    hio.load_persistables(other, tmp_path / "module")
    hio.save_params({"a": module.table}, tmp_path / "plain")
    hio.load_params({"a": other.table}, tmp_path / "plain")

    assert not different(bits(other), bits(module))
    assert "optimizer/accumulators/table" in bits(module)


class Noisy(tf.Module):
    """What it does next depends on two generators."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = tf.Variable(float(seed))
        self.generators = [tf.random.Generator.from_seed(seed), keras.random.SeedGenerator(seed)]

    def step(self) -> float:
        self.weight.assign_add(self.generators[0].normal([]))
        self.weight.assign_add(keras.random.normal([], seed=self.generators[1]))
        return float(self.weight)


def test_random_generators_of_a_module_go_on_where_they_were(tmp_path: Path) -> None:
    first, second = Noisy(1), Noisy(2)
    first.step()
    hio.save_persistables(first, tmp_path)
    hio.load_persistables(second, tmp_path)
    assert [second.step() for _ in range(3)] == [first.step() for _ in range(3)]


def test_a_module_that_hides_variables_in_a_keras_layer_is_refused(tmp_path: Path) -> None:
    module = tf.Module()
    module.weight, module.layers = tf.Variable(1.0), {"dense": keras.layers.Dense(1)}
    for use in (hio.save_persistables, DeltaWriter):
        with pytest.raises(ConfigurationError, match="'layers/dense' of Module is a Keras layer"):
            use(*((module, tmp_path) if use is hio.save_persistables else (tmp_path, module)))
    assert not list(tmp_path.iterdir())


def test_a_keras_layer_without_variables_may_be_in_a_module(tmp_path: Path) -> None:
    module = tf.Module()
    module.weight = tf.Variable(1.0)
    module.layers = [keras.layers.ReLU(), keras.layers.Flatten(), keras.layers.Hashing(3)]
    for layer in module.layers:
        layer(tf.constant([[1]]))
    hio.save_persistables(module, tmp_path)
    assert bits(module).keys() == {"weight"}


def test_a_mirrored_variable_of_a_module_is_found_when_it_is_given_as_an_object(tmp_path: Path) -> None:
    module = tf.Module()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        module.weight, module.other = tf.Variable(1.0), tf.Variable(2.0)
    hio.save_vars(module, tmp_path, [module.weight])
    module.weight.assign(5.0)
    hio.load_vars(module, tmp_path, [module.weight])
    assert module.weight.numpy() == 1.0


def test_a_sharded_table_of_a_module_is_one_table_for_any_shards(tmp_path: Path) -> None:
    def make(values: np.ndarray, *first_rows: int) -> tf.Module:
        module = tf.Module()
        module.table = ShardedVariable([tf.Variable(part) for part in np.split(values, first_rows)])
        module.optimizer = hk.Adagrad(0.1)
        return module

    values = np.random.default_rng(0).random((7, 2), np.float32)
    saved, same, other = make(values, 3), make(values * 0, 3), make(values * 0, 2, 5)
    hio.save_persistables(saved, tmp_path)
    for module in (same, other):
        hio.load_persistables(module, tmp_path)
        assert not different(bits(module), bits(saved))
    assert {"table", "optimizer/accumulators/table"} <= bits(saved).keys()
