"""The OpenAPI description of routes that read their body themselves, written by hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "What is wrong, and what to do."}},
}
_ARRAY = {
    "description": "A number, boolean, string, {'b64': ...}, or lists of them nested as the input has axes."
}

_REQUEST = {
    "type": "object",
    "additionalProperties": False,
    "oneOf": [{"required": ["inputs"]}, {"required": ["instances"]}],
    "properties": {
        "inputs": {
            "description": "Columns: one array for each input, by name.",
            "additionalProperties": _ARRAY,
        },
        "instances": {
            "type": "array",
            "minItems": 1,
            "description": "Rows: with one input a list of values, with several a list of objects.",
            "items": _ARRAY,
        },
        "signature_name": {"type": "string", "default": "serving_default"},
        "min_position": {
            "type": "string",
            "pattern": r"^\d+\.\d+$",
            "description": "Else 409.",
            "example": "3.17",
        },
        "wait_ms": {
            "type": "integer",
            "minimum": 0,
            "description": "Wait so long for min_position before 409.",
        },
    },
}

_ANSWER = {
    "type": "object",
    "required": ["version"],
    "properties": {
        "outputs": {
            "description": "For 'inputs': one array for each output.",
            "additionalProperties": _ARRAY,
        },
        "predictions": {
            "type": "array",
            "description": "For 'instances': one item for each row.",
            "items": _ARRAY,
        },
        "version": {
            "type": "object",
            "required": ["position", "step"],
            "properties": {
                "position": {"type": "string", "example": "3.17"},
                "step": {"type": "integer", "example": 1010},
            },
        },
    },
}

_REFUSALS = {
    "400": "The request cannot be answered as it stands: JSON, names, shapes, types, ids.",
    "409": "min_position is not served yet; `position` is.",
    "413": "The body is too large.",
    "500": "The model failed at a request that was in order.",
    "503": "No model is served yet, or too many requests wait. See Retry-After.",
    "504": "The model did not answer in time.",
}

_PREDICT = {
    "summary": "Predict",
    "description": "All of an answer comes from one position. The Content-Type of the request does not matter.",
    "requestBody": {"required": True, "content": {"application/json": {"schema": _REQUEST}}},
    "responses": {
        "200": {
            "description": "The prediction and the position that it came from.",
            "headers": {"X-Model-Version": {"schema": {"type": "string"}, "description": "The position."}},
            "content": {"application/json": {"schema": _ANSWER}},
        },
        **{
            status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
            for status, text in _REFUSALS.items()
        },
    },
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The document of /openapi.json."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        document["paths"]["/predict"] = {"post": _PREDICT}
        app.openapi_schema = document
    return app.openapi_schema
