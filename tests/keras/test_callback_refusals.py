"""What DeltaCheckpoint cannot do, it says at once, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io
import hotdelta.keras as hk
from exporter import export_saved_model
from hotdelta.chain.store.lock import TrainerLock
from hotdelta.errors import ConfigurationError, DirectoryBusyError, ModelMismatchError
from hotdelta.train import DeltaWriter
from tests.keras.small_models import (
    ROWS,
    by_hand,
    small_model,
)

pytestmark = pytest.mark.I9


def test_another_model_in_the_same_chain_is_refused(tmp_path: Path) -> None:
    with by_hand(tmp_path) as callback:
        callback.resume(small_model())
        with pytest.raises(ConfigurationError, match="not the one that this chain was started with"):
            callback.resume(small_model(rows=ROWS + 1))


def test_a_directory_that_another_trainer_holds_is_refused(tmp_path: Path) -> None:
    with TrainerLock(tmp_path), pytest.raises(DirectoryBusyError, match="another trainer"):
        by_hand(tmp_path).resume(small_model())


def test_a_checkpoint_of_another_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    with by_hand(tmp_path) as callback:
        callback.resume(small_model(hk.Adam(0.01)))
    with pytest.raises(
        ModelMismatchError, match="optimizer/velocities/items/embeddings: the checkpoint has it"
    ):
        by_hand(tmp_path).resume(small_model(hk.SGD(0.1)))


def test_options_that_cannot_work_raise_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="every 0 seconds"):
        hk.DeltaCheckpoint(tmp_path, save_secs=0)
    with pytest.raises(ConfigurationError, match="every -1 touched_rows"):
        hk.DeltaCheckpoint(tmp_path, save_incremental_touched_rows=-1)
    with pytest.raises(ConfigurationError, match="every '5' steps"):
        hk.DeltaCheckpoint(tmp_path, save_steps="5")  # type: ignore[arg-type]
    for bad in (0, 2.5, "3"):
        with pytest.raises(ConfigurationError, match=f"keep {bad!r} fulls"):
            hk.DeltaCheckpoint(tmp_path, keep_fulls=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="table 'nobody' is not a variable"):
        by_hand(tmp_path, tables="nobody").resume(small_model())
    with pytest.raises(ConfigurationError, match="not attached"):
        hk.DeltaCheckpoint(tmp_path).save()


def test_models_that_cannot_be_saved_raise_at_once(tmp_path: Path) -> None:
    model = small_model()
    for options, message in (
        ({"tracking": {"nothing": "touched"}}, "'nothing', which is no table"),
        ({"tracking": {"items/embeddings": "guessed"}}, "'guessed' is unknown"),
        ({"tables": ["nothing"]}, "'nothing' is not a variable"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            by_hand(tmp_path, **options).resume(model)
    with pytest.raises(ConfigurationError, match="not compiled"):
        by_hand(tmp_path).resume(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    compiled = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(4, 2), keras.layers.Flatten()])
    compiled.compile(hk.SGD(0.1), "mse", jit_compile=True)
    with pytest.raises(ConfigurationError, match="jit_compile=False"):
        by_hand(tmp_path).resume(compiled)
    assert not list(tmp_path.iterdir())


def of_keras_2(name: str) -> Any:
    """Nothing but where its class says that it comes from: tf_keras is not installed here."""
    return type(name, (tf.Module,), {"__module__": "tf_keras.src.engine", "weight": tf.Variable(1.0)})()


def test_a_model_of_keras_2_is_refused_wherever_it_is_given(tmp_path: Path) -> None:
    callback, model = by_hand(tmp_path), of_keras_2("Functional")
    for give in (
        lambda: callback.set_model(model),  # As fit of Keras 2 does first.
        lambda: callback.resume(model),
        lambda: hotdelta.io.save_persistables(model, tmp_path),
        lambda: hotdelta.io.load_persistables(model, tmp_path),
        lambda: hotdelta.io.save_inference_model(tmp_path, ["a"], ["b"], model),
        lambda: export_saved_model(model, tmp_path, signatures={"serving_default": tf.function(tf.abs)}),
        lambda: DeltaWriter(tmp_path, model),
        lambda: DeltaWriter(tmp_path, {"w": tf.Variable(1.0)}, optimizer=of_keras_2("Adagrad")),
    ):
        with pytest.raises(
            ConfigurationError, match=r"of Keras 2 \(tf_keras\).*DeltaWriter.*optimizer\.variables"
        ):
            give()
    assert not list(tmp_path.iterdir())


def test_a_callback_whose_directory_another_one_took_says_so(tmp_path: Path) -> None:
    first, second = by_hand(tmp_path), by_hand(tmp_path)
    first.resume(small_model())
    second.resume(small_model())
    with pytest.raises(ConfigurationError, match=r"is closed, .* another one .* directory of its own"):
        first.step()
    second.close()


def test_a_step_after_the_end_is_refused_and_does_not_take_the_model_back(tmp_path: Path) -> None:
    model = small_model()
    with by_hand(tmp_path) as callback:
        callback.resume(model)
    model.get_layer("items").embeddings.assign(model.get_layer("items").embeddings + 1)
    trained = model.get_weights()
    with pytest.raises(ConfigurationError, match="the checkpoint callback is closed"):
        callback.step()
    for value, old in zip(model.get_weights(), trained, strict=True):
        np.testing.assert_array_equal(value, old)
