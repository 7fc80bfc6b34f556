"""Reads what TensorFlow Serving's clients send: JSON that may write NaN and Infinity, with members it does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from hotdelta.chain import SignatureSpec
from server.predict.input_arrays import to_array_with_nonfinite
from server.predict.number_bodies import read_numbers
from server.predict.request import (
    FIELDS,
    PredictRequest,
    min_position_of,
    not_json,
    request_of,
    require_object,
    wait_ms_of,
)
from server.protocols.tensorflow_serving.examples import FindSignature, examples_of, feeds_of


def read_request(body: bytes, signatures: Mapping[str, SignatureSpec], *, max_wait_ms: int) -> PredictRequest:
    """Raises RequestError, or NotReadyError when nothing is served yet."""

    def read(document: Any) -> PredictRequest:
        require_object(document)
        # TensorFlow Serving looks only at what it knows.
        known = {name: document[name] for name in FIELDS if name in document}
        return request_of(known, signatures, max_wait_ms=max_wait_ms, as_array=to_array_with_nonfinite)

    return read_numbers(body, read, _parse)


def read_examples(
    body: bytes,
    signatures: Mapping[str, SignatureSpec],
    find: FindSignature,
    *,
    max_wait_ms: int,
) -> PredictRequest:
    """`find` is given the members of the body. Raises RequestError, or NotReadyError when nothing is served yet."""
    document = require_object(_parse(body))
    signature, spec = find(document, signatures)
    examples = examples_of(document)
    wait_ms = wait_ms_of(document, max_wait_ms)
    return PredictRequest(
        signature, feeds_of(spec, examples), len(examples), min_position_of(document), wait_ms
    )


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in body and b"Infinity" not in body:
            raise not_json(body, error) from error
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise not_json(body, ValueError(str(error))) from error
