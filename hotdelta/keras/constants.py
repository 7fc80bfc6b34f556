"""Layers that keep what they computed from their variables, which nobody tells them were loaded."""

from __future__ import annotations

import keras

from hotdelta.keras import fit_hooks


def compute_again(model: keras.Model) -> None:
    """After a load: what is normalized is normalized by the mean and variance that were loaded."""
    layers = model._flatten_layers()
    found = [layer for layer in layers if isinstance(layer, keras.layers.Normalization)]
    for layer in found:
        layer.finalize_state()
    if found:
        for inner in layers:
            if isinstance(inner, keras.Model):
                _trace_again(inner)


def _trace_again(model: keras.Model) -> None:
    """What Keras has traced goes on with the constants of then. Not None: it may be in the middle of a fit."""
    if model.train_function is not None:
        fit_hooks.remake_train_function(model)
    if model.test_function is not None:
        model.make_test_function(force=True)
    if model.predict_function is not None:
        model.make_predict_function(force=True)
