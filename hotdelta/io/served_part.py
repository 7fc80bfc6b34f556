"""What of a save a serving replica can use: which variables it reads, and the graph when nothing of it is missing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from hotdelta.chain.format import names
from hotdelta.chain.format.schema import Schema, VariableSpec
from hotdelta.errors import ConfigurationError
from hotdelta.io.model_state import HeldVariable, ModelState
from hotdelta.logs import event
from hotdelta.train.serving.module import ServingModule

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedPart:
    """The schema of what is saved for serving, and the graph when all that it needs is saved."""

    schema: Schema
    module: ServingModule | None

    def role(self, key: str) -> str:
        is_served = any(spec.key == key for spec in self.schema.variables)
        return names.ROLE_SERVING if is_served else names.ROLE_TRAINING


def find_served(state: ModelState, chosen: Sequence[HeldVariable]) -> ServedPart:
    """Traced only when all parameters are saved: without them nothing can be served."""
    keys = {held.key for held in chosen}
    if all(held.key in keys for held in state.variables if held.info.is_parameter):
        try:
            traced = state.trace()
        except ConfigurationError as error:
            event(logger, logging.INFO, "saved without a serving graph", reason=error)
            traced = None
        if traced is not None and all(spec.key in keys for spec in traced[1].variables):
            return ServedPart(traced[1], traced[0])
    own = sorted((held.info for held in chosen if held.is_own), key=lambda info: info.key)
    specs = tuple(VariableSpec(info.key, info.shape, info.dtype, info.is_table) for info in own)
    return ServedPart(Schema(specs, {}, {}), None)
