"""Health and reflection, asked by the libraries that gRPC publishes for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from hotdelta.chain import Position
from server.rpc.messages import kind
from tests.server.connections import serving_rpc
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS

MODEL = FakeModel()
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    with serving_rpc(MODEL) as address, grpc.insecure_channel(address) as channel:
        yield channel


@pytest.fixture
def health(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


@pytest.mark.parametrize(
    "name", ["", "fake", "inference.GRPCInferenceService", "tensorflow.serving.PredictionService"]
)
def test_the_server_its_services_and_its_models_are_healthy_when_they_can_answer(
    health: Any, name: str
) -> None:
    request = health_pb2.HealthCheckRequest(service=name)
    assert health.Check(request).status == SERVING

    MODEL.position = None
    try:
        # A model has its name only while it is served.
        if name != "fake":
            assert health.Check(request).status == NOT_SERVING
    finally:
        MODEL.position = Position(1, 1)


def test_what_is_not_here_has_no_health(health: Any) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        health.Check(health_pb2.HealthCheckRequest(service="other"))

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_who_watches_hears_of_each_change(health: Any) -> None:
    heard = health.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_SECONDS)
    assert next(heard).status == SERVING
    MODEL.position = None
    try:
        assert next(heard).status == NOT_SERVING
    finally:
        MODEL.position = Position(1, 1)
    assert next(heard).status == SERVING
    heard.cancel()


def test_a_tool_learns_every_service_and_can_call_it_by_what_it_learnt(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    found = DescriptorPool(database)

    methods = {
        name: [method.name for method in found.FindServiceByName(name).methods]
        for name in database.get_services()
    }

    assert methods["inference.GRPCInferenceService"][-1] == "RepositoryIndex"
    assert methods["tensorflow.serving.PredictionService"] == [
        "Classify",
        "Regress",
        "Predict",
        "GetModelMetadata",
    ]
    assert methods["grpc.health.v1.Health"] == ["Check", "Watch"]
    asked = found.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ServerLive"]
    assert asked.output_type.fields_by_name["live"].number == 1


def test_reflection_of_the_newer_kind_says_what_it_does_not_know(channel: grpc.Channel) -> None:
    package = "grpc.reflection.v1"
    request, response = (kind(f"{package}.ServerReflection{way}") for way in ("Request", "Response"))
    ask = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    extension = {"containing_type": "inference.InferParameter", "extension_number": 1}
    questions = [
        request(list_services=""),
        request(file_by_filename="open_inference.proto"),
        request(file_by_filename="nowhere.proto"),
        request(file_containing_symbol="no.Symbol"),
        request(all_extension_numbers_of_type="inference.InferParameter"),
        request(all_extension_numbers_of_type="no.Type"),
        request(file_containing_extension=extension),
        request(),
    ]

    answers = list(ask(iter(questions), timeout=LIMIT_SECONDS))

    assert len(answers[0].list_services_response.service) == 6
    assert len(answers[1].file_descriptor_response.file_descriptor_proto) == 1
    assert answers[4].all_extension_numbers_response.base_type_name == "inference.InferParameter"
    assert [answer.WhichOneof("message_response") for answer in answers[2:]] == [
        "error_response",
        "error_response",
        "all_extension_numbers_response",
        *["error_response"] * 3,
    ]
    assert [answer.original_request for answer in answers] == questions
