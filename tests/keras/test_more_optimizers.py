"""Models that train with more optimizers than the one that they are compiled with: nothing that they write is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import hotdelta.io as hio
import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Tracking
from hotdelta.errors import ConfigurationError
from tests.keras.small_models import ROWS, assert_same, assert_saved, batches, by_hand, fit, live

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

TABLE = "items/embeddings"


class TwoOptimizers(keras.Model):
    """The table is trained by an optimizer that `find` gets; what it is compiled with trains the rest, or nothing."""

    find: Callable[[Any], Any] = staticmethod(lambda model: model.other)
    trains_rest = False

    def train_step(self, data: Any) -> dict[str, Any]:
        inputs, wanted = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - wanted) ** 2)
        table, *rest = self.trainable_variables
        of_table, *of_rest = tape.gradient(loss, [table, *rest])
        self.find(self).apply([of_table], [table])
        if self.trains_rest:
            self.optimizer.apply(of_rest, rest)
        return {"loss": loss}


def two_optimizers(other: Any, *, trains_rest: bool = True, seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    ids = keras.Input((3,), dtype="int64", name="ids")
    rows = hk.Embedding(ROWS, 4, name="items")(ids)
    model = TwoOptimizers(ids, keras.layers.Dense(1, name="score")(keras.layers.Flatten()(rows)))
    model.other, model.trains_rest = other, trains_rest
    compile_and_build(model)
    return model


def compile_and_build(model: keras.Model) -> None:
    model.compile(hk.Adagrad(0.1), "mse")
    model.optimizer.build(model.trainable_variables)


OTHERS: dict[str, tuple[Callable[[], Any], Tracking]] = {
    "recording": (lambda: hk.Adagrad(0.1), Tracking.TOUCHED),
    "writing all rows": (lambda: hk.SGD(0.1, weight_decay=0.01), Tracking.CHANGED),
    "of Keras": (lambda: keras.optimizers.Adagrad(0.1), Tracking.CHANGED),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_rows_that_only_another_optimizer_writes_are_saved(tmp_path: Path, kind: str) -> None:
    make, mode = OTHERS[kind]
    model = two_optimizers(make(), trains_rest=False)
    with by_hand(tmp_path, save_incremental_steps=1, scrub_saves=0) as callback:
        fit(model, 4, callback)
        assert callback.tracking == {TABLE: mode}
        assert_saved(callback)


def test_an_optimizer_that_its_first_step_builds_is_saved_from_then_on(tmp_path: Path) -> None:
    model, fresh = two_optimizers(hk.Adagrad(0.1)), two_optimizers(hk.Adagrad(0.1), seed=2)
    with by_hand(tmp_path, save_incremental_steps=1) as callback:
        fit(model, 3, callback)
        assert_saved(callback)
        expected = live(callback)
    assert f"optimizer/other/accumulators/{TABLE}" in expected
    for resuming in (model, fresh):
        with by_hand(tmp_path) as callback:
            callback.resume(resuming)
            assert_same(live(callback), expected)
    for resumed in (model, fresh):
        resumed.train_on_batch(*batches(1, seed=5))
    assert model.get_weights()[0].tobytes() == fresh.get_weights()[0].tobytes()


def test_a_chain_that_has_nothing_of_an_optimizer_is_resumed_and_gets_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with by_hand(tmp_path) as callback:
        callback.resume(two_optimizers(hk.Adagrad(0.1)))
    model = two_optimizers(hk.Adagrad(0.1), seed=2)
    fit(model, 1)
    with by_hand(tmp_path, save_incremental_steps=1) as callback:
        callback.resume(model)
        assert "the checkpoint has nothing of an optimizer attribute=other" in caplog.text
        fit(model, 2, callback)
        assert_saved(callback)
        assert f"optimizer/other/accumulators/{TABLE}" in live(callback)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_load_builds_an_optimizer_that_was_saved(tmp_path: Path, is_compiled: bool) -> None:
    model, fresh = two_optimizers(hk.Adagrad(0.1)), two_optimizers(hk.Adagrad(0.1), seed=2)
    fit(model, 3)
    hio.save_persistables(model, tmp_path)
    if not is_compiled:
        fresh = TwoOptimizers(fresh.inputs, fresh.outputs)
        fresh.other, fresh.trains_rest = hk.Adagrad(0.1), True
    hio.load_persistables(fresh, tmp_path)
    if not is_compiled:
        compile_and_build(fresh)
    for trained in (model, fresh):
        fit(trained, 2, seed=7)
    assert [value.tobytes() for value in model.get_weights()] == [v.tobytes() for v in fresh.get_weights()]


@pytest.mark.parametrize("place", ["list/0", "dict/table", "encoder/optimizer"])
def test_optimizers_in_containers_and_inner_models_are_saved(tmp_path: Path, place: str) -> None:
    optimizer = hk.Adagrad(0.1)
    model = two_optimizers(optimizer)
    del model.other
    if place == "encoder/optimizer":
        encoder = keras.Sequential([keras.Input((3,)), keras.layers.Flatten()], name="encoder")
        encoder.compile(optimizer)
        model.encoder = encoder
    else:
        setattr(model, place.partition("/")[0], [optimizer] if place == "list/0" else {"table": optimizer})
    model.find = lambda _: optimizer
    with by_hand(tmp_path, save_incremental_steps=1) as callback:
        fit(model, 2, callback)
        assert callback.tracking == {TABLE: Tracking.TOUCHED}
        assert f"optimizer/{place}/accumulators/{TABLE}" in live(callback)
        assert_saved(callback)


def test_one_optimizer_under_two_attributes_is_saved_once() -> None:
    model = two_optimizers(hk.Adagrad(0.1))
    fit(model, 1)
    model.again = model.other
    assert not [info.key for info in hio.describe(model) if "again" in info.key]


def test_attributes_whose_optimizers_would_have_the_same_keys_are_named() -> None:
    model = two_optimizers(hk.Adagrad(0.1))
    model._other = hk.Adagrad(0.1)
    with pytest.raises(ConfigurationError, match="'other' and '_other' would be saved under one name"):
        hio.describe(model)
    scaled = two_optimizers(hk.Adagrad(0.1))
    scaled.inner = hk.Adagrad(0.1)
    scaled.compile(keras.optimizers.LossScaleOptimizer(hk.Adagrad(0.1)), "mse")
    with pytest.raises(ConfigurationError, match="'compile' and 'inner'"):
        hio.describe(scaled)


def test_an_optimizer_that_is_not_saved_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = two_optimizers(hk.Adagrad(0.1))
    hio.describe(model)
    hio.describe(model)
    assert caplog.text.count("an optimizer is not saved attribute=other") == 1
