"""Which variables of a model a call means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hotdelta.errors import ConfigurationError
from hotdelta.io.model_state import HeldVariable, ModelState
from hotdelta.io.variable_class import VariableInfo

Predicate = Callable[[VariableInfo], bool]


def select(
    state: ModelState, variables: Iterable[Any] | None, predicate: Predicate | None
) -> tuple[HeldVariable, ...]:
    """The given variables (keys, or the variables themselves; all persistable ones when None) that fit.

    Raises ConfigurationError when one is unknown or temporary, or when none is left.
    """
    chosen = (
        [held for held in state.variables if held.info.is_persistable]
        if variables is None
        else [_find(state, variable) for variable in variables]
    )
    found = tuple(dict.fromkeys(held for held in chosen if predicate is None or predicate(held.info)))
    if not found:
        raise ConfigurationError(
            f"no variable of {state.description} is selected",
            hint="hotdelta.io.describe(model) lists them with their classes",
        )
    return found


def _find(state: ModelState, wanted: Any) -> HeldVariable:
    key = state.key_of(wanted)
    if key is None:
        named = wanted if isinstance(wanted, str) else getattr(wanted, "path", wanted.name)
        raise ConfigurationError(
            f"{named!r} is not a variable of {state.description}",
            hint=f"its variables are {', '.join(state.by_key())}",
        )
    held = state.by_key()[key]
    if not held.info.is_persistable:
        raise ConfigurationError(
            f"{key!r} is temporary: it starts afresh and is never saved", hint="leave it out"
        )
    return held
