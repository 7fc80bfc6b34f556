"""`bookmarked`: a batch that carries where its reader goes on after it, so that both are saved together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Bookmarked(NamedTuple):
    """What `bookmarked` makes, an element of a dataset. `bookmark` and `event_time` are lists of one each."""

    batch: Any
    bookmark: Any
    event_time: Any


def bookmarked(batch: Any, bookmark: Any, event_time: Any = 0.0) -> Bookmarked:
    """For a generator, or the function of a `Dataset.map`: the batch, with what is to be saved when it is trained.

    `batch`: what is trained, as `fit` takes it: `(x, y)` or `(x, y, sample_weight)`. `bookmark`: where to go on reading
    after it: a number, a string, or an array of them. However far the reader is ahead, it is saved with the weights
    that this batch led to, and `Resumed.bookmark` has it. `event_time`: of the newest example in the batch, in seconds
    since 1970; it becomes the watermark. 0: not known.
    """
    # Keras takes no arrays without a dimension for the batch.
    return Bookmarked(batch, _with_dimension(bookmark), _with_dimension(event_time))


def _with_dimension(value: Any) -> Any:
    return tf.expand_dims(value, 0) if tf.is_tensor(value) else np.expand_dims(value, 0)


def plain(bookmark: Any) -> Any:
    """A bookmark as JSON can hold it: a number or a string, or lists of them."""
    return _decoded(np.asarray(bookmark).tolist())


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
