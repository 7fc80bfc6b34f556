"""By the stubs that TensorFlow Serving publishes, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from hotdelta.chain import Position
from tests.server.connections import serving_rpc
from tests.server.fake_model import SIGNATURES, FakeModel

MODEL = FakeModel()
IDS = np.array([[1, 2], [3, 4]])


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    with serving_rpc(MODEL, max_body_bytes=100_000) as address, grpc.insecure_channel(address) as channel:
        yield channel


@pytest.fixture
def predictions(channel: grpc.Channel) -> Any:
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture
def models(channel: grpc.Channel) -> Any:
    return model_service_pb2_grpc.ModelServiceStub(channel)


def question(signature: str = "", /, outputs: tuple[str, ...] = (), **inputs: Any) -> Any:
    request = predict_pb2.PredictRequest(output_filter=outputs)
    request.model_spec.name = "fake"
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def refusal(call: Any, request: Any, **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as refused:
        call(request, **options)
    return refused.value


def test_predict_answers_with_the_model_and_the_position(predictions: Any) -> None:
    answer, call = predictions.Predict.with_call(question(ids=IDS))

    assert tf.make_ndarray(answer.outputs["score"]).tolist() == [3.0, 7.0]
    assert list(answer.outputs["score"].float_val) == [3.0, 7.0]
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("fake", 1, "serving_default")
    assert dict(call.trailing_metadata())["x-model-version"] == "1.1"


def test_another_signature_gives_several_outputs_and_a_filter_some_of_them(predictions: Any) -> None:
    inputs: dict[str, Any] = {"user": np.array([2, 3]), "weight": np.array([0.5, np.nan], np.float32)}

    everything = predictions.Predict(question("two", **inputs)).outputs
    some = predictions.Predict(question("two", ("user",), **inputs)).outputs

    np.testing.assert_array_equal(tf.make_ndarray(everything["product"]), np.array([1, np.nan], np.float32))
    assert tf.make_ndarray(everything["user"]).tolist() == [2, 3]
    assert list(some) == ["user"]


def test_texts_are_bytes(predictions: Any) -> None:
    texts = np.array([b"a", b"\xff", b""], object)

    answer = predictions.Predict(question("echo", text=texts))

    assert list(answer.outputs["text"].string_val) == texts.tolist()


def test_a_version_can_be_named(predictions: Any) -> None:
    request = question(ids=IDS)
    request.model_spec.version.value = 1
    assert predictions.Predict(request).model_spec.version.value == 1

    request.model_spec.version.value = 2
    error = refusal(predictions.Predict, request)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "there is no version 2 of model 'fake'. version 1 is served"

    request.model_spec.version_label = "prod"
    assert refusal(predictions.Predict, request).code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "request_, problem",
    [
        (predict_pb2.PredictRequest(), "model_spec has no name"),
        (question(), "inputs lacks 'ids'. inputs: ids"),
        (question(ids=IDS, more=IDS), "has an unknown input 'more'"),
        (question(ids=IDS.astype(np.int32)), "input 'ids' is DT_INT32, the signature wants DT_INT64"),
        (question(ids=IDS[0]), "has shape [2], the signature wants [any, 2]"),
        (question(ids=IDS[:0]), "is an empty batch"),
        (question("", ("other",), ids=IDS), "output_filter has an unknown output 'other'. outputs: score"),
        (question("", ("score", "score"), ids=IDS), "output_filter names an output twice"),
        (question(ids=IDS + 100), "an id is not in [0, 100)"),
    ],
)
def test_what_cannot_be_answered_says_why(predictions: Any, request_: Any, problem: str) -> None:
    error = refusal(predictions.Predict, request_)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert problem in error.details()


@pytest.mark.parametrize("signature", ["hotdelta_apply", "hotdelta_stage", "__saved_model_init_op", "x"])
def test_what_updates_the_model_cannot_be_reached(predictions: Any, signature: str) -> None:
    error = refusal(predictions.Predict, question(signature, ids=IDS))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "there is no signature" in error.details()


def test_a_few_bytes_that_mean_very_many_are_refused(predictions: Any) -> None:
    request = question(ids=IDS)
    tensor = request.inputs["ids"]
    tensor.ClearField("tensor_content")
    tensor.int64_val.append(1)
    tensor.tensor_shape.dim[0].size = 10**12

    error = refusal(predictions.Predict, request)

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "is larger than 100000 bytes" in error.details()


def test_an_own_write_can_be_waited_for(predictions: Any) -> None:
    wanted = (("min_position", "1.2"),)
    error = refusal(predictions.Predict, question(ids=IDS), metadata=wanted)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert dict(error.trailing_metadata())["x-model-version"] == "1.1"

    waiting = predictions.Predict.future(question(ids=IDS), metadata=(*wanted, ("wait_ms", "9000")))
    MODEL.position = Position(1, 2)
    try:
        waiting.result(timeout=60)
        assert dict(waiting.trailing_metadata())["x-model-version"] == "1.2"
    finally:
        MODEL.position = Position(1, 1)


@pytest.mark.parametrize(
    "metadata, problem",
    [
        ({"min_position": "new"}, "min_position"),
        ({"wait_ms": "5"}, "wait_ms has no min_position"),
        ({"min_position": "1.1", "wait_ms": "-5"}, "wait_ms is '-5'"),
        ({"min_position": "1.1", "wait_ms": "99999999"}, "give milliseconds from 0 to 10000"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(
    predictions: Any, metadata: dict[str, str], problem: str
) -> None:
    error = refusal(predictions.Predict, question(ids=IDS), metadata=tuple(metadata.items()))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert problem in error.details()


def test_a_fault_of_ours_is_told_without_its_trace(predictions: Any) -> None:
    error = refusal(predictions.Predict, question("broken", ids=IDS))

    assert error.code() is grpc.StatusCode.INTERNAL


def test_the_metadata_are_the_signatures(predictions: Any) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "fake"

    answer = predictions.GetModelMetadata(request)

    found = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    assert set(found.signature_def) == set(SIGNATURES)
    ids = found.signature_def["serving_default"].inputs["ids"]
    assert ids.dtype == tf.int64.as_datatype_enum
    assert [dim.size for dim in ids.tensor_shape.dim] == [-1, 2]

    request.metadata_field[:] = ["everything"]
    assert "ask for signature_def" in refusal(predictions.GetModelMetadata, request).details()


def test_the_status_is_that_of_the_version_that_is_served(models: Any) -> None:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "fake"

    (status,) = models.GetModelStatus(request).model_version_status

    assert (status.version, status.state) == (1, get_model_status_pb2.ModelVersionStatus.AVAILABLE)
    request.model_spec.name = "other"
    assert refusal(models.GetModelStatus, request).code() is grpc.StatusCode.NOT_FOUND


def test_a_model_that_is_not_there_yet_may_be_asked_again(predictions: Any, models: Any) -> None:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "fake"
    MODEL.position = None
    try:
        for error in (
            refusal(predictions.Predict, question(ids=IDS)),
            refusal(models.GetModelStatus, request),
        ):
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert dict(error.trailing_metadata())["retry-after"] == "1"
    finally:
        MODEL.position = Position(1, 1)


def test_what_is_not_answered_here_is_refused_by_name(predictions: Any, models: Any) -> None:
    several = refusal(predictions.MultiInference, inference_pb2.MultiInferenceRequest())
    reload = refusal(models.HandleReloadConfigRequest, model_management_pb2.ReloadConfigRequest())

    assert several.code() is reload.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "ask Predict, Classify or Regress" in several.details()
    assert "where it is started" in reload.details()


def example(**weights: float) -> Any:
    features = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        for name, value in weights.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def test_classify_gives_labels_and_scores_for_each_example(predictions: Any) -> None:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name, request.model_spec.signature_name = "fake", "classify"
    request.input.example_list.examples.extend([example(weight=0.25), example(weight=1)])

    answer, call = predictions.Classify.with_call(request)

    found = [[(each.label, each.score) for each in row.classes] for row in answer.result.classifications]
    assert found == [[("no", 0.75), ("yes", 0.25)], [("no", 0.0), ("yes", 1.0)]]
    assert answer.model_spec.signature_name == "classify"
    assert dict(call.trailing_metadata())["x-model-version"] == "1.1"


def test_regress_gives_a_number_for_each_example_which_wins_over_the_context(predictions: Any) -> None:
    request = regression_pb2.RegressionRequest()
    request.model_spec.name, request.model_spec.signature_name = "fake", "regress"
    request.input.example_list_with_context.context.CopyFrom(example(weight=0.5))
    request.input.example_list_with_context.examples.extend([example(weight=2), example(other=3)])

    answer = predictions.Regress(request)

    assert [each.value for each in answer.result.regressions] == [2.0, 0.5]


def test_a_signature_that_takes_no_examples_says_so(predictions: Any) -> None:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "fake"
    request.input.example_list.examples.extend([example(weight=0.25)])

    error = refusal(predictions.Classify, request)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "'serving_default' takes no examples" in error.details()
    request.model_spec.signature_name = "regress"
    assert "'regress' does not classify" in refusal(predictions.Classify, request).details()
    request.model_spec.signature_name = "classify"
    del request.input.example_list.examples[:]
    assert "there are no examples" in refusal(predictions.Classify, request).details()
