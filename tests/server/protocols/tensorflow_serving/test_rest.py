"""TensorFlow Serving's REST API in front of a fake model, as its clients know it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotdelta.chain import Position
from hotdelta.errors import ConfigurationError
from server.model_settings import ModelSettings
from tests.server.conftest import Serve
from tests.server.fake_model import SIGNATURES, FakeModel

PREDICT = "/v1/models/fake:predict"


@pytest.mark.parametrize(
    "body, answer",
    [
        ({"instances": [[1, 2], [3, 4]]}, {"predictions": [3.0, 7.0]}),
        ({"instances": [{"ids": [1, 2]}]}, {"predictions": [3.0]}),
        ({"inputs": [[1, 2]]}, {"outputs": [3.0]}),
        ({"inputs": {"ids": [[1, 2]]}}, {"outputs": [3.0]}),
        ({"inputs": [[1, 2]], "signature_name": "total"}, {"outputs": 3}),
        (
            {"signature_name": "two", "instances": [{"user": 1, "weight": 2}, {"user": 3, "weight": 0.5}]},
            {"predictions": [{"product": 2.0, "user": 1}, {"product": 1.5, "user": 3}]},
        ),
        (
            {"signature_name": "two", "inputs": {"user": [1, 3], "weight": [2, 0.5]}},
            {"outputs": {"product": [2.0, 1.5], "user": [1, 3]}},
        ),
        (
            {"signature_name": "echo", "instances": ["a", {"b64": "/w=="}]},
            {"predictions": ["a", {"b64": "/w=="}]},
        ),
        ({"instances": [[1, 2]], "batch_hint": 7}, {"predictions": [3.0]}),
    ],
)
def test_rows_and_columns_are_answered_as_its_clients_expect(serve: Serve, body: Any, answer: Any) -> None:
    response = serve().post(PREDICT, json=body)

    assert response.json() == answer
    assert response.headers["X-Model-Version"] == "1.1"


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", None])
@pytest.mark.parametrize("path", [PREDICT, "/V1/Models/fake/Versions/1:PREDICT"])
def test_neither_content_type_nor_case_matter(serve: Serve, path: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}

    response = serve().post(path, content=b'{"instances": [[1, 2]]}', headers=headers)

    assert (response.status_code, response.json()) == (200, {"predictions": [3.0]})


def test_nan_and_infinity_are_read_and_written_as_bare_tokens(serve: Serve) -> None:
    body = b"""{"signature_name": "two", "instances": [
        {"user": 1, "weight": NaN}, {"user": 2, "weight": -Infinity}, {"user": 3, "weight": 0.1}]}"""

    response = serve().post(PREDICT, content=body)

    assert response.text == (
        '{"predictions":[{"product":NaN,"user":1},{"product":-Infinity,"user":2},{"product":0.3,"user":3}]}'
    )
    columns = serve().post(
        PREDICT, content=b'{"signature_name": "two", "inputs": {"user": [2, 1], "weight": [Infinity, 0.1]}}'
    )
    assert columns.text == '{"outputs":{"product":[Infinity,0.1],"user":[2,1]}}'


@pytest.mark.parametrize(
    "path, status, error",
    [
        ("/v1/models/other:predict", 404, "there is no model 'other'. the one that is served here is 'fake'"),
        (
            "/v1/models/fake/versions/2:predict",
            404,
            "there is no version 2 of model 'fake'. version 1 is served",
        ),
        ("/v1/models/fake/labels/prod:predict", 404, "there is no label 'prod'"),
        ("/v1/models/fake/versions/x:predict", 404, "GET / lists the routes"),
        ("/v1/models/fake:classify", 400, "'serving_default' takes no examples"),
        ("/v1/models/fake:stage", 400, ":stage is no method of TensorFlow Serving"),
        ("/v1/models/fake", 405, "GET / lists the routes"),
    ],
)
def test_what_is_not_served_is_named(serve: Serve, path: str, status: int, error: str) -> None:
    response = serve().post(path, json={"instances": [[1, 2]]})

    assert response.status_code == status
    assert error in response.json()["error"]


@pytest.mark.parametrize(
    "body, error",
    [
        ({"instances": [[1, 2]], "inputs": [[1, 2]]}, "both 'inputs' and 'instances'"),
        ({"instances": [[1]]}, "has shape [1, 1]"),
        ({"signature_name": "hotdelta_apply", "instances": [[1, 2]]}, "there is no signature"),
        ({"signature_name": "total", "instances": [[1, 2]]}, "ask with 'inputs' instead"),
    ],
)
def test_bad_requests_are_refused(serve: Serve, body: Any, error: str) -> None:
    response = serve().post(PREDICT, json=body)

    assert response.status_code == 400
    assert error in response.json()["error"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"instances": [NaN', b"[NaN]", b"[" * 100_000 + b"NaN"])
def test_what_is_no_json_object_is_refused(serve: Serve, body: bytes) -> None:
    response = serve().post(PREDICT, content=body)

    assert response.status_code == 400
    assert "the body is" in response.json()["error"]


def test_a_number_that_is_too_large_is_not_taken_for_infinity(serve: Serve) -> None:
    body = b'{"signature_name": "two", "instances": [{"user": 1, "weight": 1e39}]}'

    response = serve().post(PREDICT, content=body)

    assert response.status_code == 400
    assert "holds numbers that do not fit into float32" in response.json()["error"]


def test_a_request_may_ask_for_a_position(serve: Serve) -> None:
    client = serve()

    assert client.post(PREDICT, json={"instances": [[1, 2]], "min_position": "1.1"}).status_code == 200
    late = client.post(PREDICT, json={"instances": [[1, 2]], "min_position": "1.2"})
    assert (late.status_code, late.json()["position"]) == (409, "1.1")


def test_the_status_has_integers_as_strings(serve: Serve) -> None:
    expected = {
        "model_version_status": [
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }
    client = serve()

    assert client.get("/v1/models/fake").json() == expected
    assert client.get("/v1/models/fake/versions/1").json() == expected
    assert client.get("/v1/models/fake/versions/3").status_code == 404
    assert client.get("/v1/models/other").status_code == 404
    assert client.get("/v1/models/fake:predict").status_code == 405


def test_metadata_describe_each_signature(serve: Serve) -> None:
    document = serve().get("/v1/models/fake/metadata").json()

    assert document["model_spec"] == {"name": "fake", "signature_name": "", "version": "1"}
    signatures = document["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == set(SIGNATURES)
    assert signatures["serving_default"]["inputs"] == {
        "ids": {
            "dtype": "DT_INT64",
            "tensor_shape": {
                "dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}],
                "unknown_rank": False,
            },
            "name": "serving_default_ids:0",
        }
    }
    assert signatures["two"]["outputs"]["product"]["dtype"] == "DT_FLOAT"
    assert signatures["echo"]["inputs"]["text"]["dtype"] == "DT_STRING"


def test_while_nothing_is_served_all_of_it_says_so(serve: Serve, model: FakeModel) -> None:
    model.position = None
    client = serve()

    for response in (client.post(PREDICT, json={}), client.get("/v1/models/fake")):
        assert response.status_code == 503
        assert "no model is served yet" in response.json()["error"]
    model.position = Position(1, 2)
    assert client.get("/v1/models/fake").status_code == 200


def test_the_model_can_be_given_another_name(serve: Serve) -> None:
    client = serve(model_name="ranker")

    assert client.post("/v1/models/ranker:predict", json={"instances": [[1, 2]]}).status_code == 200
    assert client.post(PREDICT, json={"instances": [[1, 2]]}).status_code == 404
    assert client.get("/v1/models/ranker/metadata").json()["model_spec"]["name"] == "ranker"
    for name in ("", "a/b", "a:b"):
        with pytest.raises(ConfigurationError, match="--model-name is"):
            ModelSettings(Path("export"), model_name=name)


def test_bodies_are_limited_as_everywhere(serve: Serve) -> None:
    response = serve(max_body_bytes=1024).post(PREDICT, content=json.dumps({"instances": [[1, 2]] * 500}))

    assert response.status_code == 413
