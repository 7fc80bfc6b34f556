"""tf.nn.embedding_lookup and its relatives on embedding variables; what else they are given goes to TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.embedding.variable import LookedUpByKeys
from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.user_words import COMBINERS

v1 = tf.compat.v1

_SUMS: dict[str, Callable[..., tf.Tensor]] = {
    "sum": tf.sparse.segment_sum,
    "mean": tf.sparse.segment_mean,
    "sqrtn": tf.sparse.segment_sqrt_n,
}


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Any:
    variable = _embedding_variable(params)
    if variable is None:
        return v1.nn.embedding_lookup(params, ids, partition_strategy, name, validate_indices, max_norm)
    with v1.name_scope(name, "embedding_lookup"):
        return _clipped(variable.look_up(ids), max_norm)


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    **kwargs: Any,
) -> Any:
    variable = _embedding_variable(params)
    if variable is None:
        return v1.nn.embedding_lookup_sparse(
            params, sp_ids, sp_weights, partition_strategy, name, combiner, max_norm, **kwargs
        )
    with v1.name_scope(name, "embedding_lookup_sparse"):
        rows = sp_ids.indices[:, 0]
        return _combined(variable, sp_ids.values, rows, sp_weights, combiner or "mean", max_norm, None)


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: Any = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
    **kwargs: Any,
) -> Any:
    """Every id is a key, also a negative one. An example without ids gets zeros, or the row of `default_id`."""
    variable = _embedding_variable(embedding_weights)
    if variable is None:
        return v1.nn.safe_embedding_lookup_sparse(
            embedding_weights,
            sparse_ids,
            sparse_weights,
            combiner,
            default_id,
            name,
            partition_strategy,
            max_norm,
            **kwargs,
        )
    with v1.name_scope(name, "embedding_lookup"):
        shape = sparse_ids.dense_shape
        examples = tf.reduce_prod(shape[:-1])
        flat = tf.sparse.reshape(sparse_ids, tf.stack([examples, shape[-1]]))
        weights = (
            None
            if sparse_weights is None
            else tf.SparseTensor(flat.indices, sparse_weights.values, flat.dense_shape)
        )
        if weights is not None and combiner != "sum":
            # As TensorFlow: what weighs nothing is no part of a mean.
            has_weight = weights.values > 0
            flat, weights = tf.sparse.retain(flat, has_weight), tf.sparse.retain(weights, has_weight)
        if default_id is not None:
            flat, _ = tf.sparse.fill_empty_rows(flat, tf.constant(default_id, flat.dtype))
            if weights is not None:
                weights, _ = tf.sparse.fill_empty_rows(weights, tf.constant(1, weights.dtype))
        rows = flat.indices[:, 0]
        found = _combined(variable, flat.values, rows, weights, combiner, max_norm, examples)
        whole = tf.reshape(found, tf.concat([shape[:-1], tf.shape(found, out_type=tf.int64)[1:]], axis=0))
        rank = sparse_ids.shape.rank
        if rank is not None:
            whole.set_shape([*sparse_ids.shape.as_list()[:-1], variable.width])
        return whole


def _combined(
    variable: LookedUpByKeys,
    ids: tf.Tensor,
    examples: tf.Tensor,
    weights: Any,
    combiner: str,
    max_norm: float | None,
    count: tf.Tensor | None,
) -> tf.Tensor:
    """The rows of each example together. `count`: of examples; None: up to the last that has an id."""
    if combiner not in COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(COMBINERS)}, and is {combiner!r}")
    unique, positions = variable.look_up_unique(ids)
    unique = _clipped(unique, max_norm)
    if weights is None:
        return _SUMS[combiner](unique, positions, examples, num_segments=count)
    weights = tf.cast(weights.values, unique.dtype)[:, tf.newaxis]
    if count is None:
        count = tf.reduce_max(tf.concat([examples, tf.constant([-1], examples.dtype)], axis=0)) + 1
    total = tf.math.unsorted_segment_sum(tf.gather(unique, positions) * weights, examples, count)
    if combiner == "sum":
        return total
    power = weights if combiner == "mean" else tf.square(weights)
    divisor = tf.math.unsorted_segment_sum(power, examples, count)
    return tf.math.divide_no_nan(total, divisor if combiner == "mean" else tf.sqrt(divisor))


def _clipped(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[-1])


def _embedding_variable(params: Any) -> LookedUpByKeys | None:
    """What the caller means, if it is one: lists of one are usual."""
    given = params if isinstance(params, list | tuple) else [params]
    found = [each for each in given if isinstance(each, LookedUpByKeys)]
    if not found:
        return None
    if len(given) > 1:
        raise ConfigurationError(
            f"{len(given)} variables are looked up together, and {found[0].full_name} is an embedding variable",
            hint="look them up one by one, and what a partitioner has cut as what tf.get_embedding_variable returned",
        )
    return found[0]
