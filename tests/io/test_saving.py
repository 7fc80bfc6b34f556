"""What each call saves, and that it is an ordinary checkpoint for everything that reads one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
from exporter import export_saved_model
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.chain.history.verification import verify
from hotdelta.errors import ConfigurationError, DirectoryBusyError
from hotdelta.keras import DeltaCheckpoint
from hotdelta.train import DeltaWriter, Job, TrainerProgress
from tests.io.models import bits, different, every_class
from tests.keras.small_models import batches, by_hand, fit


def saved_keys(directory: Path) -> set[str]:
    """With TensorFlow's own reader."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(directory)))
    return {key for key in reader.get_variable_to_shape_map() if not key.startswith("hotdelta-")}


def test_each_call_saves_its_class_of_variables(tmp_path: Path) -> None:
    model = every_class()
    fit(model, 2)
    found = {info.key: info for info in hio.describe(model)}
    parameters = {key for key, info in found.items() if info.is_parameter}
    persistables = {key for key, info in found.items() if info.is_persistable}

    hio.save_params(model, tmp_path / "params")
    hio.save_persistables(model, tmp_path / "persistables")
    hio.save_vars(model, tmp_path / "vars", predicate=lambda info: info.key.startswith("norm/"))

    assert saved_keys(tmp_path / "params") == parameters
    assert parameters == {
        "items/embeddings", "norm/gamma", "norm/beta", "score/kernel", "score/bias"
    }  # fmt: skip
    assert saved_keys(tmp_path / "persistables") == persistables
    assert {"norm/moving_mean", "drop/seed_generator_0", "optimizer/iteration"} <= persistables
    assert saved_keys(tmp_path / "vars") == {key for key in found if key.startswith("norm/")}


def test_variables_are_named_by_key_or_given_themselves(tmp_path: Path) -> None:
    model = every_class()

    hio.save_vars(model, tmp_path, ["norm/gamma", model.get_layer("score").kernel])
    hio.save_vars(model, tmp_path / "one", model.get_layer("score").kernel)

    assert saved_keys(tmp_path) == {"norm/gamma", "score/kernel"}
    assert saved_keys(tmp_path / "one") == {"score/kernel"}


def test_a_save_is_a_chain_of_one_full_with_the_values_in_tensorflow_bundles(tmp_path: Path) -> None:
    model = every_class()
    fit(model, 2)

    position = hio.save_persistables(model, tmp_path)

    (manifest,) = Scanner(tmp_path).scan().manifests
    assert (manifest.kind, manifest.position, manifest.step) == (Kind.FULL, position, 2)
    verify(tmp_path, manifest)
    reader = tf.train.load_checkpoint(str(tmp_path / manifest.prefix))
    assert {key: np.asarray(reader.get_tensor(key)).tobytes() for key in bits(model)} == bits(model)


def test_a_save_can_be_exported_without_the_training_script(tmp_path: Path) -> None:
    model = every_class()
    fit(model, 2)
    hio.save_persistables(model, tmp_path / "saved")

    export_saved_model(tmp_path / "saved", tmp_path / "export", save_incr_model=True)

    served, _, (output,) = hio.load_inference_model(tmp_path / "export")
    inputs, _ = batches(1)
    np.testing.assert_allclose(served(ids=inputs)[output], model(inputs), rtol=1e-6)


def test_a_trainer_goes_on_from_a_save(tmp_path: Path) -> None:
    model = every_class()
    fit(model, 2)
    hio.save_persistables(model, tmp_path)
    other = every_class(seed=2)

    with by_hand(tmp_path) as callback:
        resumed = callback.resume(other)

        assert resumed is not None
        assert resumed.step == 2
        assert not different(bits(other), bits(model))


def test_a_directory_keeps_every_save_and_loads_the_newest_or_the_named(tmp_path: Path) -> None:
    model, other = every_class(), every_class(seed=2)
    first = bits(model)
    hio.save_persistables(model, tmp_path, filename="before")
    fit(model, 2)
    hio.save_persistables(model, tmp_path)
    hio.save_persistables(model, tmp_path)
    second = bits(model)

    assert hio.load_persistables(other, tmp_path).position == Position(3, 1)
    assert not different(bits(other), second)
    hio.load_persistables(other, tmp_path, filename="before")
    assert not different(bits(other), first)
    hio.load_persistables(other, tmp_path, "2.1")
    assert not different(bits(other), second)


