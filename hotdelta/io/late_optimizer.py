"""Loading into a Keras model that is compiled only afterwards: the optimizer's part waits for `compile`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

import keras

from hotdelta.io.fit_check import compare, refuse_misfit
from hotdelta.io.keras_state import keras_state, optimizer_of
from hotdelta.io.saved_state import SavedState
from hotdelta.keras.model.other_optimizers import build_saved_optimizers
from hotdelta.keras.model.structure import model_variables
from hotdelta.logs import event
from hotdelta.train.model.optimizer_slots import OPTIMIZER

logger = logging.getLogger(__name__)


def find_waiting(model: Any, unknown: Iterable[str]) -> tuple[str, ...]:
    """Those of the unknown variables that an optimizer will want, once the model is compiled."""
    if not isinstance(model, keras.Model) or optimizer_of(model) is not None:
        return ()
    return tuple(key for key in unknown if key.startswith(f"{OPTIMIZER}/"))


def build_unknown(model: Any, unknown: Collection[str]) -> bool:
    """Build the optimizers beside the compiled one that have some of the unknown variables. False: none has."""
    return (
        isinstance(model, keras.Model)
        and any(key.startswith(f"{OPTIMIZER}/") for key in unknown)
        and build_saved_optimizers(model, unknown, model_variables(model))
    )


def apply_when_compiled(
    model: keras.Model, saved: SavedState, keys: Collection[str], *, is_strict: bool
) -> None:
    """The next `compile` of this model loads them, or raises ModelMismatchError when they do not fit.

    Not strict: it loads those that fit, and logs the rest.
    """
    saved.hold(keys)
    compile_model = type(model).compile

    def compile_and_load(*arguments: Any, **options: Any) -> None:
        compile_model(model, *arguments, **options)
        if optimizer_of(model) is not None:
            _load(model, saved, keys, is_strict=is_strict)
            forget_waiting(model)

    # Not through the model's own __setattr__, which tracks what layers hold.
    object.__setattr__(model, "compile", compile_and_load)


def forget_waiting(model: Any) -> None:
    """What waits, if anything does, is not wanted any more."""
    if isinstance(model, keras.Model):
        vars(model).pop("compile", None)


def _load(model: keras.Model, saved: SavedState, keys: Collection[str], *, is_strict: bool) -> None:
    build_saved_optimizers(model, keys, model_variables(model))
    state = keras_state(model)
    wanted = [held for held in state.variables if not held.is_own and held.info.is_persistable]
    known = {held.key for held in wanted}
    fit = compare([held.info for held in wanted], saved.variables, [key for key in keys if key not in known])
    if is_strict:
        refuse_misfit(fit, f"the optimizer of {state.description}")
    for held in wanted:
        if held.key in fit.fitting:
            write = held.prepare_write()
            write(saved.read(held.key, held.array_dtype))
    for problem in fit.problems:
        event(logger, logging.WARNING, "not loaded into the optimizer", reason=problem)
