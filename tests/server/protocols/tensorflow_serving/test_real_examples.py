"""Classify and regress of a real export, whose signatures parse examples: every way in gives the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from starlette.testclient import TestClient
from tensorflow_serving.apis import classification_pb2, prediction_service_pb2_grpc, regression_pb2

from exporter import export_saved_model
from hotdelta.sanity_limits import SanitySettings
from loader import StaticLoader
from tests.server.application import application
from tests.waiting import LIMIT_SECONDS, wait_until

NUMBERS = [3, 0, 7]
FEATURES = {"number": tf.io.FixedLenFeature([], tf.int64)}


class Scores(tf.Module):
    """A score for each number, looked up in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.random.stateless_normal([10], seed=(1, 2)), name="table")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="number")])
    def predict(self, number: Any) -> Any:
        return {"score": tf.sigmoid(tf.gather(self.table, number))}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def classify(self, inputs: Any) -> Any:
        score = self._of_examples(inputs)
        labels = tf.tile([["no", "yes"]], [tf.size(score), 1])
        return {"classes": labels, "scores": tf.stack([1 - score, score], axis=1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def regress(self, examples: Any) -> Any:
        return {"outputs": self._of_examples(examples)}

    def _of_examples(self, inputs: Any) -> Any:
        return self.predict(tf.io.parse_example(inputs, FEATURES)["number"])["score"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("examples")
    module = Scores()
    signatures = {
        "serving_default": module.predict,
        "classify": module.classify,
        "regress": module.regress,
    }
    export_saved_model(module, directory, signatures=signatures, model_name="scores")
    loader = StaticLoader(directory, poll_seconds=0.05, sanity=SanitySettings())
    with TestClient(application(loader, grpc_port=0)) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, "it is ready")
        yield client


@pytest.fixture(scope="module")
def scores(client: TestClient) -> np.ndarray:
    answer = client.post("/predict", json={"inputs": {"number": NUMBERS}})
    return np.array(answer.json()["outputs"]["score"], np.float32)


@pytest.fixture(scope="module")
def stub(client: TestClient) -> Iterator[Any]:
    with grpc.insecure_channel(client.app.state.rpc.address) as channel:  # type: ignore[attr-defined]
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def example(number: int) -> Any:
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
    return tf.train.Example(features=tf.train.Features(feature={"number": feature}))


def asked(request: Any, signature: str) -> Any:
    request.model_spec.name, request.model_spec.signature_name = "scores", signature
    request.input.example_list.examples.extend(map(example, NUMBERS))
    return request


def test_by_rest(client: TestClient, scores: np.ndarray) -> None:
    examples = [{"number": number} for number in NUMBERS]
    classes = client.post(
        "/v1/models/scores:classify", json={"signature_name": "classify", "examples": examples}
    )
    context = {"number": NUMBERS[0]}
    numbers = client.post(
        "/v1/models/scores:regress",
        json={"signature_name": "regress", "context": context, "examples": [{}, *examples[1:]]},
    )

    labels, found = zip(*[zip(*row, strict=True) for row in classes.json()["results"]], strict=True)
    assert set(labels) == {("no", "yes")}
    assert np.array(found, np.float32)[:, 1].tobytes() == scores.tobytes()
    assert np.array(numbers.json()["results"], np.float32).tobytes() == scores.tobytes()


def test_by_grpc(stub: Any, scores: np.ndarray) -> None:
    classes = stub.Classify(
        asked(classification_pb2.ClassificationRequest(), "classify"), timeout=LIMIT_SECONDS
    )
    numbers = stub.Regress(asked(regression_pb2.RegressionRequest(), "regress"), timeout=LIMIT_SECONDS)

    found = [[(each.label, each.score) for each in row.classes] for row in classes.result.classifications]
    assert [[label for label, _ in row] for row in found] == [["no", "yes"]] * 3
    assert np.array([row[1][1] for row in found], np.float32).tobytes() == scores.tobytes()
    values = np.array([each.value for each in numbers.result.regressions], np.float32)
    assert values.tobytes() == scores.tobytes()


def test_what_is_no_example_is_the_callers_fault(client: TestClient, stub: Any) -> None:
    lacking = client.post(
        "/v1/models/scores:regress", json={"signature_name": "regress", "examples": [{"other": 1}]}
    )
    request = asked(regression_pb2.RegressionRequest(), "regress")
    request.input.example_list.examples[1].features.feature["number"].bytes_list.value.append(b"7")
    with pytest.raises(grpc.RpcError) as refused:
        stub.Regress(request, timeout=LIMIT_SECONDS)

    assert lacking.status_code == 400
    assert "number" in lacking.json()["error"]
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_description_of_the_routes_has_them_where_a_signature_takes_examples(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]

    assert {"/v1/models/{model}:classify", "/v1/models/{model}/versions/{version}:regress"} <= set(paths)
