"""The variables of a Keras optimizer under keys that are stable: its slots, each with its variable, and the rest.

Works on the optimizer's own attributes and imports no Keras, so that custom loops need none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras_internals import (
    is_keras_variable,
    lists_along,
    optimizers_in,
    step_counter_of,
    trained_by,
    value_of,
    wrapped_in,
)
from hotdelta.train.tables.growth import growth_of
from hotdelta.train.tables.replicas import primary
from hotdelta.train.tables.sharded import is_sharded

OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class KeyedVariable:
    key: str
    variable: tf.Variable


@dataclass(frozen=True, slots=True)
class SlotVariable:
    """An optimizer variable that belongs to one trainable variable of the model."""

    key: str
    variable: tf.Variable
    of: tf.Variable


def raw(variable: Any) -> tf.Variable:
    """The TensorFlow variable inside a Keras one: `value` may hand out a copy that is cast to another dtype.

    Of a variable that is mirrored on several devices it is the primary copy.
    """
    is_raw = isinstance(variable, tf.Variable) or is_sharded(variable)
    return primary(variable if is_raw else value_of(variable))


def is_variable(value: Any) -> bool:
    """Of TensorFlow, of Keras, or one that is sharded."""
    return isinstance(value, tf.Variable) or is_sharded(value) or is_keras_variable(value)


def innermost(optimizer: Any) -> Any:
    """The optimizer that writes to the variables, without the ones wrapped around it (loss scaling)."""
    while (inner := wrapped_in(optimizer)) is not None:
        optimizer = inner
    return optimizer


def can_record_rows(optimizer: Any) -> bool:
    return hasattr(innermost(optimizer), "record_rows")


def count_every_step(optimizer: Any) -> None:
    """From the next trace on, steps that several workers make at once are all counted, each by one operation.

    Keras reads its counter, adds 1 and writes it back, so that workers lose each other's steps: after 400 steps of two
    it was at 272. Schedules and bias correction go by it.
    """
    for each in with_wrapped(optimizer):
        counter = step_counter_of(each)
        if is_keras_variable(counter):
            counter.assign_add = value_of(counter).assign_add


def optimizer_variables(
    optimizer: Any, key_of: Mapping[int, str], *, under: str = OPTIMIZER
) -> tuple[list[SlotVariable], list[KeyedVariable]]:
    """The slots of an optimizer, each with the variable it belongs to, and its other variables (step, rates...).

    `key_of` maps the id of a model variable to its key. A wrapped optimizer (loss scaling) is under `inner`, those of a
    MultiOptimizer under their numbers. What an optimizer has for a variable, but of another shape, is no slot.
    """
    own = {id(variable): variable for variable in optimizer.variables}
    slots: list[SlotVariable] = []
    rest: list[KeyedVariable] = []
    for place, inner in _wrapped(optimizer):
        more_slots, more_rest = optimizer_variables(inner, key_of, under=f"{under}/{place}")
        slots, rest = [*slots, *more_slots], [*rest, *more_rest]
        for variable in inner.variables:
            own.pop(id(variable), None)
    for name, of, variable in _lists_of_variables(optimizer, own):
        own.pop(id(variable))
        key = f"{under}/{name}/{_key(of, key_of)}"
        if tuple(variable.shape) == tuple(of.shape) or _grows_along(raw(variable), raw(of)):
            slots.append(SlotVariable(key, raw(variable), raw(of)))
        else:
            rest.append(KeyedVariable(key, raw(variable)))
    rest.extend(KeyedVariable(f"{under}/{name}", raw(variable)) for name, variable in numbered(own.values()))
    return slots, rest


def _grows_along(variable: tf.Variable, of: tf.Variable) -> bool:
    """Of a table that grows TensorFlow does not know how many rows it has room for."""
    growth = growth_of(of)
    return growth is not None and growth_of(variable) is growth


def with_wrapped(optimizer: Any) -> Iterator[Any]:
    """It, and every optimizer in it."""
    yield optimizer
    for _, inner in _wrapped(optimizer):
        yield from with_wrapped(inner)


def _wrapped(optimizer: Any) -> Iterator[tuple[str, Any]]:
    inner = wrapped_in(optimizer)
    if inner is not None:
        yield "inner", inner
    for number, part in enumerate(optimizers_in(optimizer)):
        yield f"optimizers/{number}", part


def _key(variable: Any, key_of: Mapping[int, str]) -> str:
    key = key_of.get(id(raw(variable)))
    if key is None:
        raise ConfigurationError(
            f"the optimizer was built for variable {variable.name!r}, which is not one of the model",
            hint="make a new optimizer for this model",
        )
    return key


def _lists_of_variables(optimizer: Any, own: Mapping[int, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keras keeps slots in lists that run along the trainable variables: (name, trainable variable, slot)."""
    trainable = trained_by(optimizer)
    seen: set[int] = set()
    for name, values in lists_along(optimizer, trainable):
        for variable, slot in zip(trainable, values, strict=True):
            if id(slot) in own and id(slot) not in seen:
                seen.add(id(slot))
                yield name, variable, slot


def numbered(variables: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Each variable with its own short name, made unique by its place among those of the same name."""
    counts: dict[str, int] = {}
    for variable in variables:
        name = re.sub(r"_\d+$", "", variable.name)
        count = counts[name] = counts.get(name, 0) + 1
        yield (name if count == 1 else f"{name}_{count - 1}"), variable
