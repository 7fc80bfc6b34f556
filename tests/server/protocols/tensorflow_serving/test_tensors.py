"""Tensors as messages are those of TensorFlow, both ways, for every dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import TensorSpec
from hotdelta.errors import HotdeltaError, PredictionError
from server.protocols.tensorflow_serving.tensors import to_array, to_message
from server.rpc.messages import kind

MESSAGE = kind("tensorflow.TensorProto")
ARRAYS = [
    np.array([[1.5, -2.5], [np.nan, np.inf]], dtype)
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64, np.complex128)
]
ARRAYS += [
    np.array([[0, 1], [np.iinfo(dtype).min, np.iinfo(dtype).max]], dtype)
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
]
ARRAYS += [np.array([[True, False]]), np.array([[b"a", b"\xff"]], object)]


def spec_of(array: np.ndarray) -> TensorSpec:
    return TensorSpec("x", None, "string" if array.dtype == object else array.dtype.name)


def same(found: Any, wanted: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert (
        found.tolist() == wanted.tolist() if wanted.dtype == object else found.tobytes() == wanted.tobytes()
    )


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.name)
def test_what_is_written_is_what_tensorflow_reads(array: np.ndarray) -> None:
    for each in (array, array[:1, 0].reshape(()), np.asfortranarray(array)):
        message = tf.make_tensor_proto(0).FromString(to_message("y", each).SerializeToString())
        same(tf.make_ndarray(message), each)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.name)
def test_what_tensorflow_writes_is_read(array: np.ndarray) -> None:
    """As bytes, which it makes of arrays, and in lists."""
    for written in (tf.make_tensor_proto(array), to_message("y", array)):
        message = MESSAGE.FromString(written.SerializeToString())
        same(to_array(spec_of(array), message, max_bytes=1000), array)


@pytest.mark.parametrize(
    "fields, wanted",
    [
        ({"float_val": [1.5]}, [1.5, 1.5, 1.5]),
        ({"float_val": [1.5, 2.5]}, [1.5, 2.5, 2.5]),
        ({}, [0.0, 0.0, 0.0]),
    ],
)
def test_the_last_value_fills_what_is_left(fields: dict[str, Any], wanted: list[float]) -> None:
    message = MESSAGE(dtype="DT_FLOAT", tensor_shape={"dim": [{"size": 3}]}, **fields)

    assert to_array(TensorSpec("x", (None,), "float32"), message, max_bytes=12).tolist() == wanted


@pytest.mark.parametrize(
    "dtype, fields, problem",
    [
        ("float32", {"dtype": "DT_DOUBLE"}, "is DT_DOUBLE, the signature wants DT_FLOAT"),
        ("float32", {"dtype": 77}, "is 77, the signature wants DT_FLOAT"),
        ("float32", {"tensor_content": b"123"}, "has 3 bytes, its shape needs 8"),
        ("float32", {"float_val": [1, 2, 3]}, "has 3 values, its shape needs 2"),
        ("float32", {"tensor_shape": {"unknown_rank": True}}, "does not say its shape"),
        ("float32", {"tensor_shape": {"dim": [{"size": -1}]}}, "has the shape [-1], which no array has"),
        ("float32", {"tensor_shape": {"dim": [{"size": 2**40}]}}, "is larger than 100 bytes"),
        ("float32", {"tensor_shape": {"dim": [{"size": 2**62}, {"size": 0}]}}, "which no array has"),
        ("int8", {"dtype": "DT_INT8", "int_val": [300, 1]}, "do not fit into int8"),
        ("float16", {"dtype": "DT_HALF", "half_val": [-1, 70000]}, "do not fit into float16"),
        ("complex64", {"dtype": "DT_COMPLEX64", "scomplex_val": [1, 2, 3]}, "half of a complex number"),
        ("string", {"dtype": "DT_STRING", "tensor_content": b"12"}, "send them in string_val"),
        ("qint8", {"dtype": 11}, "cannot be given as a tensor"),
    ],
)
def test_a_tensor_that_is_not_what_it_says_is_refused(
    dtype: str, fields: dict[str, Any], problem: str
) -> None:
    shape = {"dim": [{"size": 2}]}
    message = MESSAGE(**{"dtype": "DT_FLOAT", "tensor_shape": shape, **fields})

    with pytest.raises(HotdeltaError) as refused:
        to_array(TensorSpec("x", None, dtype), message, max_bytes=100)

    assert problem in str(refused.value)


def test_what_no_tensor_can_hold_is_a_fault_of_the_model() -> None:
    with pytest.raises(PredictionError):
        to_message("y", np.array(["2026"], "datetime64[Y]"))
