"""The Open Inference Protocol in front of a fake model: JSON and bytes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from hotdelta.chain import Position
from tests.server.conftest import Serve
from tests.server.fake_model import FakeModel

INFER = "/v2/models/fake/infer"
IDS = {"name": "ids", "shape": [2, 2], "datatype": "INT64", "data": [[1, 2], [3, 4]]}
SCORE = {"name": "score", "datatype": "FP32", "shape": [2], "data": [3.0, 7.0]}


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], [1, 2, 3, 4]])
@pytest.mark.parametrize("path", [INFER, "/v2/models/fake/versions/1/infer"])
def test_tensors_may_be_nested_or_flat(serve: Serve, path: str, data: Any) -> None:
    answer = serve().post(path, json={"id": "7", "inputs": [{**IDS, "data": data}]})

    assert answer.json() == {
        "model_name": "fake",
        "model_version": "1",
        "id": "7",
        "parameters": {"position": "1.1", "step": 10},
        "outputs": [SCORE],
    }
    assert answer.headers["X-Model-Version"] == "1.1"


def test_signature_and_outputs_can_be_chosen(serve: Serve) -> None:
    user = {"name": "user", "shape": [1], "datatype": "INT64", "data": [3]}
    weight = {"name": "weight", "shape": [1], "datatype": "FP32", "data": [2]}
    body = {"inputs": [weight, user], "parameters": {"signature_name": "two"}}
    client = serve()

    both = client.post(INFER, json=body).json()["outputs"]
    one = client.post(INFER, json={**body, "outputs": [{"name": "user"}]}).json()["outputs"]

    assert [output["name"] for output in both] == ["product", "user"]
    assert one == [{"name": "user", "datatype": "INT64", "shape": [1], "data": [3]}]


def infer_with_bytes(client: TestClient, document: Any, data: bytes, **headers: str) -> Any:
    head = json.dumps(document).encode()
    sizes = {"Inference-Header-Content-Length": str(len(head)), **headers}
    return client.post(INFER, content=head + data, headers=sizes)


def test_tensors_may_be_bytes_behind_the_json(serve: Serve) -> None:
    ids = np.array([[1, 2], [3, 4]])
    given = {key: IDS[key] for key in ("name", "shape", "datatype")}
    document = {
        "inputs": [{**given, "parameters": {"binary_data_size": ids.nbytes}}],
        "parameters": {"binary_data_output": True},
    }

    answer = infer_with_bytes(serve(), document, ids.tobytes())

    size = int(answer.headers["Inference-Header-Content-Length"])
    head = json.loads(answer.content[:size])
    assert head["outputs"] == [
        {"name": "score", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    ]
    assert np.frombuffer(answer.content[size:], np.float32).tolist() == [3.0, 7.0]
    assert answer.headers["Content-Type"] == "application/octet-stream"


def test_texts_are_json_strings_or_bytes_with_their_lengths(serve: Serve) -> None:
    text = {"name": "text", "shape": [2], "datatype": "BYTES"}
    body = {"inputs": [{**text, "data": ["a", {"b64": "YmM="}]}], "parameters": {"signature_name": "echo"}}
    client = serve()

    assert client.post(INFER, json=body).json()["outputs"][0]["data"] == ["a", "bc"]
    data = b"\x01\x00\x00\x00\xff\x00\x00\x00\x00"
    body["inputs"] = [{**text, "parameters": {"binary_data_size": len(data)}}]
    refused = infer_with_bytes(client, body, data)
    assert (refused.status_code, "ask for it with binary_data" in refused.json()["error"]) == (400, True)
    body["outputs"] = [{"name": "text", "parameters": {"binary_data": True}}]
    answer = infer_with_bytes(client, body, data)
    assert answer.content[int(answer.headers["Inference-Header-Content-Length"]) :] == data


BYTES_OF_IDS = {
    **{key: IDS[key] for key in ("name", "shape", "datatype")},
    "parameters": {"binary_data_size": 32},
}


@pytest.mark.parametrize(
    "document, data, error",
    [
        ({"inputs": [{**IDS, "datatype": "INT32"}]}, b"", "is INT32, the signature wants INT64"),
        ({"inputs": [{**IDS, "shape": [4]}]}, b"", "has shape [4]"),
        ({"inputs": [{**IDS, "shape": [3, 2]}]}, b"", "do not have its shape [3, 2]"),
        ({"inputs": [{**IDS, "shape": [-1, 2]}]}, b"", "give a list of whole numbers"),
        ({"inputs": [{**IDS, "data": [[1.5, 2], [3, 4]]}]}, b"", "holds floats"),
        ({"inputs": [{**IDS, "name": "other"}]}, b"", "inputs has an unknown name 'other'. inputs: ids"),
        ({"inputs": []}, b"", "input 'ids' is missing"),
        ({"inputs": {}}, b"", "'inputs' is not a list of objects"),
        ({"inputs": [IDS, IDS]}, b"", "is there twice"),
        ({"inputs": [{**IDS, "shape": [0, 2], "data": []}]}, b"", "is an empty batch"),
        ({"inputs": [IDS], "outputs": [{"name": "other"}]}, b"", "outputs has an unknown name 'other'"),
        ({"inputs": [IDS], "parameters": {"signature_name": "hotdelta_apply"}}, b"", "there is no signature"),
        ({"inputs": [IDS], "parameters": {"binary_data_output": 1}}, b"", "write true or false"),
        ({"inputs": [IDS], "id": 7}, b"", "write it as a string"),
        ({"inputs": [IDS], "outputs": [{"name": "score", "parameters": {"classification": 2}}]}, b"", "not taken"),
        ({"inputs": [BYTES_OF_IDS]}, b"\0" * 31, "binary_data_size of input 'ids' is 32, and 31 bytes are left"),
        ({"inputs": [BYTES_OF_IDS]}, b"\0" * 33, "1 bytes behind the JSON belong to no input"),
        ({"inputs": [{**BYTES_OF_IDS, "shape": [1, 2]}]}, b"\0" * 32, "its shape [1, 2] needs 16"),
        ({"inputs": [{**BYTES_OF_IDS, "shape": [2**62, 2]}]}, b"\0" * 32, "which no array has"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(serve: Serve, document: Any, data: bytes, error: str) -> None:
    answer = infer_with_bytes(serve(), document, data)

    assert answer.status_code == 400
    assert error in answer.json()["error"]


def test_bad_bodies_and_headers_are_refused(serve: Serve) -> None:
    client = serve()
    body = json.dumps({"inputs": [IDS]}).encode()

    for size in ("x", "-1", "1" * 30, str(len(body) + 1)):
        answer = client.post(INFER, content=body, headers={"Inference-Header-Content-Length": size})
        assert (answer.status_code, "Inference-Header-Content-Length" in answer.json()["error"]) == (
            400,
            True,
        )
    zipped = client.post(INFER, content=body, headers={"Content-Encoding": "gzip"})
    assert "the body is compressed" in zipped.json()["error"]
    for broken in (b"", b"[]", b"{"):
        assert client.post(INFER, content=broken).status_code == 400


def test_a_request_may_ask_for_a_position(serve: Serve) -> None:
    client = serve()

    def ask(position: str) -> Any:
        return client.post(INFER, json={"inputs": [IDS], "parameters": {"min_position": position}})

    assert ask("1.1").status_code == 200
    assert (ask("1.2").status_code, ask("1.2").json()["position"]) == (409, "1.1")


def test_the_server_and_its_model_describe_themselves(serve: Serve) -> None:
    client = serve()

    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data", "model_repository"]
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/fake/ready").json() == {"name": "fake", "ready": True}
    assert client.get("/v2/models/fake/versions/1").json() == {
        "name": "fake",
        "versions": ["1"],
        "platform": "tensorflow_savedmodel",
        "inputs": [{"name": "ids", "datatype": "INT64", "shape": [-1, 2]}],
        "outputs": [{"name": "score", "datatype": "FP32", "shape": [-1]}],
    }
    assert client.post("/v2/repository/index").json() == [
        {"name": "fake", "version": "1", "state": "READY", "reason": ""}
    ]


@pytest.mark.parametrize("path", ["/v2/models/other", "/v2/models/fake/versions/2", "/v2/models/a/b"])
def test_what_is_not_there_is_404(serve: Serve, path: str) -> None:
    client = serve()

    assert client.get(path).status_code == 404
    assert client.post(f"{path}/infer", json={"inputs": [IDS]}).status_code == 404


def test_a_path_is_asked_with_its_method(serve: Serve) -> None:
    client = serve()

    for path in ("/v2", "/v2/health/live", "/v2/models/fake", "/v2/models/fake/ready"):
        assert client.post(path).status_code == 405
    for path in (INFER, "/v2/repository/index"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


def test_while_nothing_is_served_all_of_it_says_so(serve: Serve, model: FakeModel) -> None:
    model.position = None
    client = serve()

    assert client.get("/v2/health/live").status_code == 200
    for path in ("/v2/health/ready", "/v2/models/fake", "/v2/models/fake/ready"):
        assert client.get(path).status_code == 503
    assert client.post(INFER, json={"inputs": [IDS]}).status_code == 503
    assert client.post("/v2/repository/index").json() == []
    model.position = Position(1, 2)
    assert client.get("/v2/health/ready").status_code == 200
