"""DeltaCheckpoint when the model changes under it: a second fit, a new callback, another optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.position import Position
from hotdelta.errors import ModelMismatchError
from tests.keras.small_models import (
    assert_same,
    assert_saved,
    batches,
    by_hand,
    fit,
    live,
    positions,
    resumed_values,
    small_model,
)


def test_a_second_fit_a_new_callback_and_one_added_later_all_record(tmp_path: Path) -> None:
    model = small_model(hk.Adam(0.01))
    fit(model, 2)
    first = by_hand(tmp_path)
    fit(model, 2, first, seed=1)
    assert_saved(first)
    fit(model, 2, first, seed=2)
    assert_saved(first)
    fit(model, 2, seed=3)
    second = by_hand(tmp_path)
    fit(model, 2, second, seed=4)
    assert second.resumed is not None
    assert second.resumed.step == 8
    assert second.position is not None
    assert second.position.run == 2
    assert_saved(second)
    second.close()
    assert positions(tmp_path, Kind.FULL) == [Position(1, 1)]


@pytest.mark.parametrize("optimizer", [hk.Adagrad, hk.Adam, keras.optimizers.Adam])
def test_a_recompiled_model_goes_on_in_the_same_chain(tmp_path: Path, optimizer: Any) -> None:
    model = small_model()
    callback = by_hand(tmp_path)
    fit(model, 2, callback)
    model.compile(optimizer(0.02), "mse")
    fit(model, 1, seed=1)
    fit(model, 2, callback, seed=2)
    assert callback.position is not None
    assert callback.position.run == 1
    assert_saved(callback)
    fit(model, 2, callback, seed=3)
    assert_saved(callback)
    values = live(callback)
    callback.close()
    assert_same(resumed_values(tmp_path, optimizer(0.3)), values)
    if optimizer is not hk.Adagrad:
        with pytest.raises(ModelMismatchError, match="optimizer/"):
            resumed_values(tmp_path)


def test_a_model_recompiled_in_a_loop_is_noticed_at_the_next_step(tmp_path: Path) -> None:
    model = small_model()
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        model.train_on_batch(*batches(1))
        callback.step()
        model.compile(hk.Adam(0.01), "mse")
        model.train_on_batch(*batches(1, seed=1))
        callback.step()
        model.train_on_batch(*batches(1, seed=2))
        callback.save()
        assert_saved(callback)


def test_a_model_compiled_again_only_to_be_evaluated_keeps_its_optimizer_in_the_chain(tmp_path: Path) -> None:
    model = small_model()
    with by_hand(tmp_path) as callback:
        fit(model, 2, callback)
        values = live(callback)
        model.compile(loss="mse")
        model.evaluate(*batches(1), verbose=0)
    assert_same(resumed_values(tmp_path), values)
