from __future__ import annotations

import json

import numpy as np
import pytest

from hotdelta.errors import PredictionError
from server.protocols.tensorflow_serving.answer import write_answer


def test_strings_of_outputs_that_are_called_bytes_are_always_encoded() -> None:
    outputs = {"raw_bytes": np.array([b"a"], object), "text": np.array([b"a"], object)}

    answer = json.loads(write_answer(outputs, rows=1))

    assert answer == {"predictions": [{"raw_bytes": {"b64": "YQ=="}, "text": "a"}]}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_beside_nan_every_finite_float_is_written_as_without_it(dtype: str) -> None:
    values = np.array([[0.1, 1e-3], [3.0, -2.5]], dtype)
    with_nan = np.concatenate([values, [[np.nan, np.inf]]]).astype(dtype)

    plain = write_answer({"score": values}, rows=None).decode()
    answer = write_answer({"score": with_nan}, rows=None).decode()

    assert answer == plain.replace("]]", "],[NaN,Infinity]]")
    assert write_answer({"score": np.array(np.nan, dtype)}, rows=None) == b'{"outputs":NaN}'


def test_beside_nan_integers_booleans_and_texts_keep_their_kind() -> None:
    outputs = {
        "a": np.array([np.nan], np.float32),
        "b": np.array([2**60]),
        "c": np.array([True]),
        "d": np.array([b"x"], object),
    }

    assert write_answer(outputs, rows=1) == b'{"predictions":[{"a":NaN,"b":%d,"c":true,"d":"x"}]}' % 2**60


def test_what_json_cannot_write_is_the_fault_of_the_model() -> None:
    with pytest.raises(PredictionError, match="complex64"):
        write_answer({"score": np.array([1j], np.complex64)}, rows=1)
