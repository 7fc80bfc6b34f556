"""Writes to reference and resource variables in one way: each returns the operation that writes, and reads nothing.

What tf.scatter_update gives back on a resource variable reads the whole of it for whoever takes its value.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.saved_variables import is_resource


def assign(variable: Any, value: tf.Tensor) -> tf.Operation:
    if is_resource(variable):
        return variable.assign(value, read_value=False)
    return tf.compat.v1.assign(variable, value).op


def assign_sub(variable: Any, value: tf.Tensor) -> tf.Operation:
    if is_resource(variable):
        return variable.assign_sub(value, read_value=False)
    return tf.compat.v1.assign_sub(variable, value).op


def write_rows(variable: Any, ids: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
    if is_resource(variable):
        return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)
    return tf.compat.v1.scatter_update(variable, ids, rows).op


def subtract_rows(variable: Any, ids: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
    if is_resource(variable):
        return tf.raw_ops.ResourceScatterSub(resource=variable.handle, indices=ids, updates=rows)
    return tf.compat.v1.scatter_sub(variable, ids, rows).op


def sparse_adagrad(
    variable: Any, accumulator: Any, learning_rate: tf.Tensor, grad: tf.Tensor, ids: tf.Tensor
) -> tf.Operation:
    if is_resource(variable):
        return tf.raw_ops.ResourceSparseApplyAdagrad(
            var=variable.handle, accum=accumulator.handle, lr=learning_rate, grad=grad, indices=ids
        )
    return tf.raw_ops.SparseApplyAdagrad(
        var=variable, accum=accumulator, lr=learning_rate, grad=grad, indices=ids
    ).op
