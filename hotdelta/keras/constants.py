"""Layers that keep what they computed from their variables, which nobody tells them were loaded."""

from __future__ import annotations

import keras


def compute_again(model: keras.Model) -> None:
    """After a load: what is normalized is normalized by the mean and variance that were loaded."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
