"""Keys for what a tf.Module holds: the path of attributes that leads to it."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras_internals import all_layers
from hotdelta.logs import event
from hotdelta.tensorflow_internals import find_in_module
from hotdelta.train.model.optimizer_slots import KeyedVariable, innermost, is_variable, raw
from hotdelta.train.tables.sharded import is_sharded

logger = logging.getLogger(__name__)

_named: weakref.WeakSet[Any] = weakref.WeakSet()


def refuse_keras_2(given: Any) -> None:
    """Raises ConfigurationError for a model or optimizer of Keras 2, which keeps its variables where nobody looks."""
    modules = (kind.__module__ for kind in type(given).__mro__)
    if any(module.startswith(("tf_keras.", "tensorflow.python.keras.")) for module in modules):
        raise ConfigurationError(
            f"{type(given).__name__} is of Keras 2 (tf_keras), and hotdelta takes models of Keras 3",
            hint="make it with `import keras`; or train it with hotdelta.train.DeltaWriter, which takes its variables "
            "by name: {v.name.removesuffix(':0'): v for v in [*model.variables, *model.optimizer.variables]}",
        )


def module_keys(module: tf.Module) -> dict[int, str]:
    """id(tf.Variable) to key. A variable that is reached by several paths has the first of them."""
    return {id(raw(variable)): key for key, variable in module_variables(module).items()}


def module_variables(module: tf.Module) -> dict[str, Any]:
    """Key to variable, each variable once; a sharded variable is one. The state of a random generator is one of them.

    Raises ConfigurationError for a Keras layer with variables, which tf.Module does not look into: nothing of them
    would be saved. One that is not built yet may get some. And for a model of Keras 2.
    """
    refuse_keras_2(module)
    found: dict[int, tuple[str, Any]] = {}
    for path, holder in find_in_module(module, _holds_state):
        if _is_keras_layer(holder):
            if holder.variables or not holder.built:
                raise _hides_variables(module, path)
            continue
        variable, key = (holder.state, f"{path}/state") if _is_generator(holder) else (holder, path)
        found.setdefault(id(variable), (key, variable))
    return dict(found.values())


def name_unsaved_optimizers(module: tf.Module, saved: Any) -> None:
    """Log the Keras optimizers that it holds beside the one that is saved: what they have is in no checkpoint.

    Each of them once.
    """
    keras = _keras()
    if keras is None:
        return
    known = {id(saved), id(innermost(saved))}
    kind = keras.optimizers.Optimizer
    for attribute, held in find_in_module(module, lambda value: isinstance(value, kind)):
        if id(held) not in known and held not in _named:
            _named.add(held)
            hint = "only one is: give the others' variables with those of the model, in a dictionary"
            event(logger, logging.WARNING, "an optimizer is not saved", attribute=attribute, hint=hint)


def given_variables(variables: Mapping[Any, Any]) -> list[KeyedVariable]:
    """Under the names that the user gives them. Raises ConfigurationError for what is no name, or no variable."""
    for key, variable in variables.items():
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"a variable is given under {key!r}", hint="give each of them a name")
        if not is_variable(variable):
            raise ConfigurationError(
                f"{key!r} is a {type(variable).__name__}, which is no variable", hint="give a tf.Variable"
            )
    return [KeyedVariable(key, raw(variable)) for key, variable in variables.items()]


def _hides_variables(module: tf.Module, key: str) -> ConfigurationError:
    return ConfigurationError(
        f"{key!r} of {type(module).__name__} is a Keras layer, whose variables a tf.Module does not know",
        hint="make the whole a keras.Model, or give a dictionary of names and variables; if the layer has no "
        "variables, call it once before",
    )


def _holds_state(value: Any) -> bool:
    is_variable = isinstance(value, tf.Variable) or is_sharded(value)
    return is_variable or _is_generator(value) or _is_keras_layer(value)


def _is_generator(value: Any) -> bool:
    keras = _keras()
    return isinstance(value, tf.random.Generator) or (
        keras is not None and isinstance(value, keras.random.SeedGenerator)
    )


def _is_keras_layer(value: Any) -> bool:
    keras = _keras()
    return keras is not None and isinstance(value, keras.Layer)


def _keras() -> Any:
    """Not imported for its own sake: when nobody has, nothing of it is in a module."""
    return sys.modules.get("keras")


def module_resources(module: tf.Module) -> list[Any]:
    """Lookup tables and the like: a SavedModel keeps only those that its root tracks."""
    found = find_in_module(module, lambda value: _is_resource(value) or _is_keras_layer(value))
    holders = {id(holder): holder for _, holder in found}.values()
    return [resource for holder in holders for resource in _resources_of(holder)]


def _resources_of(holder: Any) -> list[Any]:
    if not _is_keras_layer(holder):
        return [holder]
    return [value for layer in all_layers(holder) for value in vars(layer).values() if _is_resource(value)]


def _is_resource(value: Any) -> bool:
    return hasattr(value, "resource_handle")
