"""What a front-end is told so that it can read requests: models, labels and signatures, under a generation number.

Made in the model's process, whenever somebody asks by something older; what is true is decided there alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotdelta.chain import SignatureSpec, TensorSpec
from server.models.entry import Entry
from server.models.models import Models
from server.models.target import Target
from server.predict.data_plane import DataPlane


@dataclass(frozen=True, slots=True)
class ToldModel:
    """One model at one moment. `export`: its name and version; without one there is nothing to ask.

    `max_shared_rows`: so many may come together, and still share a call with others.
    """

    model_name: str | None
    export: tuple[str, int] | None
    told_name: str | None
    max_wait_ms: int
    max_shared_rows: int
    signatures: Mapping[str, SignatureSpec]


@dataclass(frozen=True, slots=True)
class Told:
    """All of them. Whatever it does not know is asked of the model's process, which may know more by now."""

    generation: int
    models: tuple[ToldModel, ...]
    labels: Mapping[str, str]
    default: int | None
    is_one_model: bool

    def find(self, target: Target) -> int | None:
        """Where among `models` the one is that a request names, if it can be asked so."""
        name = self.labels.get(target.name, target.name)
        for place, model in enumerate(self.models):
            # With one model that has no name of ours the export says what it is called.
            called = model.export[0] if model.model_name is None and model.export else model.model_name
            if called == name:
                return place if self._fits(model, target) else None
        return None

    def _fits(self, model: ToldModel, target: Target) -> bool:
        if model.export is None or target.version not in (None, model.export[1]):
            return False
        return target.label is None or (
            target.label in self.labels and self.labels[target.label] == model.model_name
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A model as it was told: what a request that was read by that is given to."""

    entry: Entry
    plane: DataPlane
    signatures: Mapping[str, SignatureSpec]
    calls: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def is_current(self) -> bool:
        """Whether its signatures are still these very ones: another export brings others, if only equal ones."""
        return self.entry.model.signatures is self.signatures


class Telling:
    """Knows what was told last, and whether it still holds. Belongs to the event loop of the model's process."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._seen = -1
        self.generation = 0
        self._places: tuple[Place, ...] = ()
        self.document: dict[str, Any] = {}
        self._tell()

    def place(self, generation: int, number: int) -> Place | None:
        """Of a request that was read by this generation; None: it has to be read again."""
        if generation != self.generation or self._models.changes != self._seen:
            return None
        place = self._places[number]
        return place if place.is_current else None

    def is_current(self) -> bool:
        if self._models.changes != self._seen:
            return False
        return all(
            place.is_current or not (place.signatures or place.entry.model.signatures)
            for place in self._places
        )

    def renew(self) -> bool:
        """Whether there is something new to tell."""
        if self.is_current():
            return False
        self._tell()
        return True

    def _tell(self) -> None:
        models = self._models
        entries = models.entries()
        default = models.default() if models.has_default else None
        self._seen = models.changes
        self.generation += 1
        self._places = tuple(map(_place, entries))
        self.document = {
            "generation": self.generation,
            "models": [_described(place) for place in self._places],
            "labels": models.labels,
            "default": None if default is None else entries.index(default),
            "is_one_model": models.is_one_model,
        }


def _place(entry: Entry) -> Place:
    signatures = entry.model.signatures
    calls = tuple((name, tuple(each.name for each in spec.inputs)) for name, spec in signatures.items())
    return Place(entry, entry.plane, signatures, calls)


def _described(place: Place) -> dict[str, Any]:
    """The export may be a newer one than the signatures are of: then the next request finds that out."""
    settings = place.entry.settings
    return {
        "model_name": settings.model_name,
        "export": place.entry.model.export if place.signatures else None,
        "told_name": place.plane.told_name,
        "max_wait_ms": place.plane.max_wait_ms,
        "max_shared_rows": min(settings.max_batch_size, settings.max_rows),
        "signatures": [
            [name, _tensors(spec.inputs), _tensors(spec.outputs)] for name, spec in place.signatures.items()
        ],
    }


def _tensors(specs: tuple[TensorSpec, ...]) -> list[tuple[str, tuple[int | None, ...] | None, str]]:
    return [(each.name, each.shape, each.dtype) for each in specs]


def read_told(document: Mapping[str, Any]) -> Told:
    return Told(
        document["generation"],
        tuple(map(_read_model, document["models"])),
        document["labels"],
        document["default"],
        document["is_one_model"],
    )


def _read_model(told: Mapping[str, Any]) -> ToldModel:
    export = told["export"]
    return ToldModel(
        told["model_name"],
        None if export is None else (export[0], export[1]),
        told["told_name"],
        told["max_wait_ms"],
        told["max_shared_rows"],
        {
            name: SignatureSpec(_read_tensors(inputs), _read_tensors(outputs))
            for name, inputs, outputs in told["signatures"]
        },
    )


def _read_tensors(specs: list[tuple[str, list[int | None] | None, str]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, None if shape is None else tuple(shape), dtype) for name, shape, dtype in specs
    )
