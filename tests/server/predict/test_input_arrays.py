from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotdelta.chain import TensorSpec
from hotdelta.errors import RequestError
from server.predict.input_arrays import to_array


def tensor(dtype: str, *shape: int | None) -> TensorSpec:
    return TensorSpec("x", shape, dtype)


@pytest.mark.parametrize(
    "dtype, value",
    [
        ("int32", [1, 2]),
        ("int64", [1, 2**62]),
        ("uint64", [2**64 - 1, 0]),
        ("uint8", [0, 255]),
        ("bool", [True, False]),
        ("float16", [1, 2]),
        ("float32", [1, 2.5]),
        ("float64", [0.1, 1e300]),
    ],
)
def test_values_that_fit_keep_their_value_and_get_the_dtype_of_the_input(
    dtype: str, value: list[Any]
) -> None:
    array = to_array(tensor(dtype, None), value)

    assert array.dtype == np.dtype(dtype)
    assert array.tolist() == value


@pytest.mark.parametrize(
    "dtype, value, problem",
    [
        ("int64", [1.0], "holds floats, the signature wants int64"),
        ("int64", [1, True], "holds booleans"),
        ("int64", ["1"], "holds strings"),
        ("int64", [None], "holds null"),
        ("float32", [True], "holds booleans"),
        ("float32", [{"b64": ""}], "holds objects"),
        ("bool", [1], "holds integers, the signature wants bool"),
        ("int32", [2**31], "do not fit into int32"),
        ("int64", [2**63], "do not fit into int64"),
        ("uint8", [-1], "do not fit into uint8"),
        ("float32", [1e39], "do not fit into float32"),
        ("string", [1], "holds integers, the signature wants strings"),
        ("string", [{"bytes": ""}], 'not {"b64": "..."}'),
        ("string", [{"b64": "?"}], "not base64"),
        ("complex64", [1], "cannot be given as JSON"),
        ("resource", [1], "cannot be given as JSON"),
    ],
)
def test_values_of_a_wrong_type_are_refused_by_name(dtype: str, value: list[Any], problem: str) -> None:
    with pytest.raises(RequestError) as raised:
        to_array(tensor(dtype, None), value)

    assert str(raised.value).startswith("input 'x' ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("dtype, leaf", [("int64", 1), ("string", "a")])
@pytest.mark.parametrize(
    "shape", ["[[a], [a, a]]", "[[a, a], [a]]", "[[a], a]", "[[[a]], [a]]", "[[a], [[a]]]", "[[], [a]]"]
)
def test_ragged_rows_are_refused(dtype: str, leaf: object, shape: str) -> None:
    value = eval(shape, {"a": leaf})  # noqa: S307 - the shapes above

    with pytest.raises(RequestError, match="ragged"):
        to_array(tensor(dtype, None, None), value)


def test_ragged_rows_are_told_how_long_they_are() -> None:
    for value, shown in (
        ([[1, 2], [3]], "one has 2 values, another 1"),
        ([[[1]], [[2], [3]]], "1 values, another 2"),
    ):
        with pytest.raises(RequestError, match=f"its rows have different lengths, .*{shown}"):
            to_array(tensor("int64", None, None), value)


@pytest.mark.parametrize(
    "value, shown", [([1, 2], "[2]"), (1, "[]"), ([[1]], "[1, 1]"), ([[[1, 2]]], "[1, 1, 2]")]
)
def test_a_wrong_shape_is_refused_with_both_shapes(value: Any, shown: str) -> None:
    with pytest.raises(RequestError) as raised:
        to_array(tensor("int64", None, 2), value)

    assert str(raised.value) == f"input 'x' has shape {shown}, the signature wants [any, 2]"


def test_a_value_nested_too_deep_is_refused() -> None:
    value: Any = 1
    for _ in range(1000):
        value = [value]

    with pytest.raises(RequestError, match="nested more than"):
        to_array(tensor("int64", None), value)


def test_strings_and_bytes_become_bytes() -> None:
    array = to_array(tensor("string", None), ["ü", {"b64": "AP8="}])

    assert array.dtype == object
    assert array.tolist() == ["ü".encode(), b"\x00\xff"]


def test_a_scalar_input_takes_a_scalar() -> None:
    assert to_array(tensor("float32"), 3).shape == ()
    assert to_array(tensor("string"), "a").item() == b"a"
