"""A chain is not resumed with another vocabulary: the rows of one word would become another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from exporter import export_saved_model
from hotdelta.errors import ConfigurationError, ModelMismatchError
from tests.keras.small_models import by_hand, manifests
from tests.keras.word_models import word_model

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


def test_every_link_says_which_vocabulary_it_has(tmp_path: Path) -> None:
    """Also the one that a resumed trainer writes, and one after the vocabulary grew."""
    for words in (WORDS, [*WORDS, "grey"]):
        train(tmp_path, word_model(words))
    with pytest.raises(ModelMismatchError, match="its 4 words do not begin with those that were saved, 5 of"):
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
