"""Bodies read as arrays mean what they mean when they are read as JSON: the same feeds, or the same refusal."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import HotdeltaError
from server.predict.number_bodies import document_with_arrays
from server.predict.request import PredictRequest, parse_json, read_request, request_of, require_object
from server.protocols.open_inference.request import read_request as read_inference
from server.protocols.tensorflow_serving.request import read_request as read_serving

DTYPES = ("int64", "int32", "uint8", "uint64", "float64", "float32", "float16", "bool", "string")
SIGNATURES = {
    **{dtype: SignatureSpec((TensorSpec("x", None, dtype),), ()) for dtype in DTYPES},
    "rows": SignatureSpec((TensorSpec("x", (None, 8), "int64"),), ()),
    "two": SignatureSpec((TensorSpec("x", None, "int64"), TensorSpec("y", None, "float32")), ()),
}
ROWS = [[row * 8 + column for column in range(8)] for row in range(64)]

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([True, None, "a", {}, [], [1], [[1, 2]], {"b64": "AA=="}, -0.0, 2**63, 2**64 - 1]),
)


@st.composite
def lists(draw: st.DrawFn) -> Any:
    """Nested ones of integers or floats, with a few places that are something else, or not there."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    values = np.arange(np.prod(shape)).reshape(shape)
    found = (values * draw(st.sampled_from([1, 1, 0.5]))).tolist()
    for _ in range(draw(st.integers(0, 2))):
        place: Any = found
        while isinstance(place[0], list) and place[0] and draw(st.booleans()):
            place = place[draw(st.integers(0, len(place) - 1))]
            if not isinstance(place, list) or not place:
                break
        else:
            number = draw(st.integers(0, len(place) - 1))
            if draw(st.booleans()):
                # A copy: the next change may be in it.
                place[number] = copy.deepcopy(draw(numbers))
            elif len(place) > 1:
                del place[number]
    return found


def padded(document: Any) -> bytes:
    """Long enough to be looked at."""
    text = json.dumps(document).encode()
    return text[:-1] + b" " * 1024 + text[-1:]


def as_json(body: bytes) -> PredictRequest:
    """As it is read without arrays."""
    return request_of(require_object(parse_json(body)), SIGNATURES, max_wait_ms=0)


def said(read: Any, body: bytes) -> Any:
    try:
        asked = read(body)
    except HotdeltaError as error:
        return str(error)
    feeds = {name: (array.dtype, array.shape, array.tobytes()) for name, array in asked.feeds.items()}
    if any(array.dtype == object for array in asked.feeds.values()):
        feeds = {name: array.tolist() for name, array in asked.feeds.items()}
    return asked.signature, asked.rows, feeds


@given(
    lists(),
    lists(),
    st.sampled_from([*DTYPES, "rows", "two"]),
    st.sampled_from(["instances", "inputs", "names"]),
)
def test_what_is_read_as_arrays_is_what_is_read_as_json(x: Any, y: Any, signature: str, form: str) -> None:
    members = (
        {"inputs": {"x": x, "y": y} if signature == "two" else {"x": x}} if form == "names" else {form: x}
    )
    body = padded({"signature_name": signature, **members})
    assert said(lambda body: read_request(body, SIGNATURES, max_wait_ms=0), body) == said(as_json, body)


def test_long_lists_of_numbers_are_arrays() -> None:
    document = document_with_arrays(padded({"instances": ROWS, "signature_name": "rows", "wait_ms": 5}))
    assert document is not None
    assert document.pop("instances").tolist() == ROWS
    assert document == {"signature_name": "rows", "wait_ms": 5}
    halves = (np.array(ROWS) / 2).tolist()
    document = document_with_arrays(padded({"inputs": {"x": ROWS, "y": halves}, "few": [[1], [2]]}))
    assert document is not None
    assert (document["inputs"]["x"].dtype, document["inputs"]["y"].dtype) == (np.int64, np.float64)
    assert document["inputs"]["y"].tolist() == halves
    assert document["few"] == [[1], [2]]


@pytest.mark.parametrize(
    "lists",
    [
        [*ROWS[:-1], ROWS[-1][:-1]],
        [ROWS[0][:7], [*ROWS[1], 0], *ROWS[2:]],
        # As many values and rows as if it had a shape.
        [[0, [1], *ROWS[0][2:]], *ROWS[1:]],
        [[0, [1, 2], [], *ROWS[0][4:], 3], *ROWS[1:]],
        [*ROWS[:-1], 8],
        [8, *ROWS[1:]],
        [[*ROWS[0][:7], "7"], *ROWS[1:]],
        [[*ROWS[0][:7], None], *ROWS[1:]],
        [[*ROWS[0][:7], True], *ROWS[1:]],
        [[*ROWS[0][:7], 2**63], *ROWS[1:]],
        [[*ROWS[0][:7], 10**30], *ROWS[1:]],
    ],
)
def test_lists_that_are_no_array_are_left_to_who_says_why(lists: Any) -> None:
    assert document_with_arrays(padded({"instances": lists})) is None


def test_a_name_that_is_there_twice_is_left_to_who_decides_which_counts() -> None:
    rows = json.dumps(ROWS).encode()
    assert document_with_arrays(b'{"instances":%b,"instances":%b}' % (rows, rows)) is None


@pytest.mark.parametrize("name", ["\0", "instances\0", "\0instances", "insta\0nces"])
def test_a_name_that_holds_a_null_is_left_to_who_reads_all_of_it(name: str) -> None:
    body = padded({"instances": ROWS, name: [[2] * 8] * 64, "more": {name: 1}})
    assert document_with_arrays(body) is None
    asked = read_serving(body, SIGNATURES | {"serving_default": SIGNATURES["rows"]}, max_wait_ms=0)
    assert asked.feeds["x"].tolist() == ROWS


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf%b", b"%b,", b"[%b]", b"%b%b", b'{"a":"\\ud800",%b'])
def test_what_is_no_json_object_is_refused_as_ever(body: bytes) -> None:
    text = padded({"instances": ROWS})
    broken = body.replace(b"%b", text) if b"\\u" not in body else body.replace(b"%b", text[1:])
    assert said(lambda body: read_request(body, SIGNATURES, max_wait_ms=0), broken) == said(as_json, broken)
    assert document_with_arrays(broken) is None


def test_clients_of_tensorflow_serving_may_write_nan_among_many_numbers() -> None:
    text = padded({"signature_name": "float32", "instances": [[0.5] * 8] * 16}).replace(b"0.5", b"NaN", 1)
    asked = read_serving(text, SIGNATURES, max_wait_ms=0)
    assert np.isnan(asked.feeds["x"][0, 0])
    assert np.isfinite(asked.feeds["x"]).sum() == 16 * 8 - 1


@pytest.mark.parametrize("data", [ROWS, [value for row in ROWS for value in row]])
def test_inference_requests_have_their_data_flat_or_nested(data: Any) -> None:
    item = {"name": "x", "shape": [64, 8], "datatype": "INT64", "data": data}
    document = {"id": "7", "inputs": [item], "parameters": {"signature_name": "rows"}}
    found = document_with_arrays(orjson.dumps(document))
    assert found is not None
    assert isinstance(found["inputs"][0]["data"], np.ndarray)
    asked = read_inference(orjson.dumps(document), json_size=None, signatures=SIGNATURES, max_wait_ms=0)
    assert asked.asked.feeds["x"].tolist() == ROWS
