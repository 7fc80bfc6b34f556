"""Models that their first batch builds: saved from the first step, resumed before it, and served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from exporter.graph.variable_uses import make_servable
from exporter.sources import Source, source_of
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.errors import ConfigurationError
from hotdelta.keras.first_batch import is_built
from hotdelta.train.serving.trace import graph_name
from tests.keras.recommenders import LAYERS_ALONE, PATTERNS, Pattern, layers
from tests.keras.small_models import assert_saved, by_hand, live

pytestmark = pytest.mark.filterwarnings("ignore:.*(support masking|it has unbuilt state)")
FIT: dict[str, Any] = {"verbose": 0, "shuffle": False}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_a_recommender_trains_resumes_and_serves(tmp_path: Path, pattern: Pattern) -> None:
    model, other = (pattern.model(seed=seed, run_eagerly=True) for seed in (1, 2))
    with by_hand(tmp_path, serving_graph=True) as callback:
        model.fit(pattern.dataset(1, seed=1), callbacks=[callback], **FIT)
        assert_saved(callback)
        _assert_served(tmp_path, pattern, model)
    other.fit(pattern.dataset(1, seed=2), **FIT)
    with by_hand(tmp_path) as second:
        second.resume(other)
        _assert_equal(other, model)


def test_the_first_step_starts_from_what_was_loaded(tmp_path: Path) -> None:
    pattern = PATTERNS["ranking"]
    model, other = (pattern.model(seed=seed, optimizer=hk.Adagrad(0.1)) for seed in (1, 2))
    data = pattern.dataset(4, seed=1)
    with by_hand(tmp_path) as callback:
        model.fit(data.take(2), callbacks=[callback], **FIT)
    model.fit(data.skip(2), **FIT)
    with by_hand(tmp_path) as second:
        other.fit(data.skip(2), callbacks=[second], **FIT)
        assert second.resumed is not None
        assert second.resumed.step == 2
        _assert_equal(other, model)


def test_a_loop_of_ones_own_resumes_with_a_batch(tmp_path: Path) -> None:
    """And to build the model has moved nothing, no seed and no weight: it trains as without a callback."""
    pattern = LAYERS_ALONE
    plain, model, other = (pattern.model(seed=seed, run_eagerly=True) for seed in (1, 1, 2))
    batch = pattern.batch(np.random.default_rng(1))
    plain.train_on_batch(*batch)
    with by_hand(tmp_path, serving_graph=True) as callback:
        with pytest.raises(
            ConfigurationError, match=r"its first batch makes them\. .* resume\(model, \(x, y\)\)"
        ):
            callback.resume(model)
        assert callback.resume(model, batch) is None
        model.train_on_batch(*batch)
        callback.step()
        callback.save()
        assert_saved(callback)
        _assert_served(tmp_path, pattern, model)
    with by_hand(tmp_path) as second:
        second.resume(other, tf.nest.map_structure(tf.type_spec_from_value, batch))
        _assert_equal(other, model)
        _assert_equal(plain, model)


class Odd(keras.Model):
    """Trained on ragged ids, by a step that must run eagerly; and one of its layers is for inference alone."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.scale = hk.Embedding(9, 2), layers.Dense(2)

    def call(self, ids: Any, training: bool = False) -> Any:
        rows = self.items(ids.to_tensor())
        return rows if training else self.scale(rows)

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self(data, training=True))
        self.optimizer.apply([tape.gradient(loss, self.items.embeddings._value)], [self.items.embeddings])
        return {"loss": loss.numpy()}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64, "ids")])
    def serve(self, ids: tf.Tensor) -> Any:
        return self(tf.RaggedTensor.from_tensor(ids))


def test_what_only_inference_calls_is_built_and_saved_too(tmp_path: Path) -> None:
    data = tf.data.Dataset.from_tensors(tf.ragged.constant([[1, 2], [3]], dtype=tf.int64))
    model = Odd()
    model.compile(hk.SGD(0.1), run_eagerly=True)
    with pytest.raises(
        ConfigurationError, match=r"(?s)cannot be traced with inputs inputs: int64.* input_signature"
    ):
        model.fit(data, callbacks=[by_hand(tmp_path, serving_graph=True)], **FIT)
    signatures = {"serving_default": model.serve}
    with by_hand(tmp_path, serving_graph=True, signatures=signatures) as callback:
        model.fit(data, callbacks=[callback], **FIT)
        assert_saved(callback)
        assert "scale/kernel" in live(callback)


def test_a_layer_of_keras_that_is_built_is_not_built_again_for_what_it_holds() -> None:
    words = keras.Input((1,), dtype="string")
    model = keras.Model(words, layers.TextVectorization(vocabulary=["red"])(words))
    assert not all(layer.built for layer in model._flatten_layers())
    assert is_built(model)


def _assert_served(run_dir: Path, pattern: Pattern, model: keras.Model) -> None:
    """As the exporter makes it, from the directory alone."""
    source = source_of(run_dir)
    _fill(source)
    served = make_servable(source.module, source.schema, allow_whole_reads=pattern.whole_reads)
    arguments = pattern.arguments(pattern.batch(np.random.default_rng(3)))
    inputs = zip(pattern.names, map(tf.constant, tf.nest.flatten(arguments)), strict=True)
    answer = served.signatures["serving_default"].function(**{graph_name(name): fed for name, fed in inputs})
    expected = model(*tf.nest.map_structure(tf.constant, arguments), training=False)
    named = expected if isinstance(expected, dict) else dict.fromkeys(answer, expected)
    assert named.keys() == answer.keys()
    for name, value in named.items():
        np.testing.assert_allclose(answer[name], value, rtol=1e-5, atol=1e-6)


def _fill(source: Source) -> None:
    assert source.state is not None
    reader = StateReader(source.state)
    for spec, variable in zip(source.schema.variables, source.module.variables, strict=True):
        variable.assign(reader.value(spec.key))


def _assert_equal(found: keras.Model, expected: keras.Model) -> None:
    pairs = [*zip(found.variables, expected.variables, strict=True)]
    for variable, other in [
        *pairs,
        *zip(found.optimizer.variables, expected.optimizer.variables, strict=True),
    ]:
        np.testing.assert_array_equal(variable, other)
