"""Which variables of a model a call means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hotdelta.errors import ConfigurationError
from hotdelta.io.model_state import HeldVariable, ModelState
from hotdelta.io.variable_class import VariableInfo
from hotdelta.train.model.optimizer_slots import is_variable

Predicate = Callable[[VariableInfo], bool]


def select(
    state: ModelState, variables: Iterable[Any] | None, predicate: Predicate | None
) -> tuple[HeldVariable, ...]:
    """The given variables (keys, or the variables themselves; all persistable ones when None) that fit.

    Raises ConfigurationError, which names all that are unknown or temporary; also when none is left.
    """
    chosen = (
        [held for held in state.variables if held.info.is_persistable]
        if variables is None
        else _find(state, _as_list(variables))
    )
    found = tuple(dict.fromkeys(held for held in chosen if predicate is None or predicate(held.info)))
    if not found:
        raise ConfigurationError(
            f"no variable of {state.description} is selected",
            hint="hotdelta.io.describe(model) lists them with their classes",
        )
    return found


def _as_list(variables: Any) -> list[Any]:
    """One may be given by itself."""
    if isinstance(variables, str) or is_variable(variables):
        return [variables]
    if not isinstance(variables, Iterable):
        raise ConfigurationError(f"variables is {variables!r}", hint="give keys, or variables of the model")
    return list(variables)


def _find(state: ModelState, wanted: Sequence[Any]) -> list[HeldVariable]:
    known = state.by_key()
    keys = [state.key_of(variable) for variable in wanted]
    unknown = [_name(variable) for variable, key in zip(wanted, keys, strict=True) if key is None]
    if unknown:
        raise ConfigurationError(
            f"{_each(unknown)} not a variable of {state.description}",
            hint=f"its variables are {', '.join(known)}",
        )
    found = [known[key] for key in keys if key is not None]
    temporary = [held.key for held in found if not held.info.is_persistable]
    if temporary:
        raise ConfigurationError(
            f"{_each(temporary)} temporary: it starts afresh and is never saved", hint="leave it out"
        )
    return found


def _each(names: Sequence[str]) -> str:
    return f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are each'}"


def _name(variable: Any) -> str:
    if isinstance(variable, str):
        return variable
    return str(getattr(variable, "path", getattr(variable, "name", variable)))
