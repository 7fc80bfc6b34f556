"""The words of lookup layers are read in bulk, and are those that Keras says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from hotdelta.train.model.vocabularies import words_of

WORDS = ["b", "a", "dä", ""]


def lookup(**options: Any) -> Any:
    return keras.layers.StringLookup(**{"vocabulary": WORDS, **options})


LAYERS = {
    "words": lookup,
    "two ids for unknown words": lambda: lookup(num_oov_indices=2),
    "no id for unknown words": lambda: lookup(num_oov_indices=0),
    "masked words": lambda: lookup(vocabulary=WORDS[:3], mask_token="", num_oov_indices=2),
    "a mask that has no id": lambda: lookup(vocabulary=WORDS[:3], mask_token="", output_mode="multi_hot"),
    "no words yet": lambda: lookup(vocabulary=None),
    "words of ids": lambda: lookup(invert=True),
    "numbers": lambda: keras.layers.IntegerLookup(vocabulary=[7, -3, 2**40], mask_token=0),
    "texts": lambda: keras.layers.TextVectorization(vocabulary=["b", "a", "c"]),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_words_are_those_that_keras_says(make: Any) -> None:
    layer = make()
    assert words_of(layer) == [str(word).encode() for word in layer.get_vocabulary()]


def test_layer_of_the_users_own_says_its_words_itself() -> None:
    class Upper(keras.layers.StringLookup):
        def get_vocabulary(self) -> list[str]:
            return [word.upper() for word in super().get_vocabulary()]

    assert words_of(Upper(vocabulary=["a"])) == [b"[UNK]", b"A"]


def test_words_that_are_no_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(b"a\n\xff\n")
    assert words_of(keras.layers.StringLookup(vocabulary=str(tmp_path / "words"))) == [
        b"[UNK]",
        b"a",
        b"\xff",
    ]
