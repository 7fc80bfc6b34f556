"""Layers that make ids of words and numbers are served with their vocabularies, and are part of the schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hotdelta.keras.serving.graph import trace_keras_model
from tests.keras.served_models import layers, preprocess, served


def _vocabulary_file(folder: Path) -> str:
    path = folder / "words.txt"
    path.write_text("red\ngreen\n")
    return str(path)


PREPROCESSING: dict[str, Callable[[Path], tuple[keras.Model, Any]]] = {
    "StringLookup": lambda _: (
        preprocess(layers.StringLookup(vocabulary=["red", "green"]), "string"),
        [["red"]],
    ),
    "StringLookup with a file": lambda folder: (
        preprocess(layers.StringLookup(vocabulary=_vocabulary_file(folder)), "string"),
        [["green"]],
    ),
    "IntegerLookup": lambda _: (preprocess(layers.IntegerLookup(vocabulary=[70, 80]), "int64"), [[80]]),
    "Hashing": lambda _: (preprocess(layers.Hashing(9, salt=3), "string"), [["red"]]),
    "Discretization": lambda _: (preprocess(layers.Discretization([0.0, 1.0]), "float32"), [[0.5]]),
}


@pytest.mark.parametrize("make", PREPROCESSING.values(), ids=PREPROCESSING.keys())
def test_preprocessing_goes_along_without_the_model(
    tmp_path: Path, make: Callable[[Path], tuple[keras.Model, Any]]
) -> None:
    model, word = make(tmp_path)
    expected = model(tf.constant(word))
    directory = tmp_path / "graph"
    signatures, _ = served(model, directory)
    (tmp_path / "words.txt").unlink(missing_ok=True)
    dtype = model.inputs[0].dtype
    (found,) = signatures["serving_default"](word=tf.constant(word, dtype)).values()
    np.testing.assert_array_equal(found, expected)


def test_another_vocabulary_is_another_schema() -> None:
    def digest(words: list[str]) -> str:
        model = preprocess(layers.StringLookup(vocabulary=words), "string")
        return trace_keras_model(model)[1].digest

    assert digest(["red", "green"]) == digest(["red", "green"])
    assert digest(["red", "green"]) != digest(["green", "red"])


def test_another_way_to_hash_is_another_schema() -> None:
    def digest(layer: Any) -> str:
        return trace_keras_model(preprocess(layer, "string"))[1].digest

    assert digest(layers.Hashing(9, salt=3)) == digest(layers.Hashing(9, salt=3))
    assert digest(layers.Hashing(9, salt=3)) != digest(layers.Hashing(9, salt=4))
