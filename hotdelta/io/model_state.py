"""A model as io sees it: its variables under keys, each with its class and with ways to read and write its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.format.manifest import TableRecord, Tracking
from hotdelta.chain.format.schema import Schema
from hotdelta.errors import ConfigurationError
from hotdelta.io.variable_class import VariableClass, VariableInfo
from hotdelta.keras_internals import is_keras_variable, strategy_of
from hotdelta.tensorflow_internals import PartitionedVariable, is_in_tensorflow_2
from hotdelta.train.model.id_rules import IdRule, module_id_rules
from hotdelta.train.model.module_keys import given_variables, module_variables, name_unsaved_optimizers
from hotdelta.train.model.optimizer_slots import KeyedVariable, raw
from hotdelta.train.model.shard_slots import optimizer_state
from hotdelta.train.model.variables import refuse_duplicate_keys
from hotdelta.train.serving.module import ServingModule
from hotdelta.train.tables.growth import growth_of
from hotdelta.train.tables.row_values import Array, read_whole, write_whole
from hotdelta.train.tables.sharded import is_trainable, parts_of


@dataclass(frozen=True, slots=True, eq=False)
class HeldVariable:
    """One variable of a live model. `is_own`: the model's itself, not its optimizer's. `table`: what manifests say.

    `parts`: the variables of a graph that are parts of it; mostly there is one. `prepare_write` returns what writes a
    value, or raises ConfigurationError: a load prepares all before it changes any.
    """

    info: VariableInfo
    parts: tuple[Any, ...]
    is_own: bool
    array_dtype: np.dtype[Any]
    read: Callable[[], Array]
    prepare_write: Callable[[], Callable[[Array], None]]
    table: TableRecord | None = None

    @property
    def key(self) -> str:
        return self.info.key


@dataclass(frozen=True, slots=True, eq=False)
class ModelState:
    """Every variable of a model, and by which rules it makes ids of rows.

    `trace`: its serving graph, None when it has no signature to trace. `read_step` may raise as reading a variable
    does. `read_id_rules` takes most of a second where a vocabulary has a million words. `after_load`: to be called when
    values were written.
    """

    description: str
    variables: tuple[HeldVariable, ...]
    read_step: Callable[[], int]
    trace: Callable[[], tuple[ServingModule, Schema] | None]
    has_optimizer: bool = True
    read_id_rules: Callable[[], Mapping[str, IdRule]] = dict
    after_load: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        refuse_duplicate_keys(held.key for held in self.variables)

    def by_key(self) -> dict[str, HeldVariable]:
        return {held.key: held for held in self.variables}

    def key_of(self, wanted: Any) -> str | None:
        """The key of a variable, which is given by key or as the object itself."""
        if isinstance(wanted, str):
            return wanted if wanted in self.by_key() else None
        if is_keras_variable(wanted) or isinstance(wanted, tf.Variable):
            wanted = raw(wanted)
        parts = list(wanted) if isinstance(wanted, PartitionedVariable) else [wanted]
        return next((held.key for held in self.variables for part in held.parts if part is parts[0]), None)


def state_of(model: Any) -> ModelState:
    """Of a Keras model, a tf.Module, variables by name, or a Session with its graph. Builds the optimizer.

    Raises ConfigurationError for anything else, and for a model that has no variables yet.
    """
    import keras

    if tf.inside_function():
        raise ConfigurationError(
            "variables are saved and loaded outside of every tf.function", hint="call it between two steps"
        )
    if isinstance(model, keras.Model):
        from hotdelta.io.keras_state import keras_state

        return keras_state(model)
    if isinstance(model, tf.Module):
        keyed = [KeyedVariable(key, raw(v)) for key, v in sorted(module_variables(model).items())]
        optimizer = getattr(model, "optimizer", None)
        name_unsaved_optimizers(model, optimizer)
        return _of_variables(
            keyed,
            optimizer,
            f"module {type(model).__name__}",
            read_id_rules=partial(module_id_rules, model),
        )
    if isinstance(model, Mapping):
        return _of_variables(given_variables(model), None, "the given dictionary")
    if is_session(model):
        from hotdelta.io.session_state import session_state

        return session_state(model)
    raise ConfigurationError(
        f"the variables of a {type(model).__name__} are not known",
        hint="give a Keras model, a tf.Module, a dictionary of variables, or a Session",
    )


def is_session(model: Any) -> bool:
    """Raises ConfigurationError for a Session in a process that is not in graph mode."""
    if not (hasattr(model, "graph") and hasattr(model, "run")):
        return False
    if is_in_tensorflow_2():
        raise ConfigurationError(
            "the variables of a Session are saved and loaded in graph mode",
            hint="import hotdelta.compat.v1 before the graph is built",
        )
    return True


def hold(
    keyed: KeyedVariable, variable_class: VariableClass, *, is_own: bool, is_table: bool = False
) -> HeldVariable:
    """A TensorFlow 2 variable, read and written eagerly."""
    variable = keyed.variable
    if growth_of(variable) is not None:
        raise ConfigurationError(
            f"table {keyed.key!r} has no fixed vocabulary, and hotdelta.io does not save or load such tables",
            hint="use hotdelta.keras.DeltaCheckpoint or hotdelta.train.DeltaWriter",
        )
    if not variable.shape.is_fully_defined():
        raise ConfigurationError(
            f"variable {keyed.key!r} has shape {variable.shape}", hint="give it a shape that does not change"
        )
    shape = tuple(int(size) for size in variable.shape)
    return HeldVariable(
        VariableInfo(keyed.key, variable_class, shape, str(variable.dtype.name), is_table),
        (variable,),
        is_own,
        np.dtype(variable.dtype.as_numpy_dtype),
        lambda: read_whole(variable),
        lambda: partial(write_whole, variable),
        TableRecord(shape, str(variable.dtype.name), Tracking.CHANGED, 0) if is_table else None,
    )


def hold_optimizer(
    optimizer: Any, trainable: Iterable[Any], keyed: Sequence[KeyedVariable]
) -> list[HeldVariable]:
    """Its slots and other variables, all persistable. Builds it when that was not done."""
    if optimizer is None:
        return []
    if not optimizer.built:
        # Keras remembers the strategy under which it was made, and wants its slots to be made there, too.
        strategy = strategy_of(optimizer) or tf.distribute.get_strategy()
        with strategy.scope():
            optimizer.build(list(trainable))
    slots, rest = optimizer_state(optimizer, keyed)
    found = [*(KeyedVariable(slot.key, slot.variable) for slot in slots), *rest]
    return [hold(item, VariableClass.PERSISTABLE, is_own=False) for item in found]


def step_of(optimizer: Any) -> int:
    if optimizer is None:
        return 0
    steps = optimizer.iterations
    # An optimizer that accumulates gradients computes it: of several batches it makes one step.
    return int(steps if isinstance(steps, tf.Tensor) else read_whole(raw(steps)))


def _of_variables(
    keyed: list[KeyedVariable],
    optimizer: Any,
    description: str,
    *,
    read_id_rules: Callable[[], Mapping[str, IdRule]] = dict,
) -> ModelState:
    trainable = [part for item in keyed if is_trainable(item.variable) for part in parts_of(item.variable)]
    own = [
        hold(
            item,
            VariableClass.PARAMETER if is_trainable(item.variable) else VariableClass.PERSISTABLE,
            is_own=True,
        )
        for item in keyed
    ]
    if not own:
        raise ConfigurationError(f"{description} has no variables yet", hint="build it first")
    slots = hold_optimizer(optimizer, trainable, keyed)
    return ModelState(
        description,
        (*own, *slots),
        lambda: step_of(optimizer),
        lambda: None,
        optimizer is not None,
        read_id_rules,
    )
