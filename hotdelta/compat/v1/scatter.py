"""tf.scatter_*: as in TensorFlow 1, except that what they return comes after the recorder, not only after the write.

On a reference variable they return the writing operation's own output; whoever fetched that would run the write
without the recorder, which is added later. So the output passes through one more operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.embedding.variable import EmbeddingVariable
from hotdelta.tensorflow_internals import is_reference

v1 = tf.compat.v1


def _followed(scatter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scatter)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        ref = args[0] if args else kwargs.get("ref")
        if isinstance(ref, EmbeddingVariable):
            ref.write_rows_by_number()
        result = scatter(*args, **kwargs)
        if isinstance(result, tf.Tensor) and is_reference(result):
            return tf.raw_ops.RefIdentity(input=result)
        return result

    return wrapped


scatter_add = _followed(v1.scatter_add)
scatter_div = _followed(v1.scatter_div)
scatter_max = _followed(v1.scatter_max)
scatter_min = _followed(v1.scatter_min)
scatter_mul = _followed(v1.scatter_mul)
scatter_nd_add = _followed(v1.scatter_nd_add)
scatter_nd_sub = _followed(v1.scatter_nd_sub)
scatter_nd_update = _followed(v1.scatter_nd_update)
scatter_sub = _followed(v1.scatter_sub)
scatter_update = _followed(v1.scatter_update)
