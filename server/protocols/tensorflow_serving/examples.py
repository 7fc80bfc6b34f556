"""Classify and regress: examples (tf.Example) in, classes or one number for each of them out.

A signature is asked so when it is made as TensorFlow Serving wants it: one input `inputs` of strings (or `examples`, as
a receiver of tf.estimator calls it), and the outputs `classes` and `scores`, or one of them; or `outputs`. Nobody here
looks inside an example: the signature does.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotdelta.chain import SignatureSpec
from hotdelta.errors import RequestError
from server.predict.request import find_signature
from server.rpc.messages import kind
from server.served_model import Array

_INPUTS = ("inputs", "examples")
_SHAPES = (None, (None,))
_CLASSES, _SCORES = "classes", "scores"
_VALUES = "outputs"
_HINT = "ask Predict (:predict), with the inputs of the signature"
_INT64 = range(-(2**63), 2**63)


FindSignature = Callable[[Mapping[str, Any], Mapping[str, SignatureSpec]], tuple[str, SignatureSpec]]


@dataclass(frozen=True, slots=True)
class Classified:
    """For each example so many labels and scores; a signature may give only one of them."""

    labels: Array | None
    scores: Array | None


def signature_that_classifies(
    document: Mapping[str, Any], signatures: Mapping[str, SignatureSpec]
) -> tuple[str, SignatureSpec]:
    """By its `signature_name`. Raises RequestError, or NotReadyError when nothing is served yet."""
    name, spec = find_signature(document, signatures)
    _require_examples(name, spec)
    outputs = {tensor.name for tensor in spec.outputs}
    if not outputs or outputs - {_CLASSES, _SCORES}:
        raise RequestError(
            f"signature {name!r} does not classify: its outputs are not {_CLASSES!r} and {_SCORES!r}",
            hint=_HINT,
        )
    return name, spec


def signature_that_regresses(
    document: Mapping[str, Any], signatures: Mapping[str, SignatureSpec]
) -> tuple[str, SignatureSpec]:
    """By its `signature_name`. Raises RequestError, or NotReadyError when nothing is served yet."""
    name, spec = find_signature(document, signatures)
    _require_examples(name, spec)
    if [tensor.name for tensor in spec.outputs] != [_VALUES]:
        raise RequestError(
            f"signature {name!r} does not regress: it has not the one output {_VALUES!r}", hint=_HINT
        )
    return name, spec


def takes_examples(signatures: Mapping[str, SignatureSpec]) -> bool:
    """Whether one of them classifies or regresses."""
    for name in signatures:
        for find in (signature_that_classifies, signature_that_regresses):
            with contextlib.suppress(RequestError):
                find({"signature_name": name}, signatures)
                return True
    return False


def _require_examples(name: str, spec: SignatureSpec) -> None:
    given = spec.inputs[0] if len(spec.inputs) == 1 else None
    if given is None or given.name not in _INPUTS or given.dtype != "string" or given.shape not in _SHAPES:
        raise RequestError(
            f"signature {name!r} takes no examples: it has not the one input {_INPUTS[0]!r} of strings",
            hint=_HINT,
        )


def feeds_of(spec: SignatureSpec, examples: Sequence[bytes]) -> dict[str, Array]:
    """For a signature that takes them. Raises RequestError when there are none."""
    if not examples:
        raise RequestError("there are no examples", hint="send at least one")
    array = np.empty(len(examples), object)
    array[:] = examples
    return {spec.inputs[0].name: array}


def classified(outputs: Mapping[str, Array], *, examples: int) -> Classified:
    """Raises RequestError when the outputs are not as they should be."""
    labels, scores = outputs.get(_CLASSES), outputs.get(_SCORES)
    for name, array, is_right in (
        (_CLASSES, labels, labels is None or labels.dtype == object),
        (_SCORES, scores, scores is None or scores.dtype == np.float32),
    ):
        if array is not None and (not is_right or array.ndim != 2 or len(array) != examples):
            raise RequestError(
                f"output {name!r} is {array.dtype.name} of shape {list(array.shape)}, not one row for each example",
                hint=_HINT,
            )
    if labels is not None and scores is not None and labels.shape != scores.shape:
        raise RequestError(f"{_CLASSES!r} and {_SCORES!r} have different shapes", hint=_HINT)
    return Classified(labels, scores)


def regressed(outputs: Mapping[str, Array], *, examples: int) -> Array:
    """One float for each example. Raises RequestError."""
    values = outputs[_VALUES]
    if values.dtype != np.float32 or values.shape not in ((examples,), (examples, 1)):
        raise RequestError(
            f"output {_VALUES!r} is {values.dtype.name} of shape {list(values.shape)}, not one float for each example",
            hint=_HINT,
        )
    return values.reshape(-1)


def examples_of(document: Mapping[str, Any]) -> list[bytes]:
    """From `examples` and `context` as they are written in JSON. Raises RequestError."""
    given = document.get("examples")
    if not isinstance(given, list) or not given:
        raise RequestError(
            "'examples' is not a list of at least one object", hint='send {"examples": [{...}]}'
        )
    # What has two values for a feature has the last one: an example wins over the context.
    context = b"" if "context" not in document else _example("context", document["context"])
    return [context + _example(f"examples[{number}]", each) for number, each in enumerate(given)]


def _example(where: str, features: Any) -> bytes:
    if not isinstance(features, dict):
        raise RequestError(f"{where} is not an object", hint="its members are features")
    written = {name: _feature(f"{where}[{name!r}]", value) for name, value in features.items()}
    try:
        found: bytes = kind("tensorflow.Example")(features={"feature": written}).SerializeToString()
    except ValueError as error:
        raise RequestError(f"{where} has a name that is no text: {error}") from error
    return found


def _feature(where: str, value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    kinds = {_kind_of(where, each) for each in values}
    if len(kinds) > 1:
        raise RequestError(f"{where} has values of several kinds", hint="write 1.0 for 1 among floats")
    feature = kind("tensorflow.Feature")()
    if "bytes" in kinds:
        feature.bytes_list.value.extend([_bytes(where, each) for each in values])
    elif "float" in kinds:
        feature.float_list.value.extend(_floats(where, values))
    elif "int64" in kinds:
        feature.int64_list.value.extend(map(int, values))
    return feature


def _floats(where: str, values: list[float]) -> list[float]:
    with np.errstate(over="ignore"):
        found = np.array(values, np.float32)
    if (np.isinf(found) & np.isfinite(values)).any():
        raise RequestError(f"{where} holds numbers that do not fit into float32")
    numbers: list[float] = found.tolist()
    return numbers


def _kind_of(where: str, value: Any) -> str:
    if isinstance(value, str) or (isinstance(value, dict) and value.keys() == {"b64"}):
        return "bytes"
    if isinstance(value, float):
        return "float"
    if isinstance(value, int) and value in _INT64:
        return "int64"
    raise RequestError(
        f"{where} holds a value that is no feature", hint='strings, {"b64": "..."}, floats or 64-bit integers'
    )


def _bytes(where: str, value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise RequestError(f"{where} holds bytes that are not base64, or no text: {error}") from error
