"""Several models by gRPC: each by its name or a label, and each with a health of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tensorflow as tf
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.testclient import TestClient
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from hotdelta.chain import Position
from server.setting_values import LabelPlace
from tests.server.models.fleets import Answering, Yard, order, serving_all, several

PROD = (LabelPlace("prod", "old"),)


@pytest.fixture
def yard() -> Yard:
    return Yard({"old": Answering(number=1.0), "new": Answering(Position(2, 7), number=2.0)})


@pytest.fixture
def client(yard: Yard, tmp_path: Path) -> Iterator[TestClient]:
    configuration = several(tmp_path, "old", "new", label=PROD, grpc_port=0, ready_wait_seconds=0.0)
    with serving_all(yard, configuration) as client:
        yield client


@pytest.fixture
def channel(client: TestClient) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(client.app.state.rpc.address) as channel:  # type: ignore[attr-defined]
        yield channel


def answered(channel: grpc.Channel, name: str, label: str = "") -> tuple[float, Any]:
    """The number of the model, and what is told beside it."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    if label:
        request.model_spec.version_label = label
    request.inputs["ids"].CopyFrom(tf.make_tensor_proto([[1, 2]], tf.int64))
    answer, call = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict.with_call(request)
    return answer.outputs["score"].float_val[0], dict(call.trailing_metadata())


def test_a_label_is_a_name_that_one_order_moves(client: TestClient, channel: grpc.Channel) -> None:
    assert [answered(channel, name)[0] for name in ("old", "new", "prod")] == [1.0, 2.0, 1.0]
    assert answered(channel, "old", "prod")[0] == 1.0

    order(client, "/labels/prod", {"model": "new"})

    number, told = answered(channel, "prod")
    assert (number, told["x-model-name"], told["x-model-version"]) == (2.0, "new", "2.7")
    with pytest.raises(grpc.RpcError) as refused:
        answered(channel, "old", "prod")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "it is at 'new'" in refused.value.details()


def test_each_model_has_a_health_of_its_own_and_the_server_one_as_readyz(
    client: TestClient, channel: grpc.Channel, yard: Yard
) -> None:
    yard.models["old"].position = None
    stub = health_pb2_grpc.HealthStub(channel)

    found = {
        name: stub.Check(health_pb2.HealthCheckRequest(service=name)).status for name in ("", "old", "new")
    }

    serving, not_serving = (
        getattr(health_pb2.HealthCheckResponse, word) for word in ("SERVING", "NOT_SERVING")
    )
    assert found == {"": serving, "old": not_serving, "new": serving}
    assert client.get("/readyz").status_code == 200


def test_the_index_lists_all_that_serve(client: TestClient) -> None:
    with triton.InferenceServerClient(client.app.state.rpc.address) as asking:  # type: ignore[attr-defined]
        assert [model.name for model in asking.get_model_repository_index().models] == ["old", "new"]
        assert asking.is_model_ready("prod")
        assert asking.get_model_metadata("prod").versions == ["1"]
