"""The variables of a Keras model and of its optimizer, classified; and its serving graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import keras

from hotdelta.chain.format.schema import Schema
from hotdelta.errors import ConfigurationError
from hotdelta.io.model_state import HeldVariable, ModelState, hold, hold_optimizer, step_of
from hotdelta.io.variable_class import VariableClass
from hotdelta.keras.constants import compute_again
from hotdelta.keras.model.id_rules import model_id_rules
from hotdelta.keras.model.other_optimizers import find_other_optimizers
from hotdelta.keras.model.structure import model_variables
from hotdelta.keras.serving.graph import table_keys, trace_keras_model
from hotdelta.keras_internals import value_of
from hotdelta.train.model.optimizer_slots import KeyedVariable, numbered, raw
from hotdelta.train.serving.module import ServingModule

METRICS = "metrics"


def keras_state(model: keras.Model) -> ModelState:
    if not model.built:
        raise ConfigurationError(
            f"model {model.name!r} has no variables yet",
            hint="build it (model.build(shape), or call it once)",
        )
    keyed = model_variables(model)
    key_of = {id(item.variable): item.key for item in keyed}
    tables = table_keys(model, key_of)
    parameters = {id(raw(variable)) for variable in model.trainable_variables}
    own = [
        hold(
            item,
            VariableClass.PARAMETER if id(item.variable) in parameters else VariableClass.PERSISTABLE,
            is_own=True,
            is_table=item.key in tables,
        )
        for item in keyed
    ]
    optimizer = optimizer_of(model)
    read_id_rules = cache(partial(model_id_rules, model))

    def trace() -> tuple[ServingModule, Schema]:
        return trace_keras_model(model, keys=key_of, tables=tables, id_rules=read_id_rules())

    return ModelState(
        f"model {model.name!r}",
        (
            *own,
            *hold_optimizer(optimizer, model.trainable_variables, keyed),
            *_other_optimizers(model, key_of),
            *_metrics(model),
        ),
        lambda: step_of(optimizer),
        trace,
        optimizer is not None,
        read_id_rules,
        partial(compute_again, model),
    )


def optimizer_of(model: keras.Model) -> Any:
    """None when the model is not compiled."""
    return getattr(model, "optimizer", None)


def _other_optimizers(model: keras.Model, key_of: Mapping[int, str]) -> list[HeldVariable]:
    slots, rest = find_other_optimizers(model).variables(key_of)
    found = [*(KeyedVariable(slot.key, slot.variable) for slot in slots), *rest]
    return [hold(item, VariableClass.PERSISTABLE, is_own=False) for item in found]


def _metrics(model: keras.Model) -> list[HeldVariable]:
    """Under a strategy each replica has its own, which is no reason to refuse the model: they are not saved."""
    variables = model.metrics_variables if optimizer_of(model) is not None else []
    return [
        hold(
            KeyedVariable(f"{METRICS}/{name}", value_of(variable)),
            VariableClass.TEMPORARY,
            is_own=False,
        )
        for name, variable in numbered(variables)
    ]
