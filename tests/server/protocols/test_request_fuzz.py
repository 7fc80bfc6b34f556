"""Whatever a client of any protocol sends, its parser gives a request or a RequestError, and nothing else."""

from __future__ import annotations

import functools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hotdelta.chain import TensorSpec
from hotdelta.errors import RequestError
from server.protocols.open_inference.messages import read_request as read_message
from server.protocols.open_inference.request import read_request as read_inference
from server.protocols.tensorflow_serving.examples import examples_of
from server.protocols.tensorflow_serving.request import read_request as read_serving
from server.protocols.tensorflow_serving.tensors import to_array as to_tensor
from server.rpc.messages import kind
from tests.server.fake_model import SIGNATURES
from tests.server.predict.test_request_fuzz import ANYTHING, FIELDS

SIZES = st.integers(-2, 40) | st.just(2**63) | ANYTHING
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["ids", "user", "weight", "text"]) | ANYTHING,
        "shape": st.lists(st.integers(-1, 5) | st.just(2**63), max_size=3) | ANYTHING,
        "datatype": st.sampled_from(["INT64", "FP32", "BYTES"]) | ANYTHING,
        "data": ANYTHING | st.lists(st.integers(), max_size=6),
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": SIZES}) | ANYTHING,
    },
)
INFERENCE = st.fixed_dictionaries(
    {},
    optional={
        "id": ANYTHING,
        "inputs": st.lists(TENSORS, max_size=3) | ANYTHING,
        "outputs": st.lists(TENSORS, max_size=3) | ANYTHING,
        "parameters": st.fixed_dictionaries(
            {},
            optional={
                "signature_name": st.sampled_from(sorted(SIGNATURES)),
                "binary_data_output": st.booleans() | ANYTHING,
                "min_position": ANYTHING,
            },
        ),
    },
)


def infer(body: bytes, json_size: int | None) -> None:
    try:
        found = read_inference(body, json_size=json_size, signatures=SIGNATURES, max_wait_ms=1000)
    except RequestError:
        return
    spec = SIGNATURES[found.asked.signature]
    assert set(found.asked.feeds) == {tensor.name for tensor in spec.inputs}
    assert set(found.outputs) <= {tensor.name for tensor in spec.outputs}


@given(st.binary(max_size=500), st.none() | st.integers(0, 600))
def test_any_bytes_of_an_inference_request(body: bytes, json_size: int | None) -> None:
    infer(body, json_size)


@given(INFERENCE, st.binary(max_size=60), st.integers(-3, 3))
def test_any_values_of_an_inference_request(document: dict[str, Any], behind: bytes, shift: int) -> None:
    head = json.dumps(document).encode()
    infer(head + behind, max(0, len(head) + shift) if behind or shift else None)


@given(st.binary(max_size=500) | FIELDS.map(lambda document: json.dumps(document).encode()))
def test_any_request_of_tensorflow_serving(body: bytes) -> None:
    """JSON with NaN and Infinity in it, too."""
    try:
        found = read_serving(body, SIGNATURES, max_wait_ms=1000)
    except RequestError:
        return
    assert found.signature in SIGNATURES
    assert set(found.feeds) == {tensor.name for tensor in SIGNATURES[found.signature].inputs}


def refused_or_taken(read: Any) -> Any:
    try:
        return read()
    except RequestError:
        return None


VALUES = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)
MESSAGES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["ids", "user", "weight", "text"]),
        "shape": st.lists(st.integers(-1, 5) | st.just(2**62), max_size=3),
        "datatype": st.sampled_from(["INT64", "FP32", "BYTES", "BF16", "no"]),
    },
    optional={
        "contents": st.fixed_dictionaries(
            {},
            optional={
                "int64_contents": VALUES,
                "fp32_contents": VALUES,
                "bytes_contents": st.lists(st.binary()),
            },
        )
    },
)


@given(
    st.lists(MESSAGES, max_size=3),
    st.lists(st.binary(max_size=40), max_size=3),
    st.sampled_from(sorted(SIGNATURES)),
)
def test_any_inference_message(inputs: list[dict[str, Any]], raw: list[bytes], signature: str) -> None:
    message = kind("inference.ModelInferRequest")(inputs=inputs, raw_input_contents=raw)
    message.parameters["signature_name"].string_param = signature

    found = refused_or_taken(lambda: read_message(message, SIGNATURES))

    assert found is None or set(found.feeds) == {tensor.name for tensor in SIGNATURES[signature].inputs}


TENSOR_FIELDS = st.fixed_dictionaries(
    {
        "dtype": st.integers(0, 25),
        "tensor_shape": st.fixed_dictionaries(
            {
                "dim": st.lists(
                    st.fixed_dictionaries({"size": st.integers(-1, 4) | st.just(2**62)}), max_size=3
                ),
                "unknown_rank": st.booleans(),
            }
        ),
    },
    optional={
        "tensor_content": st.binary(max_size=70),
        "float_val": VALUES,
        "int_val": VALUES,
        "int64_val": VALUES,
        "half_val": VALUES,
        "scomplex_val": VALUES,
        "string_val": st.lists(st.binary(max_size=3), max_size=4),
    },
)
DTYPES = ["float32", "float16", "int8", "int64", "bool", "complex64", "string", "bfloat16", "qint8"]


@given(TENSOR_FIELDS, st.sampled_from(DTYPES))
def test_any_tensor_message(fields: dict[str, Any], dtype: str) -> None:
    message = kind("tensorflow.TensorProto")(**fields)

    found = refused_or_taken(lambda: to_tensor(TensorSpec("x", (None, None), dtype), message, max_bytes=1000))

    assert found is None or found.nbytes <= 1000


@given(ANYTHING | st.lists(st.dictionaries(st.text(max_size=3), ANYTHING, max_size=3), max_size=3), ANYTHING)
def test_any_examples(examples: Any, context: Any) -> None:
    for document in ({"examples": examples}, {"examples": examples, "context": context}):
        refused_or_taken(functools.partial(examples_of, document))
