"""Exports that look things up: words when the model is loaded, and what a request is told that asks for too much."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from exporter.export import export_saved_model
from hotdelta.errors import RequestError
from loader.model.live_model import LiveModel

pytestmark = pytest.mark.optimized


def test_string_inputs_are_looked_up_as_in_training(tmp_path: Path) -> None:
    inputs = keras.Input((1,), dtype="string", name="word")
    ids = keras.layers.StringLookup(vocabulary=["a", "b", "c"])(inputs)
    outputs = keras.layers.Embedding(4, 3, name="words")(ids)
    model = keras.Model(inputs, outputs)
    export_saved_model(model, tmp_path, save_incr_model=True)
    expected = model.get_layer("words").embeddings.numpy()
    live = LiveModel.load(tmp_path / "1")
    assert live.node is None
    live.warm_up()
    for words in ([["b"], ["zzz"]], np.array([["b"], ["zzz"]]), np.array([[b"b"], [b"zzz"]], object)):
        (answer,) = live.predict("serving_default", {"word": words}).values()
        np.testing.assert_array_equal(answer[:, 0], expected[[2, 0]])
    for wrong in ([[1]], [[None]], np.array([[1.5]])):
        with pytest.raises(RequestError, match="strings"):
            live.predict("serving_default", {"word": wrong})
    live.close()


INPUTS = [tf.TensorSpec([None], tf.int64, name) for name in ("User", "item", "word", "number")]


class Towers(tf.Module):
    """Tables of one size, looked up in different ways, and a constant of that size that is no table."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.words = (tf.Variable(tf.ones([5, 2])) for _ in range(3))

    @tf.function(input_signature=[*INPUTS, tf.TensorSpec([None], tf.string, "price")])
    def score(self, user: Any, item: Any, word: Any, number: Any, price: Any) -> dict[str, Any]:
        words = tf.map_fn(lambda each: tf.gather(self.words, each), word, fn_output_signature=tf.float32)
        items = tf.gather_nd(self.items, item[:, tf.newaxis])
        weights = tf.gather(tf.range(5.0), number // 10)[:, tf.newaxis]
        rows = tf.concat([tf.gather(self.users, user), items, words, weights], axis=1)
        return {"score": rows, "price": tf.strings.to_number(price)}


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveModel]:
    module = Towers()
    signatures, tables = {"serving_default": module.score}, ["users", "items", "words"]
    directory = tmp_path_factory.mktemp("towers")
    live = LiveModel.load(export_saved_model(module, directory, signatures=signatures, tables=tables))
    yield live
    live.close()


@pytest.mark.parametrize(
    "bad, message",
    [
        (
            {"User": [1, 7]},
            "id 7 is not in table 'users', which has 5 rows. ids go from 0 to 4; input 'User' holds this number",
        ),
        (
            {"item": [-1, 4]},
            "id -1 is not in table 'items', which has 5 rows. ids go from 0 to 4; input 'item' holds this number",
        ),
        (
            {"word": [4, 5]},
            "id 5 is not in table 'words', which has 5 rows. ids go from 0 to 4; input 'word' holds this number",
        ),
        (
            {"User": [1, 7], "number": [7, 7]},
            (
                "id 7 is not in table 'users', which has 5 rows. "
                "ids go from 0 to 4; inputs 'User', 'number' hold this number"
            ),
        ),
        (
            {"number": [0, 90]},
            (
                "id 9 is not among the 5 rows that it is looked up in. "
                "ids go from 0 to 4; no integer input holds this number: the model makes it"
            ),
        ),
        (
            {"User": [1, 2, 3]},
            (
                "the model refuses this input: ConcatOp : Dimension 0 in both shapes must be equal: "
                "shape[0] = [3,2] vs. shape[1] = [2,2]. the inputs have different numbers of rows, which may be why: "
                "'User' has 3, 'item' has 2, 'word' has 2, 'number' has 2, 'price' has 2"
            ),
        ),
        (
            {"price": ["1", "2", "x"]},
            "the model refuses this input: StringToNumberOp could not correctly convert string: x",
        ),
    ],
)
def test_a_refused_request_is_told_the_table_and_where_the_number_is(
    towers: LiveModel, bad: dict[str, list[Any]], message: str
) -> None:
    good = {**{spec.name: [0, 1] for spec in INPUTS}, "price": ["1", "2"]}
    assert towers.predict("serving_default", good)["score"].shape == (2, 7)
    with pytest.raises(RequestError) as refused:
        towers.predict("serving_default", {**good, **bad})
    assert str(refused.value) == message
