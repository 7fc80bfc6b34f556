"""Reads the body of an inference request: JSON, and behind it the bytes of the tensors that are not in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import RequestError
from server.predict.input_arrays import require_told_shape, to_array
from server.predict.number_bodies import read_numbers
from server.predict.request import (
    PredictRequest,
    find_signature,
    min_position_of,
    parse_json,
    refuse_empty,
    require_object,
    wait_ms_of,
)
from server.protocols.open_inference.datatypes import datatype_of, from_bytes
from server.served_model import Array

_UNSUPPORTED = ("shared_memory_region", "classification")


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What a client asks for, and how the answer is to be written: the wanted outputs, and which of them as bytes."""

    asked: PredictRequest
    id: str | None
    outputs: Mapping[str, bool]


def read_request(
    body: bytes, *, json_size: int | None, signatures: Mapping[str, SignatureSpec], max_wait_ms: int
) -> InferRequest:
    """`json_size`: how much of the body is JSON; None: all of it.

    Raises RequestError, or NotReadyError when nothing is served yet.
    """
    if json_size is not None and json_size > len(body):
        raise RequestError(
            f"the body has {len(body)} bytes, and Inference-Header-Content-Length says {json_size}"
        )
    head = body if json_size is None else body[:json_size]

    def read(document: Any) -> InferRequest:
        parameters = _parameters(require_object(document), "the body")
        signature, spec = find_signature(parameters, signatures)
        feeds = _feeds(spec, _objects(document, "inputs"), memoryview(body)[len(head) :])
        wait_ms = wait_ms_of(parameters, max_wait_ms)
        asked = PredictRequest(signature, feeds, None, min_position_of(parameters), wait_ms)
        identity = document.get("id")
        if identity is not None and not isinstance(identity, str):
            raise RequestError(f"id is {identity!r}", hint="write it as a string")
        return InferRequest(asked, identity, _outputs(spec, document, parameters))

    return read_numbers(head, read, parse_json)


def _feeds(spec: SignatureSpec, given: list[dict[str, Any]], data: memoryview) -> dict[str, Array]:
    tensors = {tensor.name: tensor for tensor in spec.inputs}
    feeds: dict[str, Array] = {}
    place = 0
    for item in given:
        name = _name(item, "inputs", tensors)
        if name in feeds:
            raise RequestError(f"input {name!r} is there twice")
        parameters = _parameters(item, f"input {name!r}")
        size = parameters.get("binary_data_size")
        if size is None:
            feeds[name] = _from_json(tensors[name], item)
        else:
            feeds[name] = _from_binary(tensors[name], item, data[place:], size)
            place += size
        refuse_empty(name, feeds[name])
    missing = next((name for name in tensors if name not in feeds), None)
    if missing is not None:
        raise RequestError(f"input {missing!r} is missing", hint=f"inputs: {', '.join(tensors)}")
    if place != len(data):
        raise RequestError(f"{len(data) - place} bytes behind the JSON belong to no input")
    return feeds


def _from_json(tensor: TensorSpec, item: Mapping[str, Any]) -> Array:
    """From nested lists, or flat ones."""
    shape = _shape(tensor, item)
    if "data" not in item:
        raise RequestError(f"input {tensor.name!r} has no data", hint="give data, or binary_data_size")
    array = to_array(TensorSpec(tensor.name, None, tensor.dtype), item["data"])
    if array.shape != shape and (array.ndim != 1 or array.size != _size(shape)):
        raise RequestError(f"the data of input {tensor.name!r} do not have its shape {list(shape)}")
    return array.reshape(shape)


def _from_binary(tensor: TensorSpec, item: Mapping[str, Any], data: memoryview, size: Any) -> Array:
    if type(size) is not int or not 0 <= size <= len(data):
        raise RequestError(
            f"binary_data_size of input {tensor.name!r} is {size!r}, and {len(data)} bytes are left",
            hint="send Inference-Header-Content-Length, and the bytes behind the JSON",
        )
    return from_bytes(tensor, data[:size], _shape(tensor, item))


def _shape(tensor: TensorSpec, item: Mapping[str, Any]) -> tuple[int, ...]:
    """Raises RequestError for one that does not fit the signature, or of another datatype."""
    wanted, given = datatype_of(tensor.dtype), item.get("datatype")
    if given != wanted:
        raise RequestError(f"input {tensor.name!r} is {given}, the signature wants {wanted}")
    shape = item.get("shape")
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        raise RequestError(
            f"the shape of input {tensor.name!r} is {shape!r}", hint="give a list of whole numbers"
        )
    require_told_shape(tensor, tuple(shape))
    return tuple(shape)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for axis in shape:
        size *= axis
    return size


def _outputs(
    spec: SignatureSpec, document: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, bool]:
    is_binary = _flag(parameters, "binary_data_output", default=False)
    names = {tensor.name: tensor for tensor in spec.outputs}
    if document.get("outputs") in (None, []):
        return dict.fromkeys(names, is_binary)
    return {
        _name(item, "outputs", names): _flag(
            _parameters(item, f"output {item.get('name')!r}"), "binary_data", default=is_binary
        )
        for item in _objects(document, "outputs")
    }


def _objects(document: Mapping[str, Any], member: str) -> list[dict[str, Any]]:
    found = document.get(member)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise RequestError(f"{member!r} is not a list of objects", hint='each has a "name"')
    return found


def _name(item: Mapping[str, Any], member: str, known: Mapping[str, TensorSpec]) -> str:
    name = item.get("name")
    if not isinstance(name, str) or name not in known:
        raise RequestError(
            f"{member} has an unknown name {name!r}", hint=f"{member}: {', '.join(known) or 'none'}"
        )
    return name


def _parameters(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = document.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"the parameters of {where} are not an object")
    refuse_unsupported(parameters, where)
    return parameters


def refuse_unsupported(parameters: Mapping[str, Any], where: str) -> None:
    refused = next((name for name in _UNSUPPORTED if name in parameters), None)
    if refused is not None:
        raise RequestError(f"{where} has the parameter {refused!r}, which is not taken here")


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {value!r}", hint="write true or false")
    return value
