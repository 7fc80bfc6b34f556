"""By which rules the layers of a Keras model make ids: vocabularies, hashes, buckets."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras

from hotdelta.keras import structure
from hotdelta.train.id_rules import IdRule, words_of

_COMPUTED = (keras.layers.Hashing, keras.layers.HashedCrossing, keras.layers.Discretization)


def model_id_rules(model: keras.Model) -> dict[str, IdRule]:
    """By the keys of the layers. It takes seconds for a million words."""
    return {
        key: IdRule.of(partial(_read, layer))
        for key, layer in structure._walk_layers(model, "", set())
        if hasattr(layer, "get_vocabulary") or isinstance(layer, _COMPUTED)
    }


def _read(layer: Any) -> Any:
    if hasattr(layer, "get_vocabulary"):
        return words_of(layer)
    config = layer.get_config()
    return {name: value for name, value in config.items() if name not in ("name", "trainable", "dtype")}
