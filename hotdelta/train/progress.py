"""How far training has come, as every cut says it: steps and epochs, what users register, and the other trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotdelta.train.trainer_state import StateRegistry, TrainerState
from hotdelta.train.variables import ModelVariables


class TrainingProgress:
    """The trainer's state now, what is to be read for it, and the newest example. Owned by the training thread."""

    def __init__(self) -> None:
        self.state = TrainerState()
        self.registry = StateRegistry()
        self.watermark: float | None = None

    def resume(self, state: TrainerState, watermark: float | None) -> None:
        """Training goes on from there; what was registered is put back."""
        self.state, self.watermark = state, watermark
        self.registry.restore(state.registered)

    def describe(self, variables: ModelVariables) -> None:
        """From now on cuts are of this model: say what of it is trained, and by which rules it makes ids."""
        if variables.parameters is not None:
            self.state = self.state.with_parameters(variables.parameters)
        self.state = self.state.with_id_rules({key: rule.saved for key, rule in variables.id_rules.items()})

    def see(self, seconds: float) -> None:
        """The event time of the newest example only goes forward."""
        self.watermark = seconds if self.watermark is None else max(self.watermark, seconds)

    def read(self, trainers: Mapping[str, Any] | None = None) -> bytes:
        """What a cut says of it, with the states of the other trainers when they are given."""
        self.state = self.state.with_registered(self.registry.read())
        if trainers is not None:
            self.state = self.state.with_trainers(trainers)
        return self.state.to_json()