def test_a_name_that_was_never_saved_is_refused_and_those_that_were_are_listed(tmp_path: Path) -> None:
    model = every_class()
    hio.save_params(model, tmp_path, filename="weekly")

    with pytest.raises(ConfigurationError, match=r"no save named 'daily'.*model\.ckpt-0-weekly"):
        hio.load_params(model, tmp_path, filename="daily")


def test_the_chain_of_a_trainer_is_not_saved_into(tmp_path: Path) -> None:
    model = every_class()
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        with pytest.raises(DirectoryBusyError):
            hio.save_params(model, tmp_path)
        fit(model, 1, callback)

    with pytest.raises(ConfigurationError, match="holds the chain of a trainer"):
        hio.save_params(model, tmp_path)


@pytest.mark.parametrize(
    "variables, predicate, message",
    [
        ("nobody", None, "'nobody' is not a variable of model"),
        (["nobody", "score/bias", 3], None, "'nobody', '3' are each not a variable of model"),
        (["metrics/total", "metrics/count"], None, "'metrics/total', 'metrics/count' are each temporary"),
        (None, lambda info: False, "no variable of model .* is selected"),
        ([], None, "no variable of model .* is selected"),
        (3, None, "variables is 3. give keys, or variables"),
        (None, "score", "predicate is of type str"),
    ],
)
def test_a_selection_that_cannot_be_saved_is_refused(
    tmp_path: Path, variables: Any, predicate: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hio.save_vars(every_class(), tmp_path, variables, predicate)
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    for name in ("../x", ""):
        with pytest.raises(ConfigurationError, match=f"{name!r} cannot be part of a file name"):
            hio.save_params(every_class(), tmp_path, filename=name)


@pytest.mark.parametrize(
    "call",
    [
        lambda place: hio.save_persistables({"a": tf.Variable(1.0)}, place),
        lambda place: hio.load_persistables({"a": tf.Variable(1.0)}, place),
        lambda place: hio.save_inference_model(place, "ids", "score", every_class(is_compiled=False)),
        hio.load_inference_model,
        DeltaCheckpoint,
        lambda place: DeltaWriter(place, {"a": tf.Variable(1.0)}),
        lambda place: TrainerProgress(place, Job("job", 1, 2)),
    ],
)
def test_what_is_no_directory_is_refused(
    call: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of a variable that is not set is empty: Path takes that for the working directory."""
    monkeypatch.chdir(tmp_path)
    for place in ("", None, 3, b"run", "a\0b", every_class):
        with pytest.raises(ConfigurationError, match=r"(dirname|checkpoint_dir) is .*path of a directory"):
            call(place)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "variables, message",
    [
        ({3: tf.Variable(1.0)}, "a variable is given under 3"),
        ({"": tf.Variable(1.0)}, "a variable is given under ''"),
        ({"a": tf.constant(1.0)}, "'a' is a EagerTensor, which is no variable"),
        ({}, "has no variables"),
    ],
)
def test_dictionary_that_is_not_one_of_variables_is_refused(
    variables: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hio.save_vars(variables, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_save_inside_of_a_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"outside of every tf\.function"):
        tf.function(lambda: hio.save_vars({"a": tf.Variable(1.0)}, tmp_path), autograph=False)()


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the variables of a list are not known"):
        hio.save_params([1], tmp_path)


def test_a_save_is_signed_with_the_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("0" * 64)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    hio.save_params({"a": tf.Variable([1.0])}, tmp_path / "saved")
    loaded = tf.Variable([0.0])
    hio.load_params({"a": loaded}, tmp_path / "saved")
    assert float(loaded[0]) == 1.0


@pytest.mark.parametrize(
    "variable, message",
    [
        (tf.Variable(["words"]), "strings cannot be saved: it"),
        (tf.Variable(tf.cast([1.0], tf.dtypes.experimental.float8_e5m2)), "'it' is of float8_e5m2"),
        (tf.Variable([1.0], shape=[None]), r"variable 'it' has shape \(None,\)"),
    ],
)
def test_a_variable_that_no_checkpoint_can_hold_is_named(
    variable: tf.Variable, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hio.save_persistables({"it": variable}, tmp_path)
    assert not list(tmp_path.iterdir())
