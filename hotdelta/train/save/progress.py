"""How far training has come, as every cut says it: steps and epochs, what users register, and the other trainers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hotdelta.errors import ConfigurationError
from hotdelta.train.bookmarks import plain
from hotdelta.train.model.id_rules import IdRule, find_other_rules
from hotdelta.train.model.variables import ModelVariables
from hotdelta.train.resume.trainer_state import StateRegistry, TrainerState, whole
from hotdelta.train.save.pauses import TrainedBatch


class TrainingProgress:
    """The trainer's state now, what is to be read for it, and the newest example. Owned by the training thread."""

    def __init__(self) -> None:
        self._state = TrainerState()
        self._new_steps = 0
        self.registry = StateRegistry()
        self.watermark: float | None = None
        self._step_of_bookmark = 0

    @property
    def state(self) -> TrainerState:
        if self._new_steps:
            self._state, self._new_steps = self._state.after_steps(self._new_steps), 0
        return self._state

    @state.setter
    def state(self, state: TrainerState) -> None:
        self._state, self._new_steps = state, 0

    def add_steps(self, steps: int) -> None:
        """Only counts: every step pays for this. Raises ConfigurationError."""
        self._new_steps += whole("steps", steps)

    def resume(self, state: TrainerState, watermark: float | None) -> None:
        """Training goes on from there; what was registered is put back."""
        self.state, self.watermark = state, watermark
        self._step_of_bookmark = state.step
        self.registry.restore(state.registered)

    def describe(self, variables: ModelVariables) -> None:
        """From now on cuts are of this model: say what of it is trained, and by which rules it makes ids."""
        if variables.parameters is not None:
            self.state = self.state.with_parameters(variables.parameters)
        self._describe_id_rules(variables.id_rules)

    def follow_id_rules(self, rules: Mapping[str, IdRule]) -> None:
        """From now on cuts say these rules. Raises ConfigurationError when ids mean other rows under them."""
        other_rules = find_other_rules(rules, self.state.id_rules)
        if other_rules:
            raise other_model(": " + "; ".join(other_rules))
        self._describe_id_rules(rules)

    def _describe_id_rules(self, rules: Mapping[str, IdRule]) -> None:
        self.state = self.state.with_id_rules({key: rule.saved for key, rule in rules.items()})

    def see(self, given: float) -> None:
        """The event time of the newest example only goes forward. Raises ConfigurationError for what is no time."""
        try:
            seconds = float(given)
        except (TypeError, ValueError):
            seconds = math.nan
        if not math.isfinite(seconds):
            raise ConfigurationError(f"the watermark is {given!r}", hint="give seconds since 1970")
        self.watermark = seconds if self.watermark is None else max(self.watermark, seconds)

    def note_batch(self, batch: TrainedBatch) -> None:
        """What came with the last batch that was trained. Of steps that carry no bookmark none is known."""
        if batch.bookmark is not None:
            self.state = self.state.with_bookmark(plain(batch.bookmark))
            self._step_of_bookmark = self.state.step
        elif self.state.step != self._step_of_bookmark:
            self.state = self.state.with_bookmark(None)
        if batch.event_time is not None:
            self.see(batch.event_time)

    def read(self, trainers: Mapping[str, Any] | None = None, *, untold: int = 0) -> bytes:
        """What a cut says of it, with the states of the other trainers when they are given.

        `untold`: so many more steps are in the cut, which will be told.
        """
        self.state = self.state.with_registered(self.registry.read())
        if trainers is not None:
            self.state = self.state.with_trainers(trainers)
        return self.state.after_steps(untold).to_json()


def other_model(reason: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"the model is not the one that this chain was started with{reason}",
        hint="give another model a directory, and a checkpoint callback, of its own",
    )
