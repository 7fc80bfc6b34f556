"""Inference requests and answers as messages: tensors as bytes (raw), or as lists of their type.

An answer is written as its request was: raw for raw, lists for lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import RequestError
from server.predict.input_arrays import require_told_shape
from server.predict.request import find_signature, refuse_empty
from server.protocols.open_inference.datatypes import (
    BYTES,
    datatype_of,
    datatype_of_array,
    from_bytes,
    to_bytes,
)
from server.protocols.open_inference.request import refuse_unsupported
from server.rpc.messages import PACKED, Message, kind, packed
from server.served_model import Array, ServedVersion

# In which list the values of a datatype are, and as what. FP16 and BF16 have none.
_LISTS: dict[str, tuple[str, str]] = {
    "BOOL": ("bool_contents", "bool"),
    **{f"INT{bits}": ("int_contents", "int32") for bits in (8, 16, 32)},
    "INT64": ("int64_contents", "int64"),
    **{f"UINT{bits}": ("uint_contents", "uint32") for bits in (8, 16, 32)},
    "UINT64": ("uint64_contents", "uint64"),
    "FP32": ("fp32_contents", "float32"),
    "FP64": ("fp64_contents", "float64"),
    BYTES: ("bytes_contents", "object"),
}


@dataclass(frozen=True, slots=True)
class InferMessage:
    """What a client asks for, and how the answer is to be written. `parameters`: of the whole request."""

    signature: str
    feeds: Mapping[str, Array]
    parameters: Mapping[str, Any]
    outputs: Sequence[str]
    id: str
    is_raw: bool


def read_request(request: Message, signatures: Mapping[str, SignatureSpec]) -> InferMessage:
    """Raises RequestError, or NotReadyError when nothing is served yet."""
    parameters = _parameters(request.parameters, "the request")
    signature, spec = find_signature(parameters, signatures)
    is_raw = bool(request.raw_input_contents)
    if is_raw and len(request.raw_input_contents) != len(request.inputs):
        raise RequestError(
            f"there are {len(request.inputs)} inputs, and {len(request.raw_input_contents)} raw_input_contents"
        )
    return InferMessage(
        signature=signature,
        feeds=_feeds(spec, request),
        parameters=parameters,
        outputs=_outputs(spec, request),
        id=request.id,
        is_raw=is_raw,
    )


def write_answer(
    asked: InferMessage, model_name: str, outputs: Mapping[str, Array], version: ServedVersion
) -> Message:
    """Raises PredictionError for dtypes that the protocol lacks."""
    response = kind("inference.ModelInferResponse")(
        model_name=model_name, model_version=str(version.export_version), id=asked.id
    )
    response.parameters["step"].int64_param = version.step
    if version.position is not None:
        response.parameters["position"].string_param = str(version.position)
    datatypes = {name: datatype_of_array(name, outputs[name]) for name in asked.outputs}
    # What has no list can only be raw, and one answer is not both.
    is_raw = asked.is_raw or any(datatype not in _LISTS for datatype in datatypes.values())
    for name, datatype in datatypes.items():
        array = outputs[name]
        written = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if is_raw:
            response.raw_output_contents.append(to_bytes(array))
        elif _LISTS[datatype][1] in PACKED:
            written.contents.MergeFromString(packed(written.contents, _LISTS[datatype][0], array))
        else:
            getattr(written.contents, _LISTS[datatype][0]).extend(array.reshape(-1).tolist())
    return response


def _feeds(spec: SignatureSpec, request: Message) -> dict[str, Array]:
    tensors = {tensor.name: tensor for tensor in spec.inputs}
    feeds: dict[str, Array] = {}
    for number, given in enumerate(request.inputs):
        tensor = tensors.get(given.name)
        if tensor is None or given.name in feeds:
            problem = "is there twice" if tensor else "is not known"
            raise RequestError(
                f"input {given.name!r} {problem}", hint=f"inputs: {', '.join(tensors) or 'none'}"
            )
        _parameters(given.parameters, f"input {given.name!r}")
        shape = _shape(tensor, given)
        if request.raw_input_contents:
            if given.HasField("contents"):
                raise RequestError(f"input {given.name!r} has contents beside raw_input_contents")
            data = memoryview(request.raw_input_contents[number])
            feeds[given.name] = from_bytes(tensor, data, shape)
        else:
            feeds[given.name] = _from_list(tensor, given, shape)
        refuse_empty(given.name, feeds[given.name])
    missing = next((name for name in tensors if name not in feeds), None)
    if missing is not None:
        raise RequestError(f"input {missing!r} is missing", hint=f"inputs: {', '.join(tensors)}")
    return feeds


def _shape(tensor: TensorSpec, given: Message) -> tuple[int, ...]:
    wanted = datatype_of(tensor.dtype)
    if given.datatype != wanted:
        raise RequestError(f"input {tensor.name!r} is {given.datatype!r}, the signature wants {wanted}")
    shape = tuple(given.shape)
    require_told_shape(tensor, shape)
    return shape


def _from_list(tensor: TensorSpec, given: Message, shape: tuple[int, ...]) -> Array:
    if given.datatype not in _LISTS:
        raise RequestError(
            f"input {tensor.name!r} is {given.datatype}, which has no list", hint="send raw_input_contents"
        )
    field, stored = _LISTS[given.datatype]
    values = getattr(given.contents, field)
    if len(values) != math.prod(shape):
        raise RequestError(
            f"input {tensor.name!r} has {len(values)} values in {field}, its shape {list(shape)} needs "
            f"{math.prod(shape)}"
        )
    if given.datatype == BYTES:
        texts = np.empty(len(values), object)
        texts[:] = list(values)
        return texts.reshape(shape)
    array = np.array(values, stored)
    converted = array.astype(tensor.dtype, copy=False)
    if converted is not array and not np.array_equal(array, converted):
        raise RequestError(f"input {tensor.name!r} holds numbers that do not fit into {tensor.dtype}")
    return converted.reshape(shape)


def _outputs(spec: SignatureSpec, request: Message) -> list[str]:
    names = [tensor.name for tensor in spec.outputs]
    wanted = []
    for item in request.outputs:
        if item.name not in names:
            raise RequestError(
                f"outputs has an unknown name {item.name!r}", hint=f"outputs: {', '.join(names) or 'none'}"
            )
        _parameters(item.parameters, f"output {item.name!r}")
        wanted.append(item.name)
    return list(dict.fromkeys(wanted)) or names


def _parameters(given: Mapping[str, Message], where: str) -> dict[str, Any]:
    parameters = {name: _value(parameter) for name, parameter in given.items()}
    refuse_unsupported(parameters, where)
    return parameters


def _value(parameter: Message) -> Any:
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)
