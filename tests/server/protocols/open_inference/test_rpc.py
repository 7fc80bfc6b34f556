"""The client that NVIDIA publishes for Triton, by gRPC; tensors go as bytes. Lists it cannot send: its messages can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from hotdelta.chain import Position
from tests.server.connections import serving_rpc
from tests.server.fake_model import FakeModel

MODEL = FakeModel()
IDS = np.array([[1, 2], [3, 4]])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_rpc(MODEL) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(address) as client:
        yield client


@pytest.fixture(scope="module")
def stub(address: str) -> Iterator[Any]:
    with grpc.insecure_channel(address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def given(name: str, array: np.ndarray, datatype: str) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def test_it_finds_the_server_and_the_model(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("fake")
    assert client.is_model_ready("fake", "1")
    assert not client.is_model_ready("fake", "2")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata().name == "hotdelta"
    (ids,) = client.get_model_metadata("fake").inputs
    assert (ids.name, ids.datatype, list(ids.shape)) == ("ids", "INT64", [-1, 2])
    (listed,) = client.get_model_repository_index().models
    assert (listed.name, listed.version, listed.state) == ("fake", "1", "READY")


def test_a_model_that_is_not_there_yet_is_not_ready(client: Any) -> None:
    MODEL.position = None
    try:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("fake")
        with pytest.raises(InferenceServerException) as refused:
            client.infer("fake", [given("ids", IDS, "INT64")])
        assert refused.value.status() == "StatusCode.UNAVAILABLE"
    finally:
        MODEL.position = Position(1, 1)


def test_it_infers(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("score")]

    answer = client.infer("fake", [given("ids", IDS, "INT64")], outputs=wanted, request_id="9")

    assert answer.as_numpy("score").tolist() == [3.0, 7.0]
    response = answer.get_response()
    assert (response.id, response.model_name, response.model_version) == ("9", "fake", "1")
    assert response.parameters["position"].string_param == "1.1"
    assert response.parameters["step"].int64_param == 10


def test_it_sends_texts_and_nan(client: Any) -> None:
    texts = np.array([b"a", b"\xff", b""], object)
    weights = np.array([np.nan, 0.5], np.float32)

    echoed = client.infer("fake", [given("text", texts, "BYTES")], parameters={"signature_name": "echo"})
    product = client.infer(
        "fake",
        [given("user", np.array([2, 3]), "INT64"), given("weight", weights, "FP32")],
        parameters={"signature_name": "two"},
    )

    assert echoed.as_numpy("text").tolist() == texts.tolist()
    np.testing.assert_array_equal(product.as_numpy("product"), np.array([np.nan, 1.5], np.float32))


def test_the_position_that_is_wanted_may_be_a_parameter(client: Any) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer("fake", [given("ids", IDS, "INT64")], parameters={"min_position": "1.2", "wait_ms": 1})

    assert refused.value.status() == "StatusCode.FAILED_PRECONDITION"
    assert "position 1.2 is not served yet, 1.1 is" in refused.value.message()
    client.infer("fake", [given("ids", IDS, "INT64")], parameters={"min_position": "1.1"})


def listed(signature: str = "serving_default", /, **inputs: Any) -> Any:
    """A request with its tensors in lists: the datatype, the shape and the contents of each."""
    request = service_pb2.ModelInferRequest(model_name="fake")
    request.parameters["signature_name"].string_param = signature
    for name, (datatype, shape, contents) in inputs.items():
        request.inputs.add(name=name, datatype=datatype, shape=shape, contents=contents)
    return request


def test_lists_are_answered_with_lists(stub: Any) -> None:
    two = listed(
        "two",
        user=("INT64", [2], {"int64_contents": [2, 3]}),
        weight=("FP32", [2], {"fp32_contents": [0.5, float("nan")]}),
    )

    answer, call = stub.ModelInfer.with_call(two)

    product, user = answer.outputs
    np.testing.assert_array_equal(product.contents.fp32_contents, [1.0, np.nan])
    assert list(user.contents.int64_contents) == [2, 3]
    assert not answer.raw_output_contents
    assert dict(call.trailing_metadata())["x-model-version"] == "1.1"
    echoed = stub.ModelInfer(listed("echo", text=("BYTES", [1], {"bytes_contents": [b"\xff"]})))
    assert list(echoed.outputs[0].contents.bytes_contents) == [b"\xff"]


def raw(contents: list[bytes], **inputs: Any) -> Any:
    request = listed(**inputs)
    request.raw_input_contents.extend(contents)
    return request


@pytest.mark.parametrize(
    "request_, problem",
    [
        (listed(), "input 'ids' is missing"),
        (listed(other=("INT64", [1], {})), "input 'other' is not known. inputs: ids"),
        (listed(ids=("INT32", [1, 2], {"int_contents": [1, 2]})), "is 'INT32', the signature wants INT64"),
        (listed(ids=("INT64", [1, 3], {"int64_contents": [1, 2, 3]})), "the signature wants [any, 2]"),
        (listed(ids=("INT64", [1, 2], {"int64_contents": [1]})), "has 1 values in int64_contents"),
        (listed(ids=("INT64", [1, 2], {"int_contents": [1, 2]})), "has 0 values in int64_contents"),
        (
            listed(ids=("INT64", [-1, 2], {"int64_contents": [1, 2]})),
            "has the shape [-1, 2], which no array has",
        ),
        (listed(ids=("INT64", [0, 2], {})), "is an empty batch"),
        (listed("hotdelta_apply", ids=("INT64", [1, 2], {"int64_contents": [1, 2]})), "no signature"),
        (raw([b"x"], ids=("INT64", [1, 2], None)), "has 1 bytes, its shape [1, 2] needs 16"),
        (raw([b"", b""], ids=("INT64", [1, 2], None)), "there are 1 inputs, and 2 raw_input_contents"),
        (raw([bytes(16)], ids=("INT64", [1, 2], {"int64_contents": [1, 2]})), "contents beside raw"),
    ],
)
def test_what_cannot_be_answered_says_why(stub: Any, request_: Any, problem: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(request_)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert problem in refused.value.details()


def test_an_input_or_an_output_that_is_there_twice(stub: Any) -> None:
    request = listed(ids=("INT64", [1, 2], {"int64_contents": [1, 2]}))
    request.outputs.extend([service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="score")] * 2)
    assert [output.name for output in stub.ModelInfer(request).outputs] == ["score"]

    request.inputs.append(request.inputs[0])
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(request)
    assert "input 'ids' is there twice" in refused.value.details()


@pytest.mark.parametrize("version", ["2", "new"])
def test_a_version_that_is_not_served(client: Any, version: str) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer("fake", [given("ids", IDS, "INT64")], model_version=version)

    assert refused.value.status() == "StatusCode.NOT_FOUND"


def test_what_is_not_answered_here_is_refused_by_name(client: Any) -> None:
    for ask in (
        client.get_system_shared_memory_status,
        lambda: client.get_model_config("fake"),
        lambda: client.load_model("fake"),
    ):
        with pytest.raises(InferenceServerException) as refused:
            ask()
        assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
        assert "is not answered here" in refused.value.message()
    tensor = given("ids", IDS, "INT64")
    tensor.set_shared_memory("region", 32)
    with pytest.raises(InferenceServerException) as refused:
        client.infer("fake", [tensor])
    assert "shared_memory_region" in refused.value.message()
