"""The models that are served here by name, and the one that a request means."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from starlette.types import Scope

from hotdelta.errors import NotReadyError, UnknownModelError
from server.models.entry import Entry
from server.models.target import Target
from server.predict.data_plane import DataPlane


class Models:
    """All that are served here, which labels they have, and which is meant when no name is given.

    Belongs to the event loop. A request asks once, and keeps what it was given: nothing that changes later changes what
    its answer is made of. With one model that has no name of ours (`is_one_model`) the export says what it is called.
    `changes`: how often what is found here was another.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        *,
        labels: Mapping[str, str] | None = None,
        default_model: str | None = None,
        is_one_model: bool = True,
        ready_wait_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_one_model = is_one_model
        self.changes = 0
        self._clock = clock
        self._patient_until = clock() + ready_wait_seconds
        self._has_been_ready = False
        self.put(entries, labels=labels or {}, default_model=default_model)

    def put(self, entries: Iterable[Entry], *, labels: Mapping[str, str], default_model: str | None) -> None:
        """These and no others from the next request on."""
        self.changes += 1
        self._entries = tuple(entries)
        self.labels = dict(labels)
        self.default_model = default_model
        self._by_name = {entry.settings.model_name: entry for entry in self._entries}
        if default_model is not None:
            self._default = self._named(default_model)
        else:
            self._default = self._entries[0] if len(self._entries) == 1 else None

    def move_label(self, label: str, name: str) -> None:
        """From the next request on."""
        labels = {**self.labels, label: name}
        self.put(self._entries, labels=labels, default_model=self.default_model)

    def entries(self) -> tuple[Entry, ...]:
        """In the order in which they are listed."""
        return self._entries

    def labels_of(self, entry: Entry) -> list[str]:
        return [label for label, name in self.labels.items() if name == entry.settings.model_name]

    @property
    def has_default(self) -> bool:
        return self._default is not None

    def default(self) -> Entry:
        """What /predict means. Raises UnknownModelError when there are several and none is marked."""
        if self._default is None:
            raise UnknownModelError(
                "this server has no default model", hint=self._known("/models/NAME/predict")
            )
        return self._default

    def default_plane(self, _scope: Scope) -> DataPlane:
        """Of /predict: on the way of every request."""
        return self._default.plane if self._default is not None else self.default().plane

    def entry(self, name: str) -> Entry:
        """Of a name or a label. Raises UnknownModelError."""
        entry = self._named(name)
        if entry is not None:
            return entry
        if self.is_one_model:
            (only,) = self._entries
            called = only.name
            if called in (None, name):
                return only
            raise UnknownModelError(
                f"there is no model {name!r}", hint=f"the one that is served here is {called!r}"
            )
        raise UnknownModelError(f"there is no model {name!r}", hint=self._known("it"))

    def find(self, target: Target) -> tuple[Entry, int]:
        """The model and the version of it that is served. Raises UnknownModelError, or NotReadyError while none is."""
        entry = self.entry(target.name)
        export = entry.model.export
        if export is None:
            told = "/model/version" if self.is_one_model else f"/models/{target.name}/version"
            raise NotReadyError("no model is served yet", hint=f"GET {told} says what it waits for")
        if target.label is not None:
            self._require_label(target.label, entry)
        _, version = export
        target.require_version(version)
        return entry, version

    def plane(self, target: Target) -> DataPlane:
        """Of the model that is found."""
        return self.find(target)[0].plane

    def why_not_ready(self) -> str | None:
        """Why this server should not be asked yet; None: it may be.

        One model decides alone. Of several all are waited for at the start, for a while; from then on one that answers
        is enough, so that one that is broken, or added later, takes nothing from the others.
        """
        waiting = [
            (entry, status.reason) for entry in self._entries if not (status := entry.status()).is_ready
        ]
        if not waiting:
            self._has_been_ready = bool(self._entries)
            return None if self._entries else "there is no model"
        is_some_ready = len(waiting) < len(self._entries)
        if is_some_ready and (self._has_been_ready or self._clock() >= self._patient_until):
            self._has_been_ready = True
            return None
        if self.is_one_model:
            return waiting[0][1] or "no model is served yet"
        return "; ".join(f"{entry.name}: {reason or 'no model is served yet'}" for entry, reason in waiting)

    def _named(self, name: str) -> Entry | None:
        return self._by_name.get(self.labels.get(name, name))

    def _require_label(self, label: str, entry: Entry) -> None:
        at = self.labels.get(label)
        if at is None:
            known = f"labels: {', '.join(self.labels)}" if self.labels else "this server has none"
            raise UnknownModelError(f"there is no label {label!r}", hint=known)
        if at != entry.settings.model_name:
            raise UnknownModelError(f"the label {label!r} is not at {entry.name!r}", hint=f"it is at {at!r}")

    def _known(self, what: str) -> str:
        names = ", ".join((*(str(name) for name in self._by_name), *self.labels)) or "none yet"
        return f"ask {what} with one of: {names}"
