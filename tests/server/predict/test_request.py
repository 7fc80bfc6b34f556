from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from hotdelta.chain import Position, SignatureSpec, TensorSpec
from hotdelta.errors import NotReadyError, RequestError
from server.predict.request import PredictRequest, read_request
from tests.server.fake_model import SIGNATURES


def read(document: Any) -> PredictRequest:
    return read_request(orjson.dumps(document), SIGNATURES, max_wait_ms=1000)


def test_columns_and_rows_of_one_input_are_the_same_feeds() -> None:
    columns = read({"inputs": {"ids": [[1, 2], [3, 4]]}})
    rows = read({"instances": [[1, 2], [3, 4]]})
    objects = read({"instances": [{"ids": [1, 2]}, {"ids": [3, 4]}]})
    bare = read({"inputs": [[1, 2], [3, 4]]})

    for request in (columns, rows, objects, bare):
        assert request.signature == "serving_default"
        assert request.feeds["ids"].tolist() == [[1, 2], [3, 4]]
    assert [request.rows for request in (columns, rows, objects, bare)] == [None, 2, 2, None]


def test_rows_of_several_inputs_are_objects() -> None:
    request = read(
        {"signature_name": "two", "instances": [{"user": 1, "weight": 2}, {"user": 3, "weight": 0.5}]}
    )

    assert request.feeds["user"].tolist() == [1, 3]
    assert request.feeds["weight"].tolist() == [2.0, 0.5]


def test_bytes_in_a_row_are_a_value_and_not_an_object_of_inputs() -> None:
    request = read({"signature_name": "echo", "instances": [{"b64": "AA=="}, "b"]})

    assert request.feeds["text"].tolist() == [b"\x00", b"b"]


def test_an_input_may_be_called_b64() -> None:
    numbers = {"serving_default": SignatureSpec((TensorSpec("b64", (None, 2), "int64"),), ())}
    texts = {"serving_default": SignatureSpec((TensorSpec("b64", (), "string"),), ())}

    for body in (b'{"inputs": {"b64": [[1, 2]]}}', b'{"instances": [{"b64": [1, 2]}]}'):
        assert read_request(body, numbers, max_wait_ms=0).feeds["b64"].tolist() == [[1, 2]]
    for body, expected in ((b'{"inputs": {"b64": "AA=="}}', b"AA=="), (b'{"inputs": "AA=="}', b"AA==")):
        assert read_request(body, texts, max_wait_ms=0).feeds["b64"].item() == expected


@pytest.mark.parametrize(
    "document, problem",
    [
        ([], "not a JSON object"),
        ({}, "neither 'inputs' nor 'instances'"),
        ({"inputs": {}, "instances": []}, "both 'inputs' and 'instances'"),
        ({"inputs": {"ids": [[1, 2]]}, "signature": "a"}, "unknown field 'signature'"),
        ({"inputs": {"id": [[1, 2]]}}, "inputs lacks 'ids'. inputs: ids"),
        ({"inputs": {"ids": [[1, 2]], "b": 1}}, "unknown input 'b'"),
        ({"signature_name": "two", "inputs": [1]}, "'inputs' is not an object. inputs: user, weight"),
        ({"instances": {"ids": [1, 2]}}, "'instances' is not a list"),
        ({"instances": []}, "an empty batch"),
        ({"inputs": {"ids": []}}, "has shape [0]"),
        ({"signature_name": "two", "inputs": {"user": [], "weight": []}}, "'user' is an empty batch"),
        (
            {"signature_name": "two", "instances": [{"user": 1, "weight": 1}, 3]},
            "instances[1] is not an object",
        ),
        ({"signature_name": "two", "instances": [{"user": 1}]}, "instances[0] lacks 'weight'"),
        ({"signature_name": "restore_full", "instances": ["a"]}, "no signature 'restore_full'"),
        ({"signature_name": 3, "instances": [[1, 2]]}, "no signature 3"),
        ({"instances": [[1, 2]], "min_position": "three"}, "min_position: 'three' is not a position"),
        ({"instances": [[1, 2]], "min_position": 3.17}, "min_position is 3.17. write it as a string"),
        ({"instances": [[1, 2]], "min_position": "0.1"}, "out of range"),
        (
            {"instances": [[1, 2]], "min_position": "3." + "1" * 5000},
            f"min_position: '3.{'1' * 62}'... is not a",
        ),
        ({"instances": [[1, 2]], "wait_ms": 10}, "no min_position"),
        ({"instances": [[1, 2]], "min_position": "1.1", "wait_ms": 1001}, "from 0 to 1000"),
        ({"instances": [[1, 2]], "min_position": "1.1", "wait_ms": True}, "wait_ms is True"),
    ],
)
def test_a_malformed_request_is_refused_with_what_is_wrong(document: Any, problem: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(document)

    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "body, problem",
    [
        (b" ", r"the body is empty\. send"),
        (b"{", r"the body is not JSON: .*\. send"),
        (b"\xff", "the body is not JSON"),
        (b'{"inputs": NaN}', "NaN and Infinity cannot be written"),
        (b'{"instances": [Infinity]}', "NaN and Infinity cannot be written"),
        (b"[" * 5000, "the body is not JSON"),
        (gzip.compress(b'{"instances": [[1, 2]]}', mtime=0), "the body is compressed"),
    ],
)
def test_what_is_not_json_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        read_request(body, SIGNATURES, max_wait_ms=0)


def test_a_minimum_position_is_read() -> None:
    request = read({"instances": [[1, 2]], "min_position": "3.17", "wait_ms": 1000})

    assert (request.min_position, request.wait_ms) == (Position(3, 17), 1000)


def test_before_a_model_is_served_every_request_that_is_in_order_is_told_to_wait() -> None:
    with pytest.raises(NotReadyError):
        read_request(b'{"instances": [[1, 2]]}', {}, max_wait_ms=0)
