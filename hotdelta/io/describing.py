"""Which variables a model, or a directory, has, and of which class: for people and as data."""

from __future__ import annotations

from typing import Any

from hotdelta.io.model_state import state_of
from hotdelta.io.variable_class import VariableInfo, format_variables


def describe(model: Any) -> tuple[VariableInfo, ...]:
    """Print a table of the model's variables with their classes, and return it."""
    found = tuple(held.info for held in state_of(model).variables)
    print(format_variables(found))
    return found
