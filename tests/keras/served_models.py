"""Models as the exporter sees them: from the files that the trainer leaves, filled with the model's values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from exporter.graph.variable_uses import make_servable
from hotdelta.chain.format.schema import Schema
from hotdelta.keras.model.structure import model_variables
from hotdelta.keras.serving.graph import trace_keras_model
from hotdelta.train.serving.files import load_schema, load_serving_graph, save_serving_graph

layers = keras.layers


def served(model: keras.Model, directory: Path, **options: Any) -> tuple[Mapping[str, Any], Schema]:
    """The signatures of a model as the exporter sees them: from the files alone, filled with the model's values."""
    module, schema = trace_keras_model(model, **options)
    save_serving_graph(directory, module, schema)
    loaded = load_serving_graph(directory, load_schema(directory, schema.digest))
    loaded = make_servable(loaded, schema)
    values = {item.key: item.variable for item in model_variables(model)}
    for spec, variable in zip(schema.variables, loaded.variables, strict=True):
        variable.assign(values[spec.key])
    return {name: signature.function for name, signature in loaded.signatures.items()}, schema


def two_towers() -> keras.Model:
    inputs = {
        "user": keras.Input((3,), dtype="int64", name="user"),
        "item": keras.Input((), dtype="int32", name="item"),
    }
    user = layers.GlobalAveragePooling1D()(layers.Embedding(50, 4)(inputs["user"]))
    item = layers.Embedding(60, 4)(inputs["item"])
    logit = layers.Dense(1)(layers.Dropout(0.5)(layers.Concatenate()([user, item])))
    return keras.Model(inputs, {"click": layers.Activation("sigmoid")(logit), "logit": logit})


def preprocess(layer: Any, dtype: str) -> keras.Model:
    word = keras.Input((1,), dtype=dtype, name="word")
    return keras.Model(word, layers.Embedding(10, 3)(layer(word)))
