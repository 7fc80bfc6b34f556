"""Whatever a client sends, the parser gives a request or a RequestError, and nothing else."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotdelta.errors import RequestError
from server.predict.request import PredictRequest, read_request
from tests.server.fake_model import SIGNATURES

MOST_BYTES_PER_BYTE = 50
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.just({"b64": "aGk="})
    | st.just({"b64": "not base64"}),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "inputs": ANYTHING
        | st.dictionaries(st.sampled_from(["ids", "user", "weight", "text"]), ANYTHING, max_size=3),
        "instances": ANYTHING | st.lists(ANYTHING, max_size=4),
        "signature_name": ANYTHING | st.sampled_from(sorted(SIGNATURES)),
        "min_position": ANYTHING | st.just("1.1"),
        "wait_ms": ANYTHING,
    },
)


def read(body: bytes) -> PredictRequest | None:
    try:
        return read_request(body, SIGNATURES, max_wait_ms=1000)
    except RequestError:
        return None


@given(st.binary(max_size=2000))
def test_any_bytes(body: bytes) -> None:
    read(body)


@given(FIELDS)
def test_any_values_of_the_fields(document: dict[str, Any]) -> None:
    found = read(json.dumps(document).encode())
    if found is not None:
        assert found.signature in SIGNATURES
        assert 0 <= found.wait_ms <= 1000
        for name, array in found.feeds.items():
            assert name in {spec.name for spec in SIGNATURES[found.signature].inputs}
            assert array.nbytes < 10_000


def test_deep_and_hostile_documents() -> None:
    for body in (
        b"[" * 200_000,
        b'{"instances":' + b"[" * 100_000,
        b'{"instances": [[1e400, 2]]}',
        b'{"instances": [[' + b"9" * 5000 + b", 1]]}",
        b'{"inputs": {"ids": [[1, 2], [3]]}}',
        b'{"instances": [{"b64": "' + b"A" * 100_000 + b'"}]}',
    ):
        read(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [' + b"1," * 300_000 + b"1]}",
        b'{"instances": [' + b"[]," * 200_000 + b"[]]}",
        b'{"instances": [' + b"{}," * 200_000 + b"{}]}",
        b'{"inputs": {"ids": ' + b"[" * 1000 + b"0," * 200_000 + b"0" + b"]" * 1000 + b"}}",
        b'{"inputs": {' + b",".join(b'"%d": [1]' % number for number in range(50_000)) + b"}}",
        b'{"instances": [' + b",".join([b'{"b64": "QUFB"}'] * 40_000) + b"]}",
        b'{"instances": [{"b64": "' + b"A" * 600_000 + b'"}]}',
        b'{"min_position": "' + b"9" * 600_000 + b'"}',
    ],
    ids=["numbers", "lists", "objects", "deep", "names", "bytes", "long", "position"],
)
def test_a_request_takes_memory_in_proportion_to_its_size(body: bytes) -> None:
    tracemalloc.start()
    try:
        read(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES_PER_BYTE * len(body), (
        f"{peak / len(body):.0f} bytes for each byte of the request"
    )
