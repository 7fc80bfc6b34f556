"""Our own dialect for one of several models: POST /models/NAME/predict."""

from __future__ import annotations

from starlette.types import Scope

from hotdelta.errors import NotReadyError, UnknownModelError
from server.models.models import Models
from server.predict.data_plane import DataPlane

PREDICT_BY_NAME = "/models/{model}/predict"
_BEFORE, _AFTER = "/models/", "/predict"


def is_predict_by_name(path: str) -> bool:
    return path.startswith(_BEFORE) and path.endswith(_AFTER)


def name_in(path: str) -> str | None:
    """The name of the model that is asked; None when it can be none."""
    name = path[len(_BEFORE) : -len(_AFTER)]
    return name if name and "/" not in name else None


def plane_of(models: Models, scope: Scope) -> DataPlane:
    """Raises UnknownModelError, or NotReadyError with what this model waits for."""
    path: str = scope["path"]
    name = name_in(path)
    if name is None:
        raise UnknownModelError(f"{scope['method']} {path}: Not Found", hint="GET / lists the routes")
    entry = models.entry(name)
    if not entry.plane.signatures:
        reason = entry.status().reason
        raise NotReadyError(
            f"no model is served yet: {reason}" if reason else "no model is served yet",
            hint=f"GET /models/{name}/version says more",
        )
    return entry.plane
