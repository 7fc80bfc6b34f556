"""Classify and regress by REST: examples are written in JSON, as TensorFlow Serving reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import RequestError
from server.protocols.tensorflow_serving.answer import write_classes, write_values
from server.protocols.tensorflow_serving.examples import (
    Classified,
    classified,
    examples_of,
    regressed,
    signature_that_classifies,
)
from tests.server.conftest import Serve

CLASSIFY = "/v1/models/fake:classify"
REGRESS = "/v1/models/fake/versions/1:regress"


def test_classify_gives_pairs_of_a_label_and_a_score(serve: Serve) -> None:
    body = {"signature_name": "classify", "examples": [{"weight": 0.25}, {"weight": [1.0]}], "other": 1}

    response = serve().post(CLASSIFY, json=body)

    assert response.json() == {"results": [[["no", 0.75], ["yes", 0.25]], [["no", 0.0], ["yes", 1.0]]]}
    assert response.headers["X-Model-Version"] == "1.1"


def test_regress_gives_numbers_and_an_example_wins_over_the_context(serve: Serve) -> None:
    body = {"signature_name": "regress", "context": {"weight": 0.5}, "examples": [{"weight": 2.0}, {"x": 1}]}

    assert serve().post(REGRESS, json=body).json() == {"results": [2.0, 0.5]}


def test_nan_is_a_bare_token_both_ways(serve: Serve) -> None:
    client = serve()
    classes = client.post(CLASSIFY, content=b'{"signature_name": "classify", "examples": [{"weight": NaN}]}')
    values = client.post(
        REGRESS, content=b'{"signature_name": "regress", "examples": [{"weight": -Infinity}]}'
    )

    assert classes.text == '{"results":[[["no",NaN],["yes",NaN]]]}'
    assert values.text == '{"results":[-Infinity]}'


def test_an_own_write_can_be_waited_for(serve: Serve) -> None:
    body = {"signature_name": "regress", "examples": [{"weight": 2.0}], "min_position": "1.2"}

    assert serve().post(REGRESS, json=body).status_code == 409


@pytest.mark.parametrize(
    "document, problem",
    [
        ({}, "'examples' is not a list"),
        ({"examples": []}, "at least one"),
        ({"examples": {}}, "'examples' is not a list"),
        ({"examples": [1]}, "examples[0] is not an object"),
        ({"examples": [{}], "context": []}, "context is not an object"),
        ({"examples": [{"a": None}]}, "examples[0]['a'] holds a value that is no feature"),
        ({"examples": [{}, {"a": [[1]]}]}, "examples[1]['a'] holds a value that is no feature"),
        ({"examples": [{"a": {"c": 1}}]}, "holds a value that is no feature"),
        ({"examples": [{"a": [1, 1.5]}]}, "has values of several kinds. write 1.0"),
        ({"examples": [{"a": 2**63}]}, "holds a value that is no feature"),
        ({"examples": [{"a": [1.0, 1e39]}]}, "holds numbers that do not fit into float32"),
        ({"examples": [{"a": "\ud800"}]}, "or no text"),
        ({"examples": [{"\ud800": 1}]}, "has a name that is no text"),
        ({"examples": [{"a": {"b64": "?"}}]}, "holds bytes that are not base64"),
        ({"examples": [{"a": {"b64": 1}}]}, "holds bytes that are not base64"),
    ],
)
def test_what_is_no_example_is_refused(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError) as refused:
        examples_of(document)

    assert problem in str(refused.value)


def test_every_kind_of_feature_is_what_tensorflow_parses() -> None:
    (written,) = examples_of(
        {"examples": [{"f": [1.5, -2.0], "i": [3, True], "s": ["ä", {"b64": "/w=="}], "none": []}]}
    )

    features = tf.train.Example.FromString(written).features.feature

    assert list(features["f"].float_list.value) == [1.5, -2.0]
    assert list(features["i"].int64_list.value) == [3, 1]
    assert list(features["s"].bytes_list.value) == ["ä".encode(), b"\xff"]
    assert features["none"].WhichOneof("kind") is None


def test_the_parser_of_tensorflow_takes_the_example_and_then_the_context() -> None:
    document = {"context": {"a": 1.0, "b": 2.0}, "examples": [{"a": 3.0}]}
    wanted = {"a": tf.io.FixedLenFeature([], tf.float32), "b": tf.io.FixedLenFeature([], tf.float32)}

    parsed = tf.io.parse_example(examples_of(document), wanted)

    assert (parsed["a"].numpy().tolist(), parsed["b"].numpy().tolist()) == ([3.0], [2.0])


LABELS = np.array([[b"a", b"\xff"]], object)
SCORES = np.array([[0.1, 0.2]], np.float32)


def test_a_signature_may_give_only_labels_or_only_scores() -> None:
    labels = classified({"classes": LABELS}, examples=1)
    scores = classified({"scores": SCORES}, examples=1)

    assert write_classes(labels) == b'{"results":[[["a",0.0],[{"b64":"/w=="},0.0]]]}'
    assert write_classes(scores) == b'{"results":[[["",0.1],["",0.2]]]}'
    assert write_classes(Classified(LABELS[:, :1], SCORES[:, :1])) == b'{"results":[[["a",0.1]]]}'
    assert write_values(SCORES[0]) == b'{"results":[0.1,0.2]}'


@pytest.mark.parametrize(
    "outputs",
    [
        {"scores": SCORES[0]},
        {"scores": SCORES.astype(np.float64)},
        {"scores": np.zeros((2, 2), np.float32)},
        {"classes": SCORES},
        {"classes": LABELS, "scores": SCORES[:, :1]},
    ],
)
def test_outputs_that_are_not_one_row_for_each_example_are_refused(outputs: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        classified(outputs, examples=1)


@pytest.mark.parametrize("values", [SCORES, SCORES[0], SCORES[0, :1].astype(np.int64)])
def test_values_that_are_not_one_for_each_example_are_refused(values: Any) -> None:
    with pytest.raises(RequestError):
        regressed({"outputs": values}, examples=1)


@pytest.mark.parametrize(
    "given",
    [
        TensorSpec("text", (None,), "string"),
        TensorSpec("inputs", (None,), "int64"),
        TensorSpec("inputs", (None, 2), "string"),
    ],
)
def test_only_one_input_of_strings_takes_examples(given: TensorSpec) -> None:
    spec = SignatureSpec((given,), (TensorSpec("scores", (None, 2), "float32"),))

    with pytest.raises(RequestError, match="takes no examples"):
        signature_that_classifies({"signature_name": "s"}, {"s": spec})
