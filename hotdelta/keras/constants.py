"""Layers that keep what they computed from their variables, which nobody tells them were loaded."""

from __future__ import annotations

import keras

from hotdelta.keras.training_calls import remake_training_function
from hotdelta.keras_internals import all_layers, remake_other_functions, training_function


def compute_again(model: keras.Model) -> None:
    """After a load: what is normalized is normalized by the mean and variance that were loaded."""
    layers = all_layers(model)
    found = [layer for layer in layers if isinstance(layer, keras.layers.Normalization)]
    for layer in found:
        layer.finalize_state()
    if found:
        for inner in layers:
            if isinstance(inner, keras.Model):
                _trace_again(inner)


def _trace_again(model: keras.Model) -> None:
    """What Keras has traced goes on with the constants of then. Not None: it may be in the middle of a fit."""
    if training_function(model) is not None:
        remake_training_function(model)
    remake_other_functions(model)
