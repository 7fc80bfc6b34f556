from __future__ import annotations

import numpy as np
import orjson
import pytest

from hotdelta.chain import Position
from hotdelta.errors import PredictionError, RequestError
from loader.model.served import Version
from server.predict.answer import write_answer
from server.served_model import Array

VERSION = Version(Position(3, 17), 1010, 1)


def test_columns_come_back_by_name_with_the_version() -> None:
    outputs: dict[str, Array] = {"a": np.array([0.1, 2], np.float32), "b": np.array([[1], [2]], np.int64)}

    answer = orjson.loads(write_answer(outputs, VERSION, rows=None))

    assert answer == {
        "outputs": {"a": [0.1, 2.0], "b": [[1], [2]]},
        "version": {"position": "3.17", "step": 1010},
    }


def test_rows_of_one_output_come_back_without_its_name() -> None:
    answer = orjson.loads(write_answer({"a": np.array([[0.1], [2]], np.float32)}, VERSION, rows=2))

    assert answer["predictions"] == [[0.1], [2.0]]


def test_rows_of_several_outputs_come_back_as_objects() -> None:
    outputs: dict[str, Array] = {
        "a": np.array([0.1, 2], np.float32),
        "b": np.array([[1, 2], [3, 4]], np.int64),
        "c": np.array([b"x", b"y"], object),
    }

    answer = orjson.loads(write_answer(outputs, VERSION, rows=2))

    assert answer["predictions"] == [{"a": 0.1, "b": [1, 2], "c": "x"}, {"a": 2.0, "b": [3, 4], "c": "y"}]


def test_every_float32_comes_back_bit_for_bit() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 10_000, np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]

    answer = orjson.loads(write_answer({"a": values}, VERSION, rows=None))

    assert np.array_equal(
        np.array(answer["outputs"]["a"], np.float32).view(np.uint32), values.view(np.uint32)
    )


def test_what_json_cannot_write_is_null() -> None:
    answer = orjson.loads(write_answer({"a": np.array([np.nan, np.inf, 1], np.float32)}, VERSION, rows=None))

    assert answer["outputs"]["a"] == [None, None, 1.0]


def test_scalars_text_bytes_and_arrays_in_fortran_order_are_written() -> None:
    outputs: dict[str, Array] = {
        "scalar": np.asarray(3),
        "bytes": np.array([b"\xff", "ü".encode()], object),
        "turned": np.arange(4).reshape(2, 2).T,
    }

    answer = orjson.loads(write_answer(outputs, VERSION, rows=None))

    assert answer["outputs"] == {"scalar": 3, "bytes": [{"b64": "/w=="}, "ü"], "turned": [[0, 2], [1, 3]]}


@pytest.mark.parametrize(
    "outputs", [{"a": np.asarray(3)}, {"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.zeros(1)}]
)
def test_outputs_that_are_not_rows_cannot_answer_rows(
    outputs: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]],
) -> None:
    with pytest.raises(RequestError, match=r"do not have one row for each input row.*'inputs' instead"):
        write_answer(outputs, VERSION, rows=2)


def test_complex_numbers_are_refused_rather_than_halved() -> None:
    with pytest.raises(PredictionError, match="complex64, which cannot be written as JSON"):
        write_answer({"z": np.array([1 + 2j], np.complex64)}, VERSION, rows=None)
