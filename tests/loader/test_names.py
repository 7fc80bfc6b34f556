"""Inputs, outputs and tables keep the names that the model gives them, whatever TensorFlow would make of these."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import orjson

import hotdelta.keras
from exporter.export import export_saved_model
from server.predict.request import read_request
from tests.loader.step_model import serving
from tests.waiting import wait_until

INPUTS = ("Item", "item", "user id", "user.id", "user_id", "a:b", "größe", "1st", "_x", "class", "self")
TABLES = ("Items", "items", "a.b-c")


def odd_model() -> keras.Model:
    """Each input counts with a weight of its own, so that none can be taken for another."""
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in INPUTS}
    tables = [hotdelta.keras.Embedding(20, 2, name=name) for name in TABLES]
    rows = [tables[index % len(tables)](value) for index, value in enumerate(inputs.values())]
    weighed = [row * float(index + 1) for index, row in enumerate(rows)]
    return keras.Model(inputs, {"Score": sum(weighed), "score": rows[0], "größe ü": rows[1]})


def test_a_request_uses_the_names_of_the_model(tmp_path: Path) -> None:
    model = odd_model()
    model.compile(hotdelta.keras.Adagrad(0.1), "mse")
    asked = {name: np.array([index + 1]) for index, name in enumerate(model.input)}
    with hotdelta.keras.DeltaCheckpoint(tmp_path / "run", None, None) as checkpoint:
        checkpoint.resume(model)
        checkpoint.save_full()
        export_saved_model(tmp_path / "run", tmp_path / "export", save_incr_model=True)
        model.get_layer("Items").embeddings.assign(np.full((20, 2), 0.5, "float32"))
        checkpoint.step()
        position = checkpoint.save()
    assert position is not None
    body = orjson.dumps({"inputs": {name: value.tolist() for name, value in asked.items()}})
    with serving(tmp_path) as loader:
        wait_until(lambda: loader.wait_for(position, 0), "the delta is served")
        request = read_request(body, loader.signatures, max_wait_ms=0)
        answer, version = loader.predict(request.signature, request.feeds)
    assert version.position == position
    assert answer.keys() == model.output.keys()
    expected = model(asked)
    for name, values in answer.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6)
