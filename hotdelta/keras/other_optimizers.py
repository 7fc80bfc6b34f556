"""Optimizers that a model holds beside the one that it is compiled with: a train_step of its own uses them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from hotdelta.logs import event
from hotdelta.train.optimizer_slots import (
    OPTIMIZER,
    KeyedVariable,
    SlotVariable,
    innermost,
    optimizer_variables,
    raw,
)

logger = logging.getLogger(__name__)


def other_optimizer_variables(
    model: keras.Model, key_of: Mapping[int, str]
) -> tuple[list[SlotVariable], list[KeyedVariable]]:
    """As `optimizer_variables`, of all of them, each under the attribute that holds it.

    One that is not built has nothing that could be saved, which is logged: its variables are made in a later step.
    """
    slots: list[SlotVariable] = []
    rest: list[KeyedVariable] = []
    for name, optimizer in _others(model):
        if optimizer.built and _is_of(optimizer, key_of):
            more_slots, more_rest = optimizer_variables(optimizer, key_of, under=f"{OPTIMIZER}/{name}")
            slots += more_slots
            rest += more_rest
        else:
            hint = "call its build() with variables of the model before"
            event(logger, logging.WARNING, "an optimizer is not saved", attribute=name, hint=hint)
    return slots, rest


def _others(model: keras.Model) -> Iterator[tuple[str, Any]]:
    known = getattr(model, "optimizer", None)
    for name, value in vars(model).items():
        is_other = isinstance(value, keras.optimizers.Optimizer) and value is not known
        # Under mixed precision Keras puts another one around the one that it is given.
        if is_other and value is not innermost(known):
            yield name.lstrip("_"), value


def _is_of(optimizer: Any, key_of: Mapping[int, str]) -> bool:
    trained = innermost(optimizer)._trainable_variables
    return all(id(raw(variable)) in key_of for variable in trained)
