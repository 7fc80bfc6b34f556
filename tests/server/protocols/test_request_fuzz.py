"""Whatever a client of any protocol sends, its parser gives a request or a RequestError, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hotdelta.errors import RequestError
from server.protocols.open_inference.request import read_request as read_inference
from server.protocols.tensorflow_serving.request import read_request as read_serving
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
