"""By which rules the layers of a Keras model make ids: vocabularies, hashes, buckets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import keras
import numpy as np

from hotdelta.keras.model import structure
from hotdelta.keras_internals import lookup_layer_of
from hotdelta.train.model.id_rules import IdRule, find_rules
from hotdelta.train.model.vocabularies import words_of

_DECIDING = {
    keras.layers.Hashing: ("num_bins", "salt", "mask_value"),
    keras.layers.HashedCrossing: ("num_bins",),
    keras.layers.Discretization: ("bin_boundaries",),
}


def model_id_rules(model: keras.Model) -> dict[str, IdRule]:
    """By the keys of the layers."""
    return find_rules((key, partial(_read, layer)) for key, layer in _layers_with_rules(model))


class RuleWatch:
    """Whether a layer of a model got another vocabulary since. To ask costs a microsecond.

    `is_blind`: it has a layer of the user's own, whose words must be read to know.
    """

    def __init__(self, model: keras.Model) -> None:
        layers = [layer for _, layer in _layers_with_rules(model)]
        self._sources = [(layer, _source(layer)) for layer in layers]
        self.is_blind = any(_is_opaque(layer) for layer in layers)

    @property
    def has_changed(self) -> bool:
        return any(_source(layer) is not source for layer, source in self._sources)


def _layers_with_rules(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """A TextVectorization comes before the lookup layer inside of it, which is not read a second time."""
    inner = None
    for key, layer in structure.walk_layers(model, "", set()):
        if layer is not inner and (hasattr(layer, "get_vocabulary") or isinstance(layer, tuple(_DECIDING))):
            yield key, layer
        if isinstance(layer, keras.layers.TextVectorization):
            inner = lookup_layer_of(layer)


def _read(layer: Any) -> Any:
    if hasattr(layer, "get_vocabulary"):
        return words_of(layer)
    if getattr(layer, "bin_boundaries", ()) is None:
        return None
    (deciding,) = (fields for kind, fields in _DECIDING.items() if isinstance(layer, kind))
    return {name: np.asarray(getattr(layer, name)).tolist() for name in deciding}


def _source(layer: Any) -> Any:
    """What the rule is read from: a layer makes a new table for a new vocabulary. None where there is no such thing."""
    table = getattr(lookup_layer_of(layer), "lookup_table", None)
    return getattr(layer, "bin_boundaries", None) if table is None else table


def _is_opaque(layer: Any) -> bool:
    return hasattr(layer, "get_vocabulary") and _source(layer) is None
