"""A chain is not resumed with another vocabulary: the rows of one word would become another's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from exporter import export_saved_model
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import ConfigurationError, ModelMismatchError
from tests.keras.small_models import by_hand, manifests
from tests.keras.word_models import word_model

pytestmark = pytest.mark.I9

WORDS = ["red", "green", "blue"]


def train(run_dir: Path, model: keras.Model, **options: Any) -> None:
    """Resume, and make one step."""
    with by_hand(run_dir, **options) as callback:
        callback.resume(model)
        model.train_on_batch(tf.constant([WORDS]), np.ones((1, 1), np.float32))
        callback.step()


@pytest.mark.parametrize("serving_graph", [True, False])
def test_a_chain_is_not_resumed_with_another_vocabulary_and_stays_as_it_is(
    serving_graph: bool, tmp_path: Path
) -> None:
    trained = word_model(WORDS)
    train(tmp_path, trained, serving_graph=serving_graph)
    committed = manifests(tmp_path)
    expected = trained.predict_on_batch(tf.constant([WORDS]))
    other = word_model(WORDS[::-1], seed=2)
    before = other.get_weights()

    with pytest.raises(
        ModelMismatchError, match=r"words: another vocabulary.*before loading, or use another"
    ):
        by_hand(tmp_path, serving_graph=serving_graph).resume(other)

    assert manifests(tmp_path) == committed
    for value, old in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)
    with by_hand(tmp_path, serving_graph=serving_graph) as callback:
        resumed = word_model([*WORDS, "grey"], seed=3)
        assert callback.resume(resumed) is not None
        np.testing.assert_array_equal(resumed.predict_on_batch(tf.constant([WORDS])), expected)


def test_a_chain_does_not_go_on_with_another_vocabulary(tmp_path: Path) -> None:
    with by_hand(tmp_path) as callback:
        callback.resume(word_model(WORDS))
        with pytest.raises(ConfigurationError, match="not the one that this chain was started with"):
            callback.resume(word_model(WORDS[::-1]))


def test_a_vocabulary_that_grew_between_two_fits_is_the_one_that_is_saved(tmp_path: Path) -> None:
    model, grown = word_model(WORDS), [*WORDS, "grey"]
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        model.get_layer("words").set_vocabulary(grown)
        model.fit(tf.constant([WORDS]), np.ones((1, 1), np.float32), verbose=0, callbacks=[callback])
    with pytest.raises(ModelMismatchError, match=r"it has 4 words, and does not begin with .* saved, 5 of"):
        by_hand(tmp_path).resume(word_model(WORDS))
    train(tmp_path, word_model(grown))


def test_a_vocabulary_that_was_adapted_after_resume_is_the_one_that_is_saved(tmp_path: Path) -> None:
    model = word_model(None)
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        model.get_layer("words").set_vocabulary(WORDS)
        callback.resume(model)
    with pytest.raises(ModelMismatchError, match="words: another vocabulary"):
        by_hand(tmp_path).resume(word_model(WORDS[::-1]))
    train(tmp_path, word_model(WORDS))


def test_a_chain_does_not_go_on_when_words_change_places(tmp_path: Path) -> None:
    model = word_model(WORDS)
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        model.get_layer("words").set_vocabulary(WORDS[::-1])
        with pytest.raises(ConfigurationError, match="started with: words: another vocabulary"):
            callback.resume(model)
    train(tmp_path, word_model(WORDS))


def test_loop_notices_with_the_next_step_that_the_vocabulary_changed(tmp_path: Path) -> None:
    model, batch = word_model(WORDS), (tf.constant([WORDS]), np.ones((1, 1), np.float32))
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        model.get_layer("words").set_vocabulary([*WORDS, "grey"])
        model.train_on_batch(*batch)
        callback.step()
        model.get_layer("words").set_vocabulary(WORDS[::-1])
        model.train_on_batch(*batch)
        with pytest.raises(ConfigurationError, match="started with: words: another vocabulary"):
            callback.step()
    train(tmp_path, word_model([*WORDS, "grey"]))


def test_words_of_the_users_own_layers_are_not_read_after_each_step(tmp_path: Path) -> None:
    class Words(keras.layers.Layer):
        reads = 0

        def get_vocabulary(self) -> list[str]:
            Words.reads += 1
            return WORDS

        def call(self, inputs: Any) -> Any:
            return inputs

    numbers = keras.Input((1,))
    model = keras.Model(numbers, keras.layers.Dense(1)(Words()(numbers)))
    model.compile("sgd", "mse")
    with by_hand(tmp_path) as callback:
        callback.resume(model)
        reads = Words.reads
        for _ in range(3):
            model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
            callback.step()
        assert Words.reads == reads
        callback.resume(model)
        assert Words.reads > reads


def test_every_link_says_which_vocabulary_it_has(tmp_path: Path) -> None:
    """Also the one that a resumed trainer writes, and one after the vocabulary grew."""
    for words in (WORDS, [*WORDS, "grey"]):
        train(tmp_path, word_model(words))
    with pytest.raises(ModelMismatchError, match=r"it has 4 words, and does not begin with .* saved, 5 of"):
        by_hand(tmp_path).resume(word_model(WORDS))


def test_model_with_more_words_is_exported_from_a_full_of_its_own(tmp_path: Path) -> None:
    train(tmp_path / "run", word_model(WORDS), serving_graph=True)
    model = word_model([*WORDS, "grey"])
    with by_hand(tmp_path / "run", serving_graph=True, save_incremental_steps=1) as callback:
        callback.resume(model)
        for _ in range(2):
            model.train_on_batch(tf.constant([["grey", *WORDS[:2]]]), np.ones((1, 1), np.float32))
            callback.step()
    exported = tf.saved_model.load(str(export_saved_model(tmp_path / "run", tmp_path / "export")))
    (score,) = exported.signatures["serving_default"](word=tf.constant([["grey", "red", "blue"]])).values()
    np.testing.assert_array_equal(score, model(tf.constant([["grey", "red", "blue"]])))


def test_full_of_a_model_with_more_words_is_not_forgotten_when_the_trainer_is_killed(
    tmp_path: Path,
) -> None:
    run_dir, killed = tmp_path / "run", tmp_path / "killed"
    train(run_dir, word_model(WORDS), serving_graph=True)
    grown = [*WORDS, "grey"]
    with by_hand(run_dir, serving_graph=True) as callback:
        model = word_model(grown)
        callback.resume(model)
        model.train_on_batch(tf.constant([WORDS]), np.ones((1, 1), np.float32))
        callback.step()
        callback.save()
        # What would be there if it were killed now.
        shutil.copytree(run_dir, killed)
    assert len(find_full_schemas(killed)) == 1
    train(killed, word_model(grown), serving_graph=True)
    assert find_full_schemas(killed)[-1] == Scanner(killed).scan().manifests[-1].schema
    train(killed, word_model(grown), serving_graph=True)
    assert len(find_full_schemas(killed)) == 2


def find_full_schemas(run_dir: Path) -> list[str]:
    return [item.schema for item in Scanner(run_dir).scan().manifests if item.kind is Kind.FULL]
