"""While a model is traced for serving, its stock Embedding layers gather rows instead of reading their table.

The layer of Keras reads its whole variable and gathers from what it read; once a row was updated in place, each such
read copies the table.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hotdelta.keras.structure import raw

_guard_embedding_class = threading.Lock()
_PASSES_IDS_ON = frozenset({"Cast", "Identity", "Reshape", "ExpandDims", "Squeeze"})


class SeenIds:
    """The names of the graph's inputs that went into embedding layers as they came."""

    def __init__(self) -> None:
        self.input_names: set[str] = set()

    def record(self, ids: Any) -> None:
        operation = getattr(ids, "op", None)
        while operation is not None and operation.type in _PASSES_IDS_ON:
            operation = operation.inputs[0].op
        if operation is not None and operation.type == "Placeholder":
            self.input_names.add(operation.get_attr("_user_specified_name").decode())


@contextmanager
def gathering_rows() -> Iterator[SeenIds]:
    """For this thread, calls of keras.layers.Embedding gather from the resource. Others are not affected."""
    stock_class = keras.layers.Embedding
    stock_call = stock_class.call
    owner = threading.get_ident()
    seen = SeenIds()

    def call(layer: Any, inputs: Any) -> Any:
        is_plain = not layer.lora_enabled and getattr(layer, "quantization_mode", None) is None
        if threading.get_ident() != owner or not is_plain or not isinstance(inputs, tf.Tensor):
            return stock_call(layer, inputs)
        return _gather(layer, inputs)

    def observed_call(layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == owner:
            seen.record(inputs)
        return keras.layers.Layer.__call__(layer, inputs, *args, **kwargs)

    with _guard_embedding_class:
        stock_class.call, stock_class.__call__ = call, observed_call
        try:
            yield seen
        finally:
            stock_class.call = stock_call
            del stock_class.__call__


def _gather(layer: Any, ids: tf.Tensor) -> tf.Tensor:
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32)
    return tf.cast(tf.gather(raw(layer._embeddings), ids), layer.compute_dtype)
