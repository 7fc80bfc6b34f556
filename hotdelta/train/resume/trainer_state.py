"""The trainer's own progress: epoch, step, and what the user registered (reader positions and the like), as JSON."""

from __future__ import annotations

import base64
import binascii
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hotdelta.chain.format import names
from hotdelta.errors import ConfigurationError, ManifestError
from hotdelta.train.model.id_rules import SavedIdRule, from_document, to_document

MAX_STATE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where a trainer was: `step` steps in all, the `epoch`-th epoch (from 0) after `step_in_epoch` steps of it.

    `trainers` has, in the state of trainer 0, those of the other trainers of its job, by id and as JSON documents.
    `parameters`: the keys of the variables that it trains; None when it does not say. `id_rules`: by which rules the
    model makes ids. `bookmark`: where the reader goes on after the last batch that was trained.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    registered: Mapping[str, Any] = field(default_factory=dict)
    trainers: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] | None = None
    id_rules: Mapping[str, SavedIdRule] = field(default_factory=dict)
    bookmark: Any = None

    def after_steps(self, steps: int) -> TrainerState:
        steps = whole("steps", steps)
        return replace(self, step=self.step + steps, step_in_epoch=self.step_in_epoch + steps)

    def with_untold(self, steps: int) -> TrainerState:
        """After so many more steps of a loop that reports neither its steps nor its epochs."""
        return replace(self, step=self.step + steps)

    def at_step(self, step: int) -> TrainerState:
        return replace(self, step=step)

    def in_epoch(self, epoch: int) -> TrainerState:
        return self if epoch == self.epoch else replace(self, epoch=epoch, step_in_epoch=0)

    def after_epoch(self, epoch: int) -> TrainerState:
        return replace(self, epoch=whole("epoch", epoch) + 1, step_in_epoch=0)

    def with_registered(self, registered: Mapping[str, Any]) -> TrainerState:
        return replace(self, registered=registered)

    def with_trainers(self, trainers: Mapping[str, Any]) -> TrainerState:
        return replace(self, trainers=trainers)

    def with_parameters(self, keys: Iterable[str]) -> TrainerState:
        return replace(self, parameters=tuple(sorted(keys)))

    def with_id_rules(self, rules: Mapping[str, SavedIdRule]) -> TrainerState:
        return replace(self, id_rules=rules)

    def with_bookmark(self, bookmark: Any) -> TrainerState:
        return replace(self, bookmark=bookmark)

    def to_json(self) -> bytes:
        document: dict[str, Any] = {
            "step": self.step,
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "registered": {name: _encode(name, value) for name, value in self.registered.items()},
        }
        if self.trainers:
            document["trainers"] = self.trainers
        if self.parameters is not None:
            document[names.PARAMETERS_MEMBER] = list(self.parameters)
        if self.id_rules:
            document[names.ID_RULES_MEMBER] = to_document(self.id_rules)
        if self.bookmark is not None:
            document["bookmark"] = self.bookmark
        text = json.dumps(document).encode()
        if len(text) > MAX_STATE_BYTES:
            raise ConfigurationError(
                f"the registered trainer state has {len(text)} bytes, more than {MAX_STATE_BYTES}",
                hint="register positions, not data",
            )
        return text

    @classmethod
    def from_json(cls, text: bytes) -> TrainerState:
        try:
            document = json.loads(text)
            registered = {name: _decode(value) for name, value in document["registered"].items()}
            trainers = document.get("trainers", {})
            parameters = document.get(names.PARAMETERS_MEMBER)
            return cls(
                document["step"],
                document["epoch"],
                document["step_in_epoch"],
                registered,
                trainers,
                None if parameters is None else tuple(parameters),
                from_document(document.get(names.ID_RULES_MEMBER, {})),
                document.get("bookmark"),
            )
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ManifestError(f"trainer state cannot be read: {error!r}") from error


class StateRegistry:
    """What the user asked to be saved with every commit: a name, how to read it, and how to put it back."""

    def __init__(self) -> None:
        self._readers: dict[str, Callable[[], Any]] = {}
        self._restorers: dict[str, Callable[[Any], None]] = {}

    def register(
        self, name: str, read: Callable[[], Any], restore: Callable[[Any], None] | None = None
    ) -> None:
        _require_name_and_function(name, read)
        if name in self._readers:
            raise ConfigurationError(f"trainer state {name!r} is registered twice")
        self._readers[name] = read
        if restore is not None:
            self._restorers[name] = restore

    @property
    def is_empty(self) -> bool:
        return not self._readers

    def read(self) -> dict[str, Any]:
        return {name: read() for name, read in self._readers.items()}

    def put_back(self, registered: Mapping[str, Any]) -> bool:
        """All that is registered, or nothing: False when something of it was not saved, or cannot be put back."""
        if not self._readers.keys() <= self._restorers.keys() & registered.keys():
            return False
        self.restore(registered)
        return True

    def restore(self, registered: Mapping[str, Any]) -> None:
        for name, restore in self._restorers.items():
            if name in registered:
                restore(registered[name])


def _require_name_and_function(name: Any, read: Any) -> None:
    if not isinstance(name, str) or not callable(read):
        raise ConfigurationError(
            f"trainer state {name!r} is registered with {read!r}", hint="give a name and a function"
        )


def whole(name: str, value: Any) -> int:
    """A whole number as an int, also one of numpy or TensorFlow, which JSON cannot hold. Raises ConfigurationError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"{name} is {value!r}", hint="give a whole number, at least 0")
    return number


def _encode(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"trainer state {name!r} cannot be saved: {error}", hint="return bytes, or what JSON can hold"
        ) from error
    return {"json": value}


def _decode(document: dict[str, Any]) -> Any:
    return base64.b64decode(document["b64"]) if "b64" in document else document["json"]
