"""Exports that take strings: lookup tables are initialised when the model is loaded."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from exporter.export import export_saved_model
from hotdelta.errors import RequestError
from loader.live_model import LiveModel


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
