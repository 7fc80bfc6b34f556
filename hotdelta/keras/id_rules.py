"""By which rules the layers of a Keras model make ids: vocabularies, hashes, buckets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import keras
import numpy as np

from hotdelta.keras import structure
from hotdelta.train.id_rules import IdRule, find_rules, words_of

_DECIDING = {
    keras.layers.Hashing: ("num_bins", "salt", "mask_value"),
    keras.layers.HashedCrossing: ("num_bins",),
    keras.layers.Discretization: ("bin_boundaries",),
}


def model_id_rules(model: keras.Model) -> dict[str, IdRule]:
    """By the keys of the layers. It takes seconds for a million words."""
    return find_rules((key, partial(_read, layer)) for key, layer in _layers_with_rules(model))


def rule_sources(model: keras.Model) -> dict[str, Any]:
    """What each rule is read from, by the keys of the layers: while it is the same object the rule is the same."""
    return {key: _source(layer) for key, layer in _layers_with_rules(model)}


def _layers_with_rules(model: keras.Model) -> Iterator[tuple[str, Any]]:
    for key, layer in structure._walk_layers(model, "", set()):
        if hasattr(layer, "get_vocabulary") or isinstance(layer, tuple(_DECIDING)):
            yield key, layer


def _read(layer: Any) -> Any:
    if hasattr(layer, "get_vocabulary"):
        return words_of(layer)
    if getattr(layer, "bin_boundaries", ()) is None:
        return None
    (deciding,) = (fields for kind, fields in _DECIDING.items() if isinstance(layer, kind))
    return {name: np.asarray(getattr(layer, name)).tolist() for name in deciding}


def _source(layer: Any) -> Any:
    """A layer makes a new table for a new vocabulary. Of a layer of the user's own that is not known."""
    if hasattr(layer, "get_vocabulary"):
        return getattr(getattr(layer, "_lookup_layer", layer), "lookup_table", object())
    return getattr(layer, "bin_boundaries", None)
