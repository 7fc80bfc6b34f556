"""Rows are taken in ranges of bounded size, and compared by their bits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain.bundle.row_memory import byte_rows, differing_rows, is_same_bits, row_ranges, rows_within
from hotdelta.train.tables.row_values import is_other_row


@given(rows=st.integers(0, 50), max_bytes=st.integers(0, 100), row_bytes=st.integers(0, 30))
def test_ranges_cover_every_row_once_within_the_bytes(rows: int, max_bytes: int, row_bytes: int) -> None:
    count = rows_within(max_bytes, row_bytes)
    ranges = list(row_ranges(rows, count))
    assert [row for first, end in ranges for row in range(first, end)] == list(range(rows))
    assert count == 1 or count * row_bytes <= max_bytes


@settings(deadline=None)
@given(
    dtype=st.sampled_from(
        ["float16", "bfloat16", "float32", "float64", "complex128", "int8", "uint64", "bool"]
    ),
    shape=st.tuples(st.integers(1, 5), st.integers(0, 5)),
    seed=st.integers(0, 2**31),
)
def test_rows_differ_where_their_bytes_do_in_memory_and_in_a_graph(
    dtype: str, shape: tuple[int, int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
    size = np.dtype(numpy_dtype).itemsize
    limit = 2 if dtype == "bool" else 256
    one = random.integers(0, limit, (shape[0], shape[1] * size), np.uint8)
    other = np.where(random.random(one.shape) < 0.1, random.integers(0, limit, one.shape, np.uint8), one)
    expected = [left.tobytes() != right.tobytes() for left, right in zip(one, other, strict=True)]

    left, right = (np.ascontiguousarray(bits).view(numpy_dtype).reshape(shape) for bits in (one, other))
    assert differing_rows(left, right).tolist() == expected
    assert is_other_row(tf.constant(left), tf.constant(right)).numpy().tolist() == expected
    assert is_same_bits(left, right) is not any(expected)


@pytest.mark.parametrize("one, other, is_other", [(np.nan, np.nan, False), (0.0, -0.0, True)])
def test_nan_equals_itself_and_a_negative_zero_is_another_value(
    one: float, other: float, is_other: bool
) -> None:
    left, right = np.full((2, 3), one, np.float32), np.full((2, 3), other, np.float32)
    assert differing_rows(left, right).tolist() == [is_other, is_other]
    assert is_other_row(tf.constant(left), tf.constant(right)).numpy().tolist() == [is_other, is_other]


def test_rows_without_values_are_lines_of_no_bytes_and_equal() -> None:
    nothing = np.empty((3, 0), np.float32)
    assert byte_rows(nothing).shape == (3, 0)
    assert differing_rows(nothing, nothing).tolist() == [False] * 3
