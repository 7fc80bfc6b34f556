"""The words of lookup layers and constant lookup tables in the order of their ids, a million in less than a second."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.keras_internals import lookup_layer_of
from hotdelta.logs import event

logger = logging.getLogger(__name__)


def words_of(layer: Any) -> list[bytes] | None:
    """The vocabulary of a Keras layer in the order of ids, with what stands for unknown words.

    None when it cannot tell: a layer of the user's own may raise anything before it has one.
    """
    try:
        return _to_bytes(_vocabulary(layer))
    except Exception as error:  # noqa: BLE001
        name = getattr(layer, "name", type(layer).__name__)
        event(
            logger,
            logging.WARNING,
            "a vocabulary cannot be read; it is not checked",
            layer=name,
            reason=error,
        )
        return None


def _vocabulary(layer: Any) -> Iterable[Any]:
    """What `get_vocabulary` returns, which takes several times as long for it."""
    layers = tf.keras.layers
    if type(layer) is layers.TextVectorization:
        layer = lookup_layer_of(layer)
    is_stock = type(layer) in (layers.StringLookup, layers.IntegerLookup)
    if not is_stock or layer.invert or not layer.lookup_table.size():
        return layer.get_vocabulary()  # type: ignore[no-any-return]
    known, ids = layer.lookup_table.export()
    words = np.full(layer.vocabulary_size(), layer.oov_token, object)
    words[ids.numpy()] = known.numpy()
    if layer.mask_token is not None and layer.output_mode == "int":
        words[0] = layer.mask_token
    return words.tolist()  # type: ignore[no-any-return]


def read_ids(table: tf.lookup.StaticHashTable) -> list[bytes] | None:
    """None for what looks up no ids: words of ids, prices, or categories, which many items share."""
    if not table.value_dtype.is_integer:
        return None
    values = table.export()[1].numpy()
    return read_table(table) if len(np.unique(values)) == len(values) else None


def read_table(table: Any) -> list[bytes]:
    """Each id with its word: not every number need be an id."""
    words, ids = (tensor.numpy() for tensor in table.export())
    pairs = sorted(zip(ids.tolist(), words.tolist(), strict=True))
    return [b" ".join(_to_bytes(pair)) for pair in pairs]


def _to_bytes(words: Iterable[Any]) -> list[bytes]:
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]
