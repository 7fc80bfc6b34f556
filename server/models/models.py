"""The models that are served here by name, and the one that a request means."""

from __future__ import annotations

from dataclasses import dataclass

from hotdelta.errors import NotReadyError, UnknownModelError
from server.predict.data_plane import DataPlane


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a request names, and the version or label of it, if it names one."""

    name: str
    version: int | None = None
    label: str | None = None

    def require_version(self, served: int) -> None:
        """Of an answer, too: another export may have taken over meanwhile. Raises UnknownModelError."""
        if self.version not in (None, served):
            raise UnknownModelError(
                f"there is no version {self.version} of model {self.name!r}",
                hint=f"version {served} is served",
            )


class Entry:
    """A model and what clients call it. `given_name`: None: it has the name that its export has."""

    def __init__(self, plane: DataPlane, *, given_name: str | None) -> None:
        self.plane = plane
        self._given_name = given_name

    @property
    def name(self) -> str | None:
        """None while nothing is served that has one."""
        return self._given_name or self.plane.model.status().model_name


class Models:
    """All that are served here: one."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def entries(self) -> tuple[Entry, ...]:
        return (self._entry,)

    def find(self, target: Target) -> tuple[Entry, int]:
        """The model and the version of it that is served. Raises UnknownModelError, or NotReadyError while none is."""
        name = self._entry.name
        version = self._entry.plane.model.status().export_version
        if name is not None and target.name != name:
            raise UnknownModelError(
                f"there is no model {target.name!r}", hint=f"the one that is served here is {name!r}"
            )
        if version is None:
            raise NotReadyError("no model is served yet", hint="GET /model/version says what it waits for")
        if target.label is not None:
            raise UnknownModelError(f"there is no label {target.label!r}", hint="this server has none")
        target.require_version(version)
        return self._entry, version
