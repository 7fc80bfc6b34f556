"""Reads the body of POST /predict. The Content-Type is never looked at: `curl -d` must work.

What is in it is the same for every protocol that writes tensors as TensorFlow Serving does (`request_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from hotdelta.chain import Position, SignatureSpec, TensorSpec
from hotdelta.errors import ManifestError, NotReadyError, RequestError
from server.predict.input_arrays import Array, to_array
from server.predict.number_bodies import read_numbers

DEFAULT_SIGNATURE = "serving_default"

FIELDS = ("inputs", "instances", "signature_name", "min_position", "wait_ms")
_GZIP = b"\x1f\x8b"
_SHAPES = 'send {"inputs": {name: array}} or {"instances": [row, ...]}'


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """What a client asks for. `rows`: so many he gave and gets back; None when he gave columns."""

    signature: str
    feeds: Mapping[str, Array]
    rows: int | None
    min_position: Position | None = None
    wait_ms: int = 0


def read_request(body: bytes, signatures: Mapping[str, SignatureSpec], *, max_wait_ms: int) -> PredictRequest:
    """`signatures` is the allow-list. Raises RequestError, or NotReadyError when nothing is served yet."""

    def read(document: Any) -> PredictRequest:
        unknown = [name for name in require_object(document) if name not in FIELDS]
        if unknown:
            raise RequestError(
                f"the body has an unknown field {unknown[0]!r}", hint=f"fields: {', '.join(FIELDS)}"
            )
        return request_of(document, signatures, max_wait_ms=max_wait_ms)

    return read_numbers(body, read, parse_json)


def parse_json(body: bytes) -> Any:
    """Raises RequestError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise not_json(body, error) from error


def request_of(
    document: Mapping[str, Any],
    signatures: Mapping[str, SignatureSpec],
    *,
    max_wait_ms: int,
    as_array: Callable[[TensorSpec, Any], Array] = to_array,
) -> PredictRequest:
    """What the members of `FIELDS` ask for. Raises RequestError, or NotReadyError when nothing is served yet."""
    if ("inputs" in document) == ("instances" in document):
        problem = (
            "both 'inputs' and 'instances'" if "inputs" in document else "neither 'inputs' nor 'instances'"
        )
        raise RequestError(f"the body has {problem}", hint=_SHAPES)
    name, spec = find_signature(document, signatures)
    if "instances" in document:
        columns, rows = _columns_of_rows(spec, document["instances"]), len(document["instances"])
    else:
        columns, rows = _columns(spec, document["inputs"]), None
    feeds = {tensor.name: as_array(tensor, columns[tensor.name]) for tensor in spec.inputs}
    for input_name, array in feeds.items():
        refuse_empty(input_name, array)
    return PredictRequest(name, feeds, rows, min_position_of(document), wait_ms_of(document, max_wait_ms))


def refuse_empty(input_name: str, array: Array) -> None:
    if array.ndim and not len(array):
        raise RequestError(f"input {input_name!r} is an empty batch", hint="send at least one row")


def require_object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise RequestError("the body is not a JSON object", hint=_SHAPES)
    return document


def not_json(body: bytes, error: ValueError) -> RequestError:
    if not body.strip():
        return RequestError("the body is empty", hint=_SHAPES)
    if body.startswith(_GZIP):
        return RequestError("the body is compressed", hint="send it as it is, without a Content-Encoding")
    is_non_finite = b"NaN" in body or b"Infinity" in body
    return RequestError(
        f"the body is not JSON: {error}",
        hint="NaN and Infinity cannot be written in JSON" if is_non_finite else _SHAPES,
    )


def find_signature(
    document: Mapping[str, Any], signatures: Mapping[str, SignatureSpec]
) -> tuple[str, SignatureSpec]:
    """By its `signature_name`. Raises RequestError, or NotReadyError when nothing is served yet."""
    if not signatures:
        raise NotReadyError("no model is served yet", hint="GET /model/version says what it waits for")
    name = document.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str) or name not in signatures:
        raise RequestError(
            f"there is no signature {name!r}", hint=f"signatures: {', '.join(sorted(signatures))}"
        )
    return name, signatures[name]


def _columns(spec: SignatureSpec, given: Any) -> dict[str, Any]:
    """One array by name; with one input its name may be left out, as TensorFlow Serving allows."""
    wanted = [tensor.name for tensor in spec.inputs]
    if isinstance(given, dict) and (len(wanted) != 1 or _is_object(given, wanted[0])):
        _check_names(set(given), wanted, where="inputs")
        return given
    if len(wanted) != 1:
        raise RequestError("'inputs' is not an object", hint=f"inputs: {', '.join(wanted) or 'none'}")
    return {wanted[0]: given}


def _columns_of_rows(spec: SignatureSpec, rows: Any) -> dict[str, Any]:
    """With one input a row is its value or an object, with several an object."""
    wanted = [tensor.name for tensor in spec.inputs]
    if isinstance(rows, np.ndarray) and len(wanted) == 1:
        return {wanted[0]: rows}
    if not isinstance(rows, list):
        raise RequestError("'instances' is not a list", hint=_SHAPES)
    if not rows:
        raise RequestError("'instances' is an empty batch", hint="send at least one row")
    if len(wanted) == 1 and not _is_object(rows[0], wanted[0]):
        return {wanted[0]: rows}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(
                f"instances[{number}] is not an object", hint=f"inputs: {', '.join(wanted) or 'none'}"
            )
        _check_names(set(row), wanted, where=f"instances[{number}]")
    return {name: [row[name] for row in rows] for name in wanted}


def _is_object(value: Any, name: str) -> bool:
    """One with the input of this name in it, and not bytes."""
    return isinstance(value, dict) and (name in value or value.keys() != {"b64"})


def _check_names(given: set[str], wanted: list[str], *, where: str) -> None:
    missing = [name for name in wanted if name not in given]
    unknown = sorted(given.difference(wanted))
    if missing or unknown:
        problem = f"lacks {missing[0]!r}" if missing else f"has an unknown input {unknown[0]!r}"
        raise RequestError(f"{where} {problem}", hint=f"inputs: {', '.join(wanted) or 'none'}")


def min_position_of(document: Mapping[str, Any]) -> Position | None:
    text = document.get("min_position")
    if text is None:
        return None
    if not isinstance(text, str):
        # As a number 3.10 would be 3.1.
        raise RequestError(f"min_position is {text!r}", hint='write it as a string, "run.seq"')
    try:
        return Position.parse(text)
    except ManifestError as error:
        raise RequestError(
            f"min_position: {error.message}", hint='write it as a string, "run.seq"'
        ) from error


def wait_ms_of(document: Mapping[str, Any], max_wait_ms: int) -> int:
    wait_ms = document.get("wait_ms", 0)
    if isinstance(wait_ms, float) and wait_ms.is_integer():
        # The same number in JSON.
        wait_ms = int(wait_ms)
    if type(wait_ms) is not int or not 0 <= wait_ms <= max_wait_ms:
        raise RequestError(f"wait_ms is {wait_ms!r}", hint=f"give milliseconds from 0 to {max_wait_ms}")
    if wait_ms and document.get("min_position") is None:
        raise RequestError("wait_ms has no min_position to wait for")
    return wait_ms
