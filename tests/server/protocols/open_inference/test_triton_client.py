"""The client that NVIDIA publishes for Triton, over a real socket; tensors go as bytes unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from tests.server.connections import serving
from tests.server.fake_model import FakeModel

IDS = np.array([[1, 2], [3, 4]])


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with serving(FakeModel()) as (host, port):
        client = triton.InferenceServerClient(f"{host}:{port}")
        yield client
        client.close()


def given(name: str, array: np.ndarray, datatype: str, *, is_binary: bool = True) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    return tensor


def test_it_finds_the_server_and_the_model(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("fake")
    assert client.is_model_ready("fake", "1")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "hotdelta"
    assert client.get_model_metadata("fake")["inputs"][0]["datatype"] == "INT64"
    assert client.get_model_repository_index()[0]["state"] == "READY"


@pytest.mark.parametrize("is_input_binary", [True, False])
@pytest.mark.parametrize("is_output_binary", [True, False])
def test_it_infers(client: Any, is_input_binary: bool, is_output_binary: bool) -> None:
    wanted = [triton.InferRequestedOutput("score", binary_data=is_output_binary)]

    answer = client.infer(
        "fake", [given("ids", IDS, "INT64", is_binary=is_input_binary)], outputs=wanted, request_id="9"
    )

    assert answer.as_numpy("score").tolist() == [3.0, 7.0]
    assert answer.get_response()["id"] == "9"
    assert answer.get_response()["parameters"]["position"] == "1.1"


def test_it_sends_texts(client: Any) -> None:
    texts = np.array([b"a", b"\xff", b""], object)

    answer = client.infer("fake", [given("text", texts, "BYTES")], parameters={"signature_name": "echo"})

    assert answer.as_numpy("text").tolist() == texts.tolist()


def test_it_sends_several_inputs(client: Any) -> None:
    inputs = [
        given("user", np.arange(5), "INT64"),
        given("weight", np.linspace(0, 1, 5, dtype=np.float32), "FP32"),
    ]

    answer = client.infer("fake", inputs, parameters={"signature_name": "two"})

    assert answer.as_numpy("product").tolist() == [0, 0.25, 1, 2.25, 4]
    assert answer.as_numpy("user").tolist() == [0, 1, 2, 3, 4]


def test_it_is_told_what_is_wrong(client: Any) -> None:
    with pytest.raises(triton.InferenceServerException, match="is INT32, the signature wants INT64"):
        client.infer("fake", [given("ids", IDS.astype(np.int32), "INT32")])
    with pytest.raises(triton.InferenceServerException, match="there is no model 'other'"):
        client.infer("other", [given("ids", IDS, "INT64")])
