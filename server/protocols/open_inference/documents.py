"""What the protocol says of the server and of its models, whichever way it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hotdelta
from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import NotReadyError
from server.models.entry import Entry
from server.models.models import Models
from server.predict.request import DEFAULT_SIGNATURE
from server.protocols.open_inference.datatypes import datatype_of


def server_document(*extensions: str) -> dict[str, Any]:
    return {"name": "hotdelta", "version": hotdelta.__version__, "extensions": list(extensions)}


def index_document(models: Models) -> list[dict[str, str]]:
    listed = []
    for entry in models.entries():
        name, status = entry.name, entry.plane.model.status()
        if name is not None and status.export_version is not None:
            state = "READY" if status.is_ready else "UNAVAILABLE"
            version = str(status.export_version)
            listed.append({"name": name, "version": version, "state": state, "reason": status.reason})
    return listed


def require_all_ready(models: Models) -> None:
    """As far as the server should be asked. Raises NotReadyError."""
    reason = models.why_not_ready()
    if reason is not None:
        raise NotReadyError(reason, hint="GET /readyz says more")


def require_ready(entry: Entry) -> None:
    """Raises NotReadyError."""
    status = entry.plane.model.status()
    if not status.is_ready:
        raise NotReadyError(status.reason or "no model is served yet", hint="GET /readyz says more")


def metadata_document(name: str, version: int, signatures: Mapping[str, SignatureSpec]) -> dict[str, Any]:
    """Of the signature that is asked when a request names none; without one of that name, of the first."""
    spec = signatures.get(DEFAULT_SIGNATURE) or next(iter(signatures.values()), None)
    return {
        "name": name,
        "versions": [str(version)],
        "platform": "tensorflow_savedmodel",
        "inputs": _tensors(spec.inputs if spec else ()),
        "outputs": _tensors(spec.outputs if spec else ()),
    }


def _tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": tensor.name,
            "datatype": datatype_of(tensor.dtype),
            "shape": [-1 if size is None else size for size in tensor.shape or ()],
        }
        for tensor in specs
    ]
