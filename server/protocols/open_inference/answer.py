"""Writes the answer to an inference request: JSON, and behind it the bytes of the outputs that are wanted so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from hotdelta.errors import RequestError
from server.predict.answer import to_json
from server.protocols.open_inference.datatypes import BYTES, datatype_of_array, to_bytes
from server.protocols.open_inference.request import InferRequest
from server.served_model import Array, ServedVersion


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """`json_size`: how much of the content is JSON; None: all of it."""

    content: bytes
    json_size: int | None


def write_answer(
    request: InferRequest, model_name: str, outputs: Mapping[str, Array], version: ServedVersion
) -> InferAnswer:
    """Raises RequestError for texts that JSON cannot write, PredictionError for dtypes that the protocol lacks."""
    described: list[dict[str, Any]] = []
    behind: list[bytes] = []
    for name, is_binary in request.outputs.items():
        array = outputs[name]
        item: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of_array(name, array),
            "shape": list(array.shape),
        }
        if is_binary:
            behind.append(to_bytes(array))
            item["parameters"] = {"binary_data_size": len(behind[-1])}
        else:
            item["data"] = _texts(name, array) if item["datatype"] == BYTES else to_json(array.reshape(-1))
        described.append(item)
    document: dict[str, Any] = {
        "model_name": model_name,
        "model_version": str(version.export_version),
        "parameters": {"step": version.step},
        "outputs": described,
    }
    if version.position is not None:
        document["parameters"]["position"] = str(version.position)
    if request.id is not None:
        document["id"] = request.id
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return InferAnswer(b"".join((head, *behind)), len(head)) if behind else InferAnswer(head, None)


def _texts(name: str, array: Array) -> list[str]:
    try:
        return [text.decode() for text in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise RequestError(
            f"output {name!r} has bytes that are no text", hint="ask for it with binary_data"
        ) from error
