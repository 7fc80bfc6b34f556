"""The OpenAPI description, written by hand: routes read their body themselves, and shape their answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from hotdelta.chain import SignatureSpec
from server.http.request_schemas import ANY_ARRAY as _ARRAY
from server.http.request_schemas import POSITION as _POSITION
from server.http.request_schemas import infer_example, infer_schema, predict_example, predict_schema

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "What is wrong, and what to do."}},
}
_REQUEST: dict[str, Any] = {
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
        "min_position": {**_POSITION, "description": "Else 409."},
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
                "position": {
                    **_POSITION,
                    "type": ["string", "null"],
                    "description": "null: an export of a model in memory, which nothing updates.",
                },
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

_SCHEME = "bearer"
_ORDER_REFUSALS = {
    "400": "The order cannot be read, or not be carried out. Nothing has changed.",
    "401": "It carries no token that is known.",
    "403": "The server was started without --admin-token-file, and takes no orders.",
    "404": "There is no such model, or none is marked as the default one.",
    "413": "The body is too large.",
    "500": "It could not be carried out: the log says why.",
    "503": "No model is served yet. See Retry-After.",
}


def _answer(**properties: dict[str, Any]) -> dict[str, Any]:
    """Of an order that was carried out."""
    return {
        "type": "object",
        "required": ["action", *properties, "by", "survives_restart"],
        "properties": {
            "action": {"type": "string", "example": "pin"},
            **properties,
            "by": {"type": "string", "description": "The name of the token."},
            "survives_restart": {"type": "boolean"},
        },
    }


_ORDER_ANSWER = _answer(
    position={"type": ["string", "null"], "description": "What is served now.", "example": "3.17"}
)


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _errors(texts: dict[str, str]) -> dict[str, Any]:
    return {status: {"description": text, "content": _json(_ERROR)} for status, text in texts.items()}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _order(
    body: dict[str, Any], *, is_required: bool, answer: dict[str, Any] = _ORDER_ANSWER
) -> dict[str, Any]:
    return {
        "security": [{_SCHEME: []}],
        "requestBody": {"required": is_required, "content": _json(body)},
        "responses": {
            "200": {"description": "It is carried out.", "content": _json(answer)},
            **_errors(_ORDER_REFUSALS),
        },
    }


def _states(described: dict[str, str]) -> dict[str, Any]:
    content = _json({"type": "object"})
    return {
        "responses": {status: {"description": text, "content": content} for status, text in described.items()}
    }


_PREDICT_RESPONSES = {
    "200": {
        "description": "The prediction and the position that it came from.",
        "headers": {"X-Model-Version": {"schema": {"type": "string"}, "description": "The position."}},
        "content": _json(_ANSWER),
    },
    **_errors(_REFUSALS),
}
_PREDICT = {
    "summary": "Predict",
    "description": "All of an answer comes from one position. The Content-Type of the request does not matter.",
    "requestBody": {"required": True, "content": _json(_REQUEST)},
    "responses": _PREDICT_RESPONSES,
}

_SERVING_REQUEST = {
    **_REQUEST,
    "additionalProperties": True,
    "description": "As TensorFlow Serving reads it: NaN and Infinity may be written, other members are not looked at.",
}
_SERVING_ANSWER = {
    "type": "object",
    "properties": {
        "predictions": {
            "type": "array",
            "description": "For 'instances': for each row a value, or an object of several outputs.",
            "items": _ARRAY,
        },
        "outputs": {"description": "For 'inputs': an array, or an object of several."},
    },
}
_UNKNOWN_MODEL = {"404": "No such model, version or label is served here."}
_MODEL = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[^/:]+$"},
}
_VERSION = {"name": "version", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}


_FEATURES = {
    "type": "object",
    "description": 'Features by name: strings, {"b64": "..."}, floats or integers, alone or in lists of one kind.',
    "additionalProperties": True,
}
_EXAMPLES_REQUEST = {
    "type": "object",
    "required": ["examples"],
    "properties": {
        "examples": {"type": "array", "minItems": 1, "items": _FEATURES},
        "context": {**_FEATURES, "description": "Features of all examples that do not have their own."},
        **{name: _REQUEST["properties"][name] for name in ("signature_name", "min_position", "wait_ms")},
    },
}
_EXAMPLES_ANSWER = {
    "type": "object",
    "required": ["results"],
    "properties": {
        "results": {
            "type": "array",
            "description": "One for each example: a number, or a list of [label, score].",
            "items": {},
        }
    },
}
_CLASSIFY = "Classes and scores of examples, as TensorFlow Serving gives them"
_REGRESS = "A number for each example, as TensorFlow Serving gives it"


def _serving_predict(*parameters: dict[str, Any]) -> dict[str, Any]:
    return _serving_call(
        "Predict, as TensorFlow Serving does", _SERVING_REQUEST, _SERVING_ANSWER, *parameters
    )


def _serving_examples(summary: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return _serving_call(summary, _EXAMPLES_REQUEST, _EXAMPLES_ANSWER, *parameters)


def _serving_call(
    summary: str, request: dict[str, Any], answer: dict[str, Any], *parameters: dict[str, Any]
) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": list(parameters),
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {
            "200": {
                "description": "The prediction.",
                "headers": {
                    "X-Model-Version": {"schema": {"type": "string"}, "description": "Its position."}
                },
                "content": _json(answer),
            },
            **_errors(_REFUSALS | _UNKNOWN_MODEL),
        },
    }


def _serving_document(summary: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": "Of the version that is served.", "content": _json({"type": "object"})},
            **_errors({"503": "No model is served yet. See Retry-After."} | _UNKNOWN_MODEL),
        },
    }


_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"type": "string", "example": "INT64"},
        "parameters": {
            "type": "object",
            "description": "binary_data_size: so many bytes behind the JSON are its data.",
        },
        "data": {"type": "array", "description": "Nested or flat.", "items": _ARRAY},
    },
}
_INFER_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "description": "signature_name, min_position, wait_ms, binary_data_output.",
        },
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
            },
        },
    },
}
_INFER_ANSWER = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "id": {"type": "string"},
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "parameters": {"type": "object", "description": "position and step that it came from."},
        "outputs": {"type": "array", "items": _TENSOR},
    },
}


def _infer(*parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": "Predict, by the Open Inference Protocol",
        "parameters": list(parameters),
        "description": "Tensors may also be sent as bytes behind the JSON, in the order of the inputs: each has its "
        "`binary_data_size` in its `parameters` in place of `data`, and the header Inference-Header-Content-Length "
        "says how many bytes of the body are JSON.",
        "requestBody": {"required": True, "content": _json(_INFER_REQUEST)},
        "responses": {
            "200": {
                "description": "The prediction.",
                "headers": {
                    "X-Model-Version": {"schema": {"type": "string"}, "description": "Its position."}
                },
                "content": _json(_INFER_ANSWER)
                | {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            },
            **_errors(_REFUSALS | _UNKNOWN_MODEL),
        },
    }


_STATUS, _METADATA = (
    "Its state, as TensorFlow Serving tells it",
    "Its signatures, as TensorFlow Serving tells them",
)

_INPUTS, _READY = "Its inputs and outputs, by the Open Inference Protocol", "Whether it can be asked"


def _of_model(described: dict[str, str]) -> dict[str, Any]:
    states = _states(described)
    states["responses"].update(_errors(_UNKNOWN_MODEL))
    return {"parameters": [_MODEL], **states}


_LABEL = {**_MODEL, "name": "label"}
_CHANGE_ANSWER = _answer(
    added={"type": "array", "items": {"type": "string"}},
    removed={"type": "array", "items": {"type": "string"}},
)
_LABEL_ANSWER = _answer(model={"type": "string"}, before={"type": ["string", "null"]})
_ORDERS = {
    "rollback": _order(
        {
            **_object(position=_POSITION, deltas={"type": "integer", "minimum": 1}),
            "oneOf": [{"required": ["position"]}, {"required": ["deltas"]}],
            "example": {"position": "3.17"},
        },
        is_required=True,
    ),
    "pin": _order(
        {**_object(position=_POSITION), "description": "Without a position: what is served now."},
        is_required=False,
    ),
    "resume": _order(_object(), is_required=False),
    "quarantine/release": _order({**_object(position=_POSITION), "required": ["position"]}, is_required=True),
}

# Only where a signature takes examples.
_OF_EXAMPLES = {
    (f"/v1/models/{{model}}{version}:{method}", "post"): _serving_examples(summary, *parameters)
    for method, summary in (("classify", _CLASSIFY), ("regress", _REGRESS))
    for version, parameters in (("", (_MODEL,)), ("/versions/{version}", (_MODEL, _VERSION)))
}

# By path and method; what FastAPI knows of a route is kept beside it.
_DESCRIBED: dict[tuple[str, str], dict[str, Any]] = {
    ("/predict", "post"): _PREDICT,
    ("/v1/models/{model}:predict", "post"): _serving_predict(_MODEL),
    ("/v1/models/{model}/versions/{version}:predict", "post"): _serving_predict(_MODEL, _VERSION),
    ("/v1/models/{model}", "get"): _serving_document(_STATUS, _MODEL),
    ("/v1/models/{model}/versions/{version}", "get"): _serving_document(_STATUS, _MODEL, _VERSION),
    ("/v1/models/{model}/metadata", "get"): _serving_document(_METADATA, _MODEL),
    ("/v1/models/{model}/versions/{version}/metadata", "get"): _serving_document(_METADATA, _MODEL, _VERSION),
    ("/v2/models/{model}/infer", "post"): _infer(_MODEL),
    ("/v2/models/{model}/versions/{version}/infer", "post"): _infer(_MODEL, _VERSION),
    ("/v2/models/{model}", "get"): _serving_document(_INPUTS, _MODEL),
    ("/v2/models/{model}/versions/{version}", "get"): _serving_document(_INPUTS, _MODEL, _VERSION),
    ("/v2/models/{model}/ready", "get"): _serving_document(_READY, _MODEL),
    ("/v2/models/{model}/versions/{version}/ready", "get"): _serving_document(_READY, _MODEL, _VERSION),
    ("/v2/repository/index", "post"): {
        "summary": "The models that are served here",
        "responses": {
            "200": {
                "description": "Those that serve something.",
                "content": _json({"type": "array", "items": {"type": "object"}}),
            },
            **_errors({"413": "The body is too large.", "503": "Too many requests wait. See Retry-After."}),
        },
    },
    ("/v2", "get"): _states({"200": "What this server is."}),
    ("/v2/health/live", "get"): _states({"200": "It answers."}),
    ("/v2/health/ready", "get"): _states(
        {"200": "Predictions can be answered.", "503": "Not yet. See Retry-After."}
    ),
    **{(f"/model/{verb}", "post"): described for verb, described in _ORDERS.items()},
    **{
        (f"/models/{{model}}/{verb}", "post"): described | {"parameters": [_MODEL]}
        for verb, described in _ORDERS.items()
    },
    ("/models/reload", "post"): _order(_object(), is_required=False, answer=_CHANGE_ANSWER),
    ("/models/{model}/load", "post"): _order(
        {
            "type": "object",
            "required": ["export_dir"],
            "properties": {"export_dir": {"type": "string"}, "checkpoint_dir": {"type": "string"}},
            "description": "The keys that a table [models.NAME] of the file of --config may have.",
        },
        is_required=True,
        answer=_CHANGE_ANSWER,
    )
    | {"parameters": [_MODEL]},
    ("/models/{model}/unload", "post"): _order(_object(), is_required=False, answer=_CHANGE_ANSWER)
    | {"parameters": [_MODEL]},
    ("/labels/{label}", "post"): _order(
        {**_object(model={"type": "string"}), "required": ["model"]}, is_required=True, answer=_LABEL_ANSWER
    )
    | {"parameters": [_LABEL]},
    ("/models", "get"): _states({"200": "Each with its labels, and how it is."}),
    ("/labels", "get"): _states({"200": "The model of each, and the one before it was moved."}),
    ("/models/{model}/predict", "post"): _PREDICT
    | {
        "parameters": [_MODEL],
        "responses": {**_PREDICT_RESPONSES, **_errors(_UNKNOWN_MODEL)},
    },
    ("/models/{model}/version", "get"): _of_model({"200": "What GET /model/version says, of this model."}),
    ("/models/{model}/ready", "get"): _of_model(
        {"200": "It can be asked.", "503": "Not yet; `reason` says what is waited for. See Retry-After."}
    ),
    ("/v1/models", "get"): _states({"200": "What can be asked: names of models, and labels."}),
    ("/", "get"): _states({"200": "The routes, and what each is for."}),
    ("/model/version", "get"): _states(
        {"200": "The position and how it was reached; null before there is one."}
    ),
    ("/readyz", "get"): _states(
        {
            "200": "Predictions can be answered.",
            "503": "Not yet; `reason` says what is waited for. See Retry-After.",
        }
    ),
    ("/metrics", "get"): {
        "responses": {
            "200": {
                "description": "In the format that is asked for.",
                "content": {
                    kind: {"schema": {"type": "string"}}
                    for kind in ("text/plain", "application/openmetrics-text")
                },
            }
        }
    },
    ("/healthz", "get"): _states(
        {
            "200": "The process and its threads are alive.",
            "500": "A thread has ended that should not have; false says which.",
        }
    ),
}


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """What the description says of a model while it is served."""

    name: str
    version: int
    signatures: Mapping[str, SignatureSpec]
    max_rows: int
    max_wait_ms: int
    takes_examples: bool = False


class Description:
    """The document of /openapi.json, of what is served now. Belongs to the event loop."""

    def __init__(
        self,
        app: FastAPI,
        served: Callable[[], Sequence[DescribedModel]],
        *,
        open_paths: Collection[str] | None,
    ) -> None:
        """`open_paths` are those that need no token of --predict-token-file; None: nobody needs one.

        Then what is served is not told here, either.
        """
        self._app = app
        self._served = served
        self._open_paths = open_paths
        self._made: tuple[Sequence[DescribedModel], dict[str, Any]] | None = None

    def document(self) -> dict[str, Any]:
        served = self._served() if self._open_paths is None else ()
        if self._made is None or self._made[0] != served:
            self._made = served, self._make(served)
        return self._made[1]

    def _make(self, served: Sequence[DescribedModel]) -> dict[str, Any]:
        app = self._app
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        paths = document["paths"]
        described_now = _DESCRIBED
        if not served or any(model.takes_examples for model in served):
            described_now = _DESCRIBED | _OF_EXAMPLES
        for (path, method), described in described_now.items():
            paths.setdefault(path, {}).setdefault(method, {}).update(copy.deepcopy(described))
        if served:
            _name_models(paths, served)
        if len(served) == 1:
            _describe_requests(paths, served[0])
        if self._open_paths is not None:
            _require_tokens(paths, self._open_paths)
        told = "A token of --admin-token-file; of --predict-token-file for all that is no order."
        scheme = {"type": "http", "scheme": "bearer", "description": told}
        document.setdefault("components", {})["securitySchemes"] = {_SCHEME: scheme}
        return document


def _name_models(paths: dict[str, Any], served: Sequence[DescribedModel]) -> None:
    """Which models and versions there are."""
    known = {
        "model": {"type": "string", "enum": [model.name for model in served]},
        "version": {"type": "integer", "enum": sorted({model.version for model in served})},
    }
    for path, operations in paths.items():
        # A model that is to be loaded has a name of its own.
        for operation in operations.values() if path != "/models/{model}/load" else ():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in known:
                    parameter["schema"] = known[parameter["name"]]


def _describe_requests(paths: dict[str, Any], model: DescribedModel) -> None:
    """What its signatures take."""
    limits = {"max_rows": model.max_rows, "max_wait_ms": model.max_wait_ms}
    rows, tensors = predict_example(model.signatures), infer_example(model.signatures)
    own = predict_schema(model.signatures, is_closed=True, **limits)
    serving = predict_schema(model.signatures, is_closed=False, **limits)
    infer = infer_schema(model.signatures, **limits)
    for path, schema, example in (
        ("/predict", own, rows),
        ("/models/{model}/predict", own, rows),
        ("/v1/models/{model}:predict", serving, rows),
        ("/v1/models/{model}/versions/{version}:predict", serving, rows),
        ("/v2/models/{model}/infer", infer, tensors),
        ("/v2/models/{model}/versions/{version}/infer", infer, tensors),
    ):
        content = {"application/json": {"schema": schema, "example": example}}
        paths[path]["post"]["requestBody"]["content"] = content


def _require_tokens(paths: dict[str, Any], open_paths: Collection[str]) -> None:
    refusal = _errors({"401": "It carries no token that is known."})
    for path, operations in paths.items():
        if path not in open_paths:
            for operation in operations.values():
                operation.setdefault("security", [{_SCHEME: []}])
                operation["responses"].setdefault("401", refusal["401"])
