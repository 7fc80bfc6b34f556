"""The Open Inference Protocol by gRPC: GRPCInferenceService."""

from __future__ import annotations

from hotdelta.errors import NotReadyError, UnknownModelError
from server.models.models import Models
from server.models.target import Target
from server.predict.request import PredictRequest
from server.protocols.open_inference.documents import (
    index_document,
    metadata_document,
    require_all_ready,
    require_ready,
    server_document,
)
from server.protocols.open_inference.messages import read_request, write_answer
from server.protocols.rpc import wishes_of
from server.rpc.calls import Call, Service
from server.rpc.messages import Message, kind

PROTOCOL = "open_inference_grpc"
INFERENCE_SERVICE = "inference.GRPCInferenceService"

_REFUSED = {
    "ModelStreamInfer": "ask ModelInfer",
    "ModelConfig": "ask ModelMetadata for the inputs and outputs",
    "RepositoryModelLoad": "this server is told what to serve where it is started",
    "RepositoryModelUnload": "this server is told what to serve where it is started",
    **{
        f"{memory}SharedMemory{verb}": "send the tensors in the message"
        for memory in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
}


class OpenInferenceCalls:
    """Translates messages. Belongs to the event loop."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def service(self) -> Service:
        return Service(
            INFERENCE_SERVICE,
            methods={
                "ServerLive": self._server_live,
                "ServerReady": self._server_ready,
                "ModelReady": self._model_ready,
                "ServerMetadata": self._server_metadata,
                "ModelMetadata": self._model_metadata,
                "ModelInfer": self._infer,
                "RepositoryIndex": self._index,
            },
            refused=_REFUSED,
            protocol=PROTOCOL,
            needs_no_token=frozenset({"ServerLive", "ServerReady", "ModelReady"}),
        )

    async def _infer(self, request: Message, call: Call) -> Message:
        target = _target(request.model_name, request.model_version)
        plane = self._models.find(target)[0].plane
        read = read_request(request, plane.signatures)
        wishes = wishes_of(call, read.parameters, plane.max_wait_ms)
        asked = PredictRequest(read.signature, read.feeds, None, *wishes)
        outputs, version = await plane.predict(asked, protocol=PROTOCOL)
        target.require_version(version.export_version)
        response = write_answer(read, target.name, outputs, version)
        call.tell(version, plane.told_name)
        return response

    async def _server_live(self, _request: Message, _call: Call) -> Message:
        return kind("inference.ServerLiveResponse")(live=True)

    async def _server_ready(self, _request: Message, _call: Call) -> Message:
        try:
            require_all_ready(self._models)
        except NotReadyError:
            return kind("inference.ServerReadyResponse")(ready=False)
        return kind("inference.ServerReadyResponse")(ready=True)

    async def _model_ready(self, request: Message, _call: Call) -> Message:
        """Not of an unknown model either: clients want a yes or no."""
        try:
            require_ready(self._models.find(_target(request.name, request.version))[0])
        except (NotReadyError, UnknownModelError):
            return kind("inference.ModelReadyResponse")(ready=False)
        return kind("inference.ModelReadyResponse")(ready=True)

    async def _server_metadata(self, _request: Message, _call: Call) -> Message:
        return kind("inference.ServerMetadataResponse")(**server_document("model_repository"))

    async def _model_metadata(self, request: Message, _call: Call) -> Message:
        entry, version = self._models.find(_target(request.name, request.version))
        document = metadata_document(request.name, version, entry.plane.signatures)
        return kind("inference.ModelMetadataResponse")(**document)

    async def _index(self, request: Message, _call: Call) -> Message:
        listed = index_document(self._models)
        if request.ready:
            listed = [item for item in listed if item["state"] == "READY"]
        return kind("inference.RepositoryIndexResponse")(models=listed)


def _target(name: str, version: str) -> Target:
    """Raises UnknownModelError."""
    if version and not (version.isascii() and version.isdigit()):
        raise UnknownModelError(
            f"there is no version {version!r} of model {name!r}", hint="versions are numbers"
        )
    return Target(name, int(version) if version else None)
