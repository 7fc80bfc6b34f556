"""Loading checks everything first, changes nothing when something does not fit, and otherwise loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import hotdelta.io as hio
import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind
from hotdelta.errors import ConfigurationError, DamagedError, HotdeltaError, ModelMismatchError
from hotdelta.train import DeltaWriter
from tests.io.models import bits, different, every_class
from tests.keras.small_models import by_hand, fit, manifests


def test_every_missing_unexpected_and_mismatching_variable_is_listed_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    saved = every_class(hk.Adagrad(0.1), units=1)
    fit(saved, 1)
    hio.save_persistables(saved, tmp_path)
    model = every_class(hk.SGD(0.1), seed=2, units=2)
    before = bits(model)

    with pytest.raises(ModelMismatchError) as failed:
        hio.load_persistables(model, tmp_path)

    problems = "\n".join(failed.value.problems)
    assert "score/kernel: shape 12x2 in the model, 12x1 in the checkpoint" in problems
    assert "score/bias: shape 2 in the model, 1 in the checkpoint" in problems
    slots = [key for key in bits(saved) if key.startswith("optimizer/accumulators/")]
    assert all(f"{key}: the checkpoint has it, the model does not" in problems for key in slots)
    assert len(failed.value.problems) == 2 + len(slots)
    assert not different(bits(model), before)


def test_a_variable_of_another_dtype_or_that_is_not_saved_is_named(tmp_path: Path) -> None:
    hio.save_vars({"a": tf.Variable([1.0])}, tmp_path)
    model = {"a": tf.Variable([2.0], dtype=tf.float64), "b": tf.Variable([3.0])}

    with pytest.raises(ModelMismatchError) as failed:
        hio.load_vars(model, tmp_path)

    assert failed.value.problems == (
        "b: the model has it with shape 1, the checkpoint does not have it",
        "a: dtype float64 in the model, float32 in the checkpoint",
    )
    assert float(model["a"][0]) == 2.0


def test_what_fits_is_loaded_into_a_changed_model_and_the_rest_is_reported(tmp_path: Path) -> None:
    saved = every_class(units=1)
    fit(saved, 1)
    hio.save_persistables(saved, tmp_path)
    model = every_class(hk.Adagrad(0.1), seed=2, units=2)
    before, wanted = bits(model), bits(saved)

    report = hio.load_vars(model, tmp_path, strict=False)

    after = bits(model)
    assert all(after[key] == wanted[key] for key in report.loaded)
    assert all(after[key] == before[key] for key in after if key not in report.loaded)
    assert {"items/embeddings", "norm/moving_mean", "optimizer/iteration"} <= set(report.loaded)
    assert {line.split(":")[0] for line in report.mismatching} == {"score/kernel", "score/bias"}
    assert all("optimizer/accumulators/" in line for line in report.missing)
    assert all("optimizer/" in line for line in report.unexpected)


def test_parameters_are_loaded_for_another_optimizer_whose_state_stays(tmp_path: Path) -> None:
    saved = every_class(hk.Adam(0.1))
    fit(saved, 2)
    hio.save_persistables(saved, tmp_path)
    model = every_class(hk.Adagrad(0.5), seed=2)
    before, wanted = bits(model), bits(saved)

    report = hio.load_params(model, tmp_path)

    changed = different(bits(model), before)
    assert changed <= set(report.loaded)
    assert {info.key for info in hio.describe(model) if info.is_parameter} == set(report.loaded)
    assert all(bits(model)[key] == wanted[key] for key in report.loaded)


def test_a_model_is_compiled_before_or_after_loading(tmp_path: Path) -> None:
    saved = every_class()
    fit(saved, 2)
    hio.save_persistables(saved, tmp_path)
    before, after = every_class(seed=2), every_class(seed=3, is_compiled=False)

    hio.load_persistables(before, tmp_path)
    report = hio.load_persistables(after, tmp_path)
    assert all(key.startswith("optimizer/") for key in report.waiting)
    after.compile(hk.Adam(0.7), "mse")

    for model in (before, after):
        assert not different(bits(model), bits(saved))
    for model in (saved, before, after):
        fit(model, 2, seed=5)
    assert not different(bits(before), bits(saved))
    assert not different(bits(after), bits(saved))


def test_an_optimizer_that_comes_later_and_does_not_fit_is_refused_at_compile(tmp_path: Path) -> None:
    saved = every_class(hk.Adam(0.1))
    hio.save_persistables(saved, tmp_path)
    model = every_class(is_compiled=False)
    hio.load_persistables(model, tmp_path)

    with pytest.raises(ModelMismatchError, match=r"the optimizer of .* does not fit"):
        model.compile(hk.Adagrad(0.1), "mse")
    model.compile(hk.Adam(0.2), "mse")

    assert float(model.optimizer.learning_rate) == pytest.approx(0.1)


def test_an_optimizer_that_comes_later_takes_what_fits_when_that_was_asked_for(tmp_path: Path) -> None:
    saved = every_class(hk.Adagrad(0.1))
    fit(saved, 2)
    hio.save_persistables(saved, tmp_path)
    model = every_class(is_compiled=False)

    hio.load_vars(model, tmp_path, strict=False)
    model.compile(hk.Adam(0.7), "mse")

    assert float(model.optimizer.learning_rate) == pytest.approx(0.1)
    assert int(model.optimizer.iterations) == 2
    assert not bits(model)["optimizer/momentums/score/kernel"].strip(b"\0")


def test_a_model_without_variables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no variables yet"):
        hio.load_params(keras.Sequential([keras.layers.Dense(1)]), tmp_path)


def trained_chain(run_dir: Path) -> dict[str, Any]:
    """The bits at each position of a chain: a full, then deltas, one of them behind a second full."""
    model = every_class()
    found = {}
    with by_hand(run_dir) as callback:
        callback.resume(model)
        for step in range(4):
            fit(model, 1, callback, seed=step)
            position = callback.save_full() if step == 1 else callback.save()
            found[str(position)] = bits(model)
    return found


def test_a_chain_is_loaded_at_its_newest_position_or_at_a_given_one(tmp_path: Path) -> None:
    saved = trained_chain(tmp_path)
    model = every_class(seed=2)

    report = hio.load_persistables(model, tmp_path)

    assert str(report.position) == list(saved)[-1]
    assert not different(bits(model), saved[str(report.position)])
    for position, expected in saved.items():
        assert str(hio.load_persistables(model, tmp_path, position).position) == position
        assert not different(bits(model), expected)


def test_a_position_that_is_not_there_is_refused(tmp_path: Path) -> None:
    trained_chain(tmp_path)

    with pytest.raises(ConfigurationError, match=r"holds no position 9\.9"):
        hio.load_persistables(every_class(), tmp_path, "9.9")


def test_a_position_that_is_a_number_is_refused(tmp_path: Path) -> None:
    hio.save_vars({"a": tf.Variable(1.0)}, tmp_path)
    with pytest.raises(ConfigurationError, match=r"position is 1\.1"):
        hio.load_vars({"a": tf.Variable(0.0)}, tmp_path, position=1.1)  # type: ignore[arg-type]


def test_a_damaged_link_is_stepped_back_from_unless_its_position_was_asked_for(tmp_path: Path) -> None:
    saved = trained_chain(tmp_path)
    newest = manifests(tmp_path, Kind.DELTA)[-1]
    data = tmp_path / ".incremental_checkpoint" / newest.files[0].name
    data.write_bytes(bytes(data.stat().st_size))
    model = every_class(seed=2)
    before = bits(model)

    with pytest.raises(HotdeltaError):
        hio.load_persistables(model, tmp_path, newest.position)
    assert not different(bits(model), before)
    report = hio.load_persistables(model, tmp_path)

    assert report.position < newest.position
    assert any("digest" in problem for problem in report.problems)
    assert not different(bits(model), saved[str(report.position)])


def test_a_save_that_is_damaged_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    model = every_class()
    hio.save_persistables(model, tmp_path)
    data = next(tmp_path.glob("*.data-00001-*"))
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    before = bits(model)

    with pytest.raises((DamagedError, HotdeltaError), match="digest"):
        hio.load_persistables(model, tmp_path)
    assert not different(bits(model), before)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing is saved"):
        hio.load_params(every_class(), tmp_path)


def test_parameters_of_a_chain_are_known_under_plain_sgd(tmp_path: Path) -> None:
    trained = every_class(hk.SGD(0.1))
    with by_hand(tmp_path) as callback:
        fit(trained, 2, callback)
    model = every_class(hk.SGD(0.1), seed=2)
    before, wanted = bits(model), bits(trained)

    loaded = hio.load_params(model, tmp_path).loaded

    parameters = {info.key for info in hio.describe(trained) if info.is_parameter}
    assert set(loaded) == parameters >= {"items/embeddings", "norm/gamma", "score/kernel", "score/bias"}
    assert {key: value for key, value in bits(model).items() if key in parameters} == {
        key: wanted[key] for key in parameters
    }
    assert different(bits(model), before) <= parameters


def test_weight_that_plain_sgd_trained_and_the_model_lacks_is_unexpected(tmp_path: Path) -> None:
    weights = {"kernel": tf.Variable([1.0]), "average": tf.Variable([2.0], trainable=False)}
    DeltaWriter(tmp_path, weights).close()
    other = {"bias": tf.Variable([0.0])}

    with pytest.raises(ModelMismatchError) as failed:
        hio.load_params(other, tmp_path)

    assert failed.value.problems == (
        "bias: the model has it with shape 1, the checkpoint does not have it",
        "kernel: the checkpoint has it, the model does not",
    )
