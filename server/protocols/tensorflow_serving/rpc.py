"""TensorFlow Serving's gRPC: PredictionService and ModelService."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import RequestError
from server.models.models import Models
from server.models.target import Target
from server.predict.batching import Answer
from server.predict.request import DEFAULT_SIGNATURE, PredictRequest, find_signature, refuse_empty
from server.protocols.rpc import wishes_of
from server.protocols.tensorflow_serving.documents import metadata_document
from server.protocols.tensorflow_serving.examples import (
    Classified,
    FindSignature,
    classified,
    feeds_of,
    regressed,
    signature_that_classifies,
    signature_that_regresses,
)
from server.protocols.tensorflow_serving.tensors import to_array, to_message
from server.rpc.calls import Call, Service
from server.rpc.messages import Message, kind, pool
from server.served_model import Array

PROTOCOL = "tensorflow_serving_grpc"
PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"

_SIGNATURES = "signature_def"
_SIGNATURES_TYPE = "tensorflow.serving.SignatureDefMap"
_REFUSED = {
    "MultiInference": "ask Predict, Classify or Regress for each of them",
    "PredictStreamed": "ask Predict",
    "HandleReloadConfigRequest": "this server is told what to serve where it is started",
}


class TensorFlowServingCalls:
    """Translates messages. Belongs to the event loop.

    `max_tensor_bytes`: how large an input may become when it is read.
    """

    def __init__(self, models: Models, *, max_tensor_bytes: int) -> None:
        self._models = models
        self._max_tensor_bytes = max_tensor_bytes

    def services(self) -> tuple[Service, ...]:
        examples = kind("hotdelta.serialized.ExamplesRequest")
        predictions = Service(
            PREDICTION_SERVICE,
            methods={
                "Predict": self._predict,
                "Classify": self._classify,
                "Regress": self._regress,
                "GetModelMetadata": self._metadata,
            },
            reads={"Classify": examples, "Regress": examples},
            refused=_REFUSED,
            protocol=PROTOCOL,
        )
        models = Service(MODEL_SERVICE, {"GetModelStatus": self._status}, refused=_REFUSED, protocol=PROTOCOL)
        return predictions, models

    async def _predict(self, request: Message, call: Call) -> Message:
        target = _target(request.model_spec)
        plane = self._models.find(target)[0].plane
        name, spec = find_signature(_named(request.model_spec), plane.signatures)
        wanted = _wanted_outputs(spec, request.output_filter)
        feeds = self._feeds(spec, request.inputs)
        asked = PredictRequest(name, feeds, None, *wishes_of(call, {}, plane.max_wait_ms))
        outputs, version = await plane.predict(asked, protocol=PROTOCOL)
        target.require_version(version.export_version)
        response = kind("tensorflow.serving.PredictResponse")(
            model_spec=_spec(target, version.export_version, name)
        )
        for output in wanted:
            response.outputs[output].CopyFrom(to_message(output, outputs[output]))
        call.tell(version, plane.told_name)
        return response

    async def _classify(self, request: Message, call: Call) -> Message:
        asked, (outputs, version) = await self._ask_examples(request, call, signature_that_classifies)
        found = classified(outputs, examples=asked.rows or 0)
        return kind("tensorflow.serving.ClassificationResponse")(
            model_spec=_spec(_target(request.model_spec), version.export_version, asked.signature),
            result={"classifications": [{"classes": classes} for classes in _classes(found)]},
        )

    async def _regress(self, request: Message, call: Call) -> Message:
        asked, (outputs, version) = await self._ask_examples(request, call, signature_that_regresses)
        values = regressed(outputs, examples=asked.rows or 0)
        return kind("tensorflow.serving.RegressionResponse")(
            model_spec=_spec(_target(request.model_spec), version.export_version, asked.signature),
            result={"regressions": [{"value": value} for value in values.tolist()]},
        )

    async def _ask_examples(
        self, request: Message, call: Call, find: FindSignature
    ) -> tuple[PredictRequest, Answer]:
        target = _target(request.model_spec)
        plane = self._models.find(target)[0].plane
        name, spec = find(_named(request.model_spec), plane.signatures)
        examples = _examples(request.input)
        wishes = wishes_of(call, {}, plane.max_wait_ms)
        asked = PredictRequest(name, feeds_of(spec, examples), len(examples), *wishes)
        outputs, version = await plane.predict(asked, protocol=PROTOCOL)
        target.require_version(version.export_version)
        call.tell(version, plane.told_name)
        return asked, (outputs, version)

    async def _metadata(self, request: Message, _call: Call) -> Message:
        asked = list(request.metadata_field)
        if asked != [_SIGNATURES]:
            raise RequestError(f"metadata_field is {asked}", hint=f"ask for {_SIGNATURES}")
        target = _target(request.model_spec)
        entry, version = self._models.find(target)
        document = metadata_document(target.name, version, entry.plane.signatures)
        described = document["metadata"][_SIGNATURES][_SIGNATURES]
        signatures = kind(_SIGNATURES_TYPE)()
        for name, signature in described.items():
            signatures.signature_def[name].CopyFrom(_signature(signature))
        response = kind("tensorflow.serving.GetModelMetadataResponse")(model_spec=_spec(target, version, ""))
        response.metadata[_SIGNATURES].type_url = f"type.googleapis.com/{_SIGNATURES_TYPE}"
        response.metadata[_SIGNATURES].value = signatures.SerializeToString()
        return response

    async def _status(self, request: Message, _call: Call) -> Message:
        _, version = self._models.find(_target(request.model_spec))
        state = {"version": version, "state": "AVAILABLE", "status": {"error_code": "OK"}}
        return kind("tensorflow.serving.GetModelStatusResponse")(model_version_status=[state])

    def _feeds(self, spec: SignatureSpec, given: Mapping[str, Message]) -> dict[str, Array]:
        wanted = {tensor.name: tensor for tensor in spec.inputs}
        unknown = sorted(set(given) - wanted.keys())
        missing = [name for name in wanted if name not in given]
        if missing or unknown:
            problem = f"lacks {missing[0]!r}" if missing else f"has an unknown input {unknown[0]!r}"
            raise RequestError(f"inputs {problem}", hint=f"inputs: {', '.join(wanted) or 'none'}")
        feeds = {name: self._feed(tensor, given[name]) for name, tensor in wanted.items()}
        for name, array in feeds.items():
            refuse_empty(name, array)
        return feeds

    def _feed(self, tensor: TensorSpec, message: Message) -> Array:
        return to_array(tensor, message, max_bytes=self._max_tensor_bytes)


def _target(spec: Message) -> Target:
    if not spec.name:
        raise RequestError("model_spec has no name", hint="name the model")
    choice = spec.WhichOneof("version_choice")
    version = spec.version.value if choice == "version" else None
    return Target(spec.name, version, spec.version_label if choice == "version_label" else None)


def _named(spec: Message) -> dict[str, str]:
    return {"signature_name": spec.signature_name or DEFAULT_SIGNATURE}


def _spec(target: Target, version: int, signature: str) -> dict[str, Any]:
    return {"name": target.name, "version": {"value": version}, "signature_name": signature}


def _wanted_outputs(spec: SignatureSpec, output_filter: Any) -> list[str]:
    names = [tensor.name for tensor in spec.outputs]
    wanted = list(output_filter)
    unknown = next((name for name in wanted if name not in names), None)
    if unknown is not None or len(set(wanted)) != len(wanted):
        problem = "names an output twice" if unknown is None else f"has an unknown output {unknown!r}"
        raise RequestError(f"output_filter {problem}", hint=f"outputs: {', '.join(names) or 'none'}")
    return wanted or names


def _examples(given: Message) -> list[bytes]:
    if given.WhichOneof("kind") == "example_list_with_context":
        found = given.example_list_with_context
        # What has two values for a feature has the last one: an example wins over the context.
        return [found.context + example for example in found.examples]
    return list(given.example_list.examples)


def _classes(found: Classified) -> list[list[dict[str, Any]]]:
    labels = None if found.labels is None else found.labels.tolist()
    scores = None if found.scores is None else found.scores.tolist()
    if labels is None:
        return [[{"score": score} for score in row] for row in scores or []]
    texts = [[label.decode(errors="replace") for label in row] for row in labels]
    if scores is None:
        return [[{"label": label} for label in row] for row in texts]
    return [
        [{"label": label, "score": score} for label, score in zip(*row, strict=True)]
        for row in zip(texts, scores, strict=True)
    ]


def _signature(described: Mapping[str, Any]) -> Message:
    signature = kind("tensorflow.SignatureDef")(method_name=described["method_name"])
    for place in ("inputs", "outputs"):
        for name, tensor in described[place].items():
            shape = tensor["tensor_shape"]
            getattr(signature, place)[name].CopyFrom(
                kind("tensorflow.TensorInfo")(
                    name=tensor["name"],
                    dtype=_known_type(tensor["dtype"]),
                    tensor_shape={
                        "dim": [{"size": int(dim["size"])} for dim in shape["dim"]],
                        "unknown_rank": shape["unknown_rank"],
                    },
                )
            )
    return signature


def _known_type(name: str) -> str:
    return name if name in pool().FindEnumTypeByName("tensorflow.DataType").values_by_name else "DT_INVALID"
