"""While a model is traced for serving, its stock Embedding layers gather rows instead of reading their table.

The layer of Keras reads its whole variable and gathers from what it read; once a row was updated in place, each such
read copies the table. Normalization layers read their variables, too, where Keras has constants made of them. Watching
the layers also tells what the model's inputs are, where Keras recorded only shapes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hotdelta.keras_internals import table_of
from hotdelta.tensorflow_internals import name_of_input
from hotdelta.train.model.optimizer_slots import raw

_guard_layer_classes = threading.Lock()
_PASSES_IDS_ON = frozenset({"Cast", "Identity", "Reshape", "ExpandDims", "Squeeze"})
# What a layer must be fed with; None where several dtypes would do and give different answers.
_FED_WITH = {
    keras.layers.Embedding: tf.int64,
    keras.layers.IntegerLookup: tf.int64,
    keras.layers.StringLookup: tf.string,
    keras.layers.TextVectorization: tf.string,
    keras.layers.Hashing: None,
}


class SeenInputs:
    """For each input of the graph that went as it came into a layer of ids or words: what that layer wants."""

    def __init__(self) -> None:
        self.wanted: dict[str, tf.DType | None] = {}

    def record(self, tensor: Any, wanted: tf.DType | None) -> None:
        operation = getattr(tensor, "op", None)
        while operation is not None and operation.type in _PASSES_IDS_ON:
            operation = operation.inputs[0].op
        if operation is not None and operation.type == "Placeholder":
            self.wanted[name_of_input(operation)] = wanted


@contextmanager
def gathering_rows() -> Iterator[SeenInputs]:
    """For this thread, calls of keras.layers.Embedding gather from the resource. Others are not affected."""
    stock_call, stock_normalize = keras.layers.Embedding.call, keras.layers.Normalization.call
    owner = threading.get_ident()
    seen = SeenInputs()

    def call(layer: Any, inputs: Any) -> Any:
        is_plain = not layer.lora_enabled and getattr(layer, "quantization_mode", None) is None
        if threading.get_ident() != owner or not is_plain or not isinstance(inputs, tf.Tensor):
            return stock_call(layer, inputs)
        return _gather(layer, inputs)

    def normalize(layer: Any, inputs: Any) -> Any:
        if threading.get_ident() != owner:
            return stock_normalize(layer, inputs)
        constants = layer.mean, layer.variance
        layer.finalize_state()
        try:
            return stock_normalize(layer, inputs)
        finally:
            layer.mean, layer.variance = constants

    with _guard_layer_classes:
        keras.layers.Embedding.call = call
        keras.layers.Normalization.call = normalize
        for layer_class, wanted in _FED_WITH.items():
            layer_class.__call__ = _observed(seen, wanted, owner)
        try:
            yield seen
        finally:
            keras.layers.Embedding.call = stock_call
            keras.layers.Normalization.call = stock_normalize
            for layer_class in _FED_WITH:
                del layer_class.__call__


def _observed(seen: SeenInputs, wanted: tf.DType | None, owner: int) -> Any:
    def observed_call(layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == owner:
            seen.record(inputs, wanted)
        return keras.layers.Layer.__call__(layer, inputs, *args, **kwargs)

    return observed_call


def _gather(layer: Any, ids: tf.Tensor) -> tf.Tensor:
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32)
    return tf.cast(tf.gather(raw(table_of(layer)), ids), layer.compute_dtype)
