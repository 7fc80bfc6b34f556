"""With another vocabulary ids mean other rows: loading refuses that, or reports it, and knows what is the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
from hotdelta.errors import ManifestError, ModelMismatchError
from hotdelta.keras.model.id_rules import RuleWatch, model_id_rules
from hotdelta.train.model import id_rules
from hotdelta.train.resume.trainer_state import TrainerState
from tests.io.models import bits, different
from tests.keras.small_models import by_hand
from tests.keras.word_models import number_model, word_model

WORDS = ["red", "green", "blue"]
LOADERS: list[Callable[[Any, Path], Any]] = [
    hio.load_vars,
    hio.load_params,
    hio.load_persistables,
    lambda model, directory: hio.load_vars(model, directory, ["colours/embeddings"]),
]


@pytest.mark.parametrize("load", LOADERS)
def test_another_vocabulary_is_refused_by_name_and_nothing_is_changed(
    load: Callable[[Any, Path], Any], tmp_path: Path
) -> None:
    hio.save_persistables(word_model(WORDS), tmp_path)
    model = word_model(WORDS[::-1], seed=2)
    before = bits(model)

    with pytest.raises(ModelMismatchError, match="give each lookup layer the vocabulary") as failed:
        load(model, tmp_path)

    assert [problem.partition(",")[0] for problem in failed.value.problems] == ["words: another vocabulary"]
    assert not different(bits(model), before)


@pytest.mark.parametrize("save", [hio.save_params, lambda m, d: hio.save_vars(m, d, ["colours/embeddings"])])
def test_every_save_knows_the_vocabulary(save: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    save(word_model(WORDS), tmp_path)
    with pytest.raises(ModelMismatchError, match="words: another vocabulary"):
        hio.load_vars(word_model(["red", "green", "grey"]), tmp_path, ["colours/embeddings"])


def test_another_vocabulary_is_reported_when_what_fits_is_wanted(tmp_path: Path) -> None:
    saved, model = word_model(WORDS), word_model(["red", "green"], seed=2)
    hio.save_persistables(saved, tmp_path)

    loaded = hio.load_vars(model, tmp_path, strict=False)

    (reported,) = loaded.mismatching
    assert "words: another vocabulary" in reported
    assert "it has 3 words, and does not begin with those that were saved, 4 of words" in reported
    assert not different(bits(model), bits(saved))


@pytest.mark.parametrize(
    "words", [WORDS, [*WORDS, "grey"]], ids=["the same vocabulary", "a word more at the end"]
)
def test_a_vocabulary_that_keeps_every_id_is_loaded(words: list[str], tmp_path: Path) -> None:
    saved, model = word_model(WORDS), word_model(words, seed=2)
    hio.save_persistables(saved, tmp_path)

    assert hio.load_persistables(model, tmp_path).mismatching == ()

    asked = tf.constant([WORDS])
    np.testing.assert_array_equal(model.predict_on_batch(asked), saved.predict_on_batch(asked))


def test_one_id_more_for_unknown_words_moves_all_others(tmp_path: Path) -> None:
    hio.save_persistables(word_model(WORDS), tmp_path)
    with pytest.raises(ModelMismatchError, match="words: another vocabulary"):
        hio.load_persistables(word_model(WORDS, num_oov_indices=2), tmp_path)


def test_a_layer_that_has_no_vocabulary_yet_is_refused(tmp_path: Path) -> None:
    hio.save_persistables(word_model(WORDS), tmp_path)
    model = word_model(None)
    with pytest.raises(ModelMismatchError, match="it has 1 word, and does not begin"):
        hio.load_persistables(model, tmp_path)

    model.get_layer("words").set_vocabulary(WORDS)

    hio.load_persistables(model, tmp_path)


def test_a_renamed_layer_fits_by_its_words(tmp_path: Path) -> None:
    hio.save_persistables(word_model(WORDS), tmp_path)
    hio.load_persistables(word_model(WORDS, name="names"), tmp_path)
    with pytest.raises(ModelMismatchError, match=r"names: another vocabulary.* 4 of words"):
        hio.load_persistables(word_model(WORDS[::-1], name="names"), tmp_path)


@pytest.mark.parametrize(
    "saved, other",
    [
        (keras.layers.IntegerLookup(vocabulary=[70, 80]), keras.layers.IntegerLookup(vocabulary=[80, 70])),
        (keras.layers.Hashing(6), keras.layers.Hashing(6, salt=1)),
        (keras.layers.Discretization([1.0, 2.0]), keras.layers.Discretization([1.0, 3.0])),
    ],
    ids=["IntegerLookup", "Hashing", "Discretization"],
)
def test_other_layers_that_make_ids_are_checked_as_well(saved: Any, other: Any, tmp_path: Path) -> None:
    hio.save_persistables(number_model(saved), tmp_path)
    hio.load_persistables(number_model(saved), tmp_path)
    with pytest.raises(ModelMismatchError, match="mean other rows"):
        hio.load_persistables(number_model(other), tmp_path)


def test_all_boundaries_count_and_nothing_that_a_release_of_keras_may_add() -> None:
    class NewHashing(keras.layers.Hashing):
        def get_config(self) -> Any:
            return {**super().get_config(), "added": True}

    def rule(layer: Any) -> Any:
        return next(iter(model_id_rules(number_model(layer)).values())).saved

    def bucket_rule(boundaries: Any) -> Any:
        layer = keras.layers.Discretization([1.0])
        layer.bin_boundaries = boundaries
        return rule(layer)

    boundaries = np.arange(3000.0)
    other = np.where(boundaries == 1500.0, 1500.5, boundaries)
    assert bucket_rule(boundaries) == bucket_rule(list(boundaries))
    assert bucket_rule(boundaries) != bucket_rule(other)
    assert rule(NewHashing(6)) == rule(keras.layers.Hashing(6))


def test_the_words_of_a_text_layer_are_one_rule() -> None:
    texts = keras.Input((1,), dtype="string")
    layer = keras.layers.TextVectorization(vocabulary=WORDS, name="texts")
    assert [*model_id_rules(keras.Model(texts, layer(texts)))] == ["texts"]


def test_boundaries_that_are_not_adapted_yet_are_no_rule() -> None:
    layer = keras.layers.Discretization(num_bins=3)
    model = number_model(layer)
    watch = RuleWatch(model)
    assert (model_id_rules(model), watch.has_changed) == ({}, False)

    layer.adapt(np.arange(9.0))

    assert (len(model_id_rules(model)), watch.has_changed) == (1, True)


def test_variables_that_cannot_have_a_row_for_each_word_are_loaded_with_any_vocabulary(
    tmp_path: Path,
) -> None:
    saved, model = word_model(WORDS), word_model(WORDS[::-1], seed=2)
    hio.save_persistables(saved, tmp_path)
    assert hio.load_vars(model, tmp_path, ["score/bias"]).loaded == ("score/bias",)
    slot = next(key for key in bits(saved) if key.endswith("/colours/embeddings"))
    for may_have in ("score/kernel", slot):
        with pytest.raises(ModelMismatchError, match="words: another vocabulary"):
            hio.load_vars(model, tmp_path, [may_have])


def test_a_position_of_a_chain_is_checked(tmp_path: Path) -> None:
    with by_hand(tmp_path) as callback:
        callback.resume(word_model(WORDS))
        position = callback.save()
    with pytest.raises(ModelMismatchError, match="words: another vocabulary"):
        hio.load_persistables(word_model(WORDS[::-1]), tmp_path, position)
    hio.load_persistables(word_model(WORDS), tmp_path, position)


def test_a_save_that_says_nothing_of_vocabularies_is_loaded(tmp_path: Path) -> None:
    saved, model = number_model(lambda numbers: numbers), word_model(WORDS[::-1], seed=2)
    hio.save_persistables(saved, tmp_path)
    hio.load_persistables(model, tmp_path)
    for value, expected in zip(model.get_weights(), saved.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_what_is_saved_of_vocabularies_is_read_again_or_refused() -> None:
    state = TrainerState(
        id_rules={"words": id_rules.SavedIdRule("ab" * 32, 4), "hash": id_rules.SavedIdRule("", 0)}
    )
    assert TrainerState.from_json(state.to_json()) == state
    for broken in ([1], {"words": 3}, {"words": {"blake3": "ab"}}, {"words": {"blake3": "ab", "words": "x"}}):
        document = {**json.loads(state.to_json()), "id_rules": broken}
        with pytest.raises(ManifestError, match="cannot be read"):
            TrainerState.from_json(json.dumps(document).encode())
