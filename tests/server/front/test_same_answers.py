"""Whatever is asked: behind front-ends the answer is the one that there is without them, byte by byte."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import Position
from tests.server.connections import serving
from tests.server.fake_model import FakeModel

Address = tuple[str, int]

LIMITS = {"max_rows": 10, "max_body_bytes": 64 * 1024, "max_wait_ms": 50}
PREDICT, SERVING, INFER = "/predict", "/v1/models/fake:predict", "/v2/models/fake/infer"
IDS = {"name": "ids", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 3, 4]}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Address, Address]]:
    """Two servers of equal models: without front-ends, and with two."""
    with ExitStack() as running:
        without = running.enter_context(serving(FakeModel(Position(3, 5)), **LIMITS))
        yield without, running.enter_context(serving(FakeModel(Position(3, 5)), front_ends=2, **LIMITS))


@pytest.fixture(scope="module")
def both_waiting() -> Iterator[tuple[Address, Address]]:
    """The same before there is a model."""
    with ExitStack() as running:
        without = running.enter_context(serving(FakeModel(None)))
        yield without, running.enter_context(serving(FakeModel(None), front_ends=2))


def written(
    path: str, document: Any = None, *headers: str, body: bytes | None = None, method: str = "POST"
) -> bytes:
    content = json.dumps(document).encode() if body is None else body
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(content)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def chunked(path: str, *chunks: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def answer(address: Address, sent: bytes) -> bytes:
    """All of it, until the server hangs up."""
    with socket.create_connection(address, timeout=60) as connection, connection.makefile("rb") as stream:
        connection.sendall(sent)
        return stream.read()


def binary(data: bytes, *, shape: list[int], json_size: int | None = None) -> bytes:
    described = {
        "name": "ids",
        "datatype": "INT64",
        "shape": shape,
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    size = len(head) if json_size is None else json_size
    return written(INFER, None, f"Inference-Header-Content-Length: {size}", body=head + data)


def rows(count: int) -> dict[str, Any]:
    return {"instances": [[1, 2]] * count}


TWO_IDS = np.array([[1, 2], [3, 4]], "<i8").tobytes()
REQUESTS = {
    "one row": written(PREDICT, rows(1)),
    "rows": written(PREDICT, rows(7)),
    "columns": written(PREDICT, {"inputs": {"ids": [[1, 2]]}}),
    "rows of two inputs": written(
        PREDICT,
        {"signature_name": "two", "instances": [{"user": 1, "weight": 0.5}, {"user": 2, "weight": 3}]},
    ),
    "an output that has no rows": written(PREDICT, {"signature_name": "total", "inputs": [[1, 2]]}),
    "rows of an output that has none": written(PREDICT, {"signature_name": "total", **rows(2)}),
    "texts": written(
        PREDICT, {"signature_name": "echo", "instances": ["", "ä", {"b64": "/wA="}, "longer than that"]}
    ),
    "NaN, which JSON has not": written(PREDICT, body=b'{"instances": [[NaN, 1]]}'),
    "a number that is too large": written(
        PREDICT, {"signature_name": "two", "inputs": {"user": [1], "weight": [1e39]}}
    ),
    "another content type": written(PREDICT, rows(1), "Content-Type: text/plain"),
    "chunked": chunked(PREDICT, b'{"instances"', b": [[1, 2]]}"),
    "a query": written(f"{PREDICT}?x=1", rows(1)),
    "by name": written("/models/fake/predict", rows(1)),
    "by a name that is none": written("/models/a/b/predict", rows(1)),
    "of another model": written("/models/other/predict", rows(1)),
    "no JSON": written(PREDICT, body=b"{"),
    "nothing": written(PREDICT, body=b""),
    "compressed": written(PREDICT, body=b"\x1f\x8b\x08"),
    "no object": written(PREDICT, [1]),
    "an unknown field": written(PREDICT, {**rows(1), "more": 1}),
    "both forms": written(PREDICT, {"instances": [], "inputs": []}),
    "an empty batch": written(PREDICT, rows(0)),
    "ragged": written(PREDICT, {"instances": [[1, 2], [1]]}),
    "another dtype": written(PREDICT, {"instances": [[1.5, 2]]}),
    "another shape": written(PREDICT, {"instances": [[1, 2, 3]]}),
    "no such signature": written(PREDICT, {"signature_name": "stage", **rows(1)}),
    "refused by the model": written(PREDICT, {"instances": [[1, 200]]}),
    "a fault of the model": written(PREDICT, {"signature_name": "broken", **rows(1)}),
    "too many rows": written(PREDICT, rows(11)),
    "too large": written(PREDICT, body=b" " * 70_000),
    "large": written(PREDICT, body=b'{"instances": [[1, 2]]' + b" " * 60_000 + b"}"),
    "a position that is served": written(PREDICT, {**rows(1), "min_position": "3.5"}),
    "a position that is not": written(PREDICT, {**rows(1), "min_position": "3.6"}),
    "a position that does not come": written(PREDICT, {**rows(1), "min_position": "4.1", "wait_ms": 20}),
    "a wait that is too long": written(PREDICT, {**rows(1), "min_position": "4.1", "wait_ms": 51}),
    "a wait for nothing": written(PREDICT, {**rows(1), "wait_ms": 5}),
    "no position": written(PREDICT, {**rows(1), "min_position": 3.5}),
    "serving: rows": written(SERVING, rows(2)),
    "serving: any case": written("/V1/Models/fake:PREDICT", rows(2)),
    "serving: columns": written(SERVING, {"signature_name": "two", "inputs": {"user": [1], "weight": [2]}}),
    "serving: NaN and infinity": written(
        SERVING,
        body=b'{"signature_name": "two", "inputs": {"user": [1, 2, 3], "weight": [NaN, -Infinity, 1]}}',
    ),
    "serving: texts": written(SERVING, {"signature_name": "echo", "inputs": ["a", {"b64": "/w=="}]}),
    "serving: this version": written("/v1/models/fake/versions/1:predict", rows(1)),
    "serving: another version": written("/v1/models/fake/versions/2:predict", rows(1)),
    "serving: a label": written("/v1/models/fake/labels/stable:predict", rows(1)),
    "serving: another model": written("/v1/models/other:predict", rows(1)),
    "serving: another method": written("/v1/models/fake:explain", rows(1)),
    "serving: no method": written("/v1/models/fake", rows(1)),
    "serving: unknown fields": written(SERVING, {**rows(1), "more": 1}),
    "serving: a position that is not": written(SERVING, {**rows(1), "min_position": "9.1"}),
    "serving: examples": written(
        "/v1/models/fake:classify",
        {"signature_name": "classify", "examples": [{"weight": 0.25}, {"weight": 1.0}]},
    ),
    "serving: examples for a number": written(
        "/v1/models/fake:regress", {"signature_name": "regress", "examples": [{"weight": 0.5}]}
    ),
    "serving: no examples": written("/v1/models/fake:classify", rows(1)),
    "inference": written(INFER, {"id": "x", "inputs": [IDS]}),
    "inference: this version": written("/v2/models/fake/versions/1/infer", {"inputs": [IDS]}),
    "inference: another version": written("/v2/models/fake/versions/7/infer", {"inputs": [IDS]}),
    "inference: another model": written("/v2/models/other/infer", {"inputs": [IDS]}),
    "inference: inputs in another order": written(
        INFER,
        {
            "parameters": {"signature_name": "two"},
            "inputs": [
                {"name": "weight", "datatype": "FP32", "shape": [1], "data": [2]},
                {"name": "user", "datatype": "INT64", "shape": [1], "data": [7]},
            ],
        },
    ),
    "inference: another datatype": written(INFER, {"inputs": [{**IDS, "datatype": "FP32"}]}),
    "inference: another shape": written(INFER, {"inputs": [{**IDS, "shape": [4]}]}),
    "inference: a missing input": written(INFER, {"inputs": []}),
    "inference: a position that is not": written(
        INFER, {"inputs": [IDS], "parameters": {"min_position": "9.1"}}
    ),
    "inference: an output that is none": written(INFER, {"inputs": [IDS], "outputs": [{"name": "x"}]}),
    "inference: bytes": binary(TWO_IDS, shape=[2, 2]),
    "inference: too few bytes": binary(TWO_IDS[:8], shape=[2, 2]),
    "inference: more JSON than there is": binary(TWO_IDS, shape=[2, 2], json_size=9999),
    "inference: texts as bytes": written(
        INFER,
        {
            "parameters": {"signature_name": "echo", "binary_data_output": True},
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", ""]}],
        },
    ),
    "the index": written("/v2/repository/index", {}),
    "another method of HTTP": written(PREDICT, method="GET"),
    "a path that is none": written("/nowhere", rows(1)),
    "health": written("/healthz", method="GET"),
    "health without a body": written("/readyz", method="HEAD"),
    "the routes": written("/", method="GET"),
    "the description": written("/openapi.json", method="GET"),
    "a page": written("/dashboard/app.js", method="GET"),
    "the metadata": written("/v1/models/fake/metadata", method="GET"),
    "an order of nobody": written("/model/resume", {}),
    "no HTTP": b"HELLO\r\n\r\n",
    "HTTP/1.0": b"POST /predict HTTP/1.0\r\nContent-Length: 23\r\n\r\n" + b'{"instances": [[1, 2]]}',
    "another encoding": b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
}


@pytest.mark.parametrize("sent", REQUESTS.values(), ids=REQUESTS.keys())
def test_an_answer_is_the_same_byte_by_byte(both: tuple[Address, Address], sent: bytes) -> None:
    without, behind = both

    expected = answer(without, sent)

    assert expected.startswith(b"HTTP/1.1 ")
    assert answer(behind, sent) == expected


def test_all_statuses_are_among_them(both: tuple[Address, Address]) -> None:
    """So that the table above compares what it is there for."""
    statuses = {int(answer(both[0], sent).split()[1]) for sent in REQUESTS.values()}

    assert {200, 400, 403, 404, 405, 409, 413, 500, 501} <= statuses


@pytest.mark.parametrize(
    "name", ["one row", "by name", "serving: rows", "inference", "the index", "of another model", "no JSON"]
)
def test_before_there_is_a_model_answers_are_the_same(
    both_waiting: tuple[Address, Address], name: str
) -> None:
    without, behind = both_waiting

    assert answer(behind, REQUESTS[name]) == answer(without, REQUESTS[name])
