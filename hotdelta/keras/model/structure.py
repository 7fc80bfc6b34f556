"""Keys for the variables of a Keras model that are the same when the model is built again.

Keras numbers the names that it makes up (`embedding_3`), and two towers may both hold `emb/embeddings`; so a key is
the path through the structure: attribute names in subclassed models, given names elsewhere, and for made-up names the
class with its place among its siblings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras.model.plain_variables import plain_variables
from hotdelta.keras_internals import (
    CHILDREN,
    all_layers,
    attributes_of,
    children_of,
    has_graph_of_layers,
    lists_in,
    seed_generators_of,
    variables_of,
)
from hotdelta.train.model.optimizer_slots import KeyedVariable, numbered, raw


def model_variables(model: keras.Model) -> list[KeyedVariable]:
    """Every variable of the model, seeds and states included and metrics not.

    Raises when two would have one key; but a plain one, which a layer may hold under the name of a weight, is numbered.
    """
    layers = all_layers(model)
    counted = [*model.variables, *(state for layer in layers for state in _states(layer))]
    wanted = {id(variable): variable for variable in [*counted, *_beside(counted, layers)]}
    found: dict[int, KeyedVariable] = {}
    taken: set[str] = set()
    places = list(walk_layers(model, "", set()))
    for key, variable in _counted(places):
        if id(variable) in wanted and id(variable) not in found:
            if key in taken:
                raise ConfigurationError(
                    f"two variables have the key {key!r}",
                    hint="give the layers that hold them different names",
                )
            taken.add(key)
            found[id(variable)] = KeyedVariable(key, raw(variable))
    for key, variable in _plain(places):
        if id(variable) in wanted and id(variable) not in found:
            free = _free(key, taken)
            taken.add(free)
            found[id(variable)] = KeyedVariable(free, raw(variable))
    for identity, variable in wanted.items():
        if identity not in found:
            raise ConfigurationError(
                f"variable {getattr(variable, 'path', variable.name)!r} belongs to no layer that hotdelta can find",
                hint="keep the layer that owns it as an attribute of the model",
            )
    return [found[identity] for identity in wanted]


def table_layers(model: keras.Model) -> Iterator[keras.layers.Embedding]:
    """Every embedding layer of the model, ours and Keras's own."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.Embedding) and layer.built:
            yield layer


def inner_models(model: keras.Model) -> Iterator[tuple[str, keras.Model]]:
    """The models among its layers, each with its path."""
    for path, layer in walk_layers(model, "", set()):
        if isinstance(layer, keras.Model) and layer is not model:
            yield path, layer


def _beside(counted: list[Any], layers: list[Any]) -> Iterator[tf.Variable]:
    """Plain variables that layers hold, and that are not the inside of one of Keras."""
    known = {id(raw(variable)) for variable in counted}
    return (variable for variable in _plain_in(layers) if id(raw(variable)) not in known)


def held_beside(model: keras.Model) -> list[Any]:
    """The plain variables of its layers, of which Keras keeps no list."""
    return list(_plain_in(all_layers(model)))


def _plain_in(layers: list[Any]) -> Iterator[tf.Variable]:
    return (variable for layer in layers for _, variable in plain_variables(layer))


def held_variables(model: keras.Model) -> list[Any]:
    """What makes it another model when it changes: its variables, seeds and states."""
    return [
        held for layer in all_layers(model) for held in (*_own_variables(layer), *seed_generators_of(layer))
    ]


def variable_lists(model: keras.Model) -> Iterator[Any]:
    """Where Keras keeps them, and the layers: as long as these hold the same, so does the model."""
    for layer in all_layers(model):
        yield from lists_in(layer)
        if _states(layer):
            yield vars(layer)


def _counted(places: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """What Keras knows of: the variables and seeds of each layer."""
    for path, layer in places:
        for name, variable in numbered(_own_variables(layer)):
            yield _join(path, name), variable
        for number, generator in enumerate(seed_generators_of(layer)):
            yield _join(path, f"seed_generator_{number}"), generator.state


def _plain(places: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, tf.Variable]]:
    for path, layer in places:
        for name, variable in plain_variables(layer):
            yield _join(path, name), variable


def _free(key: str, taken: Container[str]) -> str:
    tried = (f"{key}_{number}" if number else key for number in itertools.count())
    return next(name for name in tried if name not in taken)


def _own_variables(layer: Any) -> list[Any]:
    return [*variables_of(layer), *_states(layer)]


def _states(layer: Any) -> list[Any]:
    """What a stateful RNN goes on from, which Keras does not count among its variables."""
    is_stateful = isinstance(layer, keras.layers.RNN) and layer.stateful and layer.states is not None
    return keras.tree.flatten(layer.states) if is_stateful else []


def walk_layers(layer: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield path, layer
    for label, child in _children(layer):
        yield from walk_layers(child, _join(path, label), seen)


def _children(layer: Any) -> Iterator[tuple[str, Any]]:
    attributes = (
        {} if isinstance(layer, keras.Sequential) or is_functional(layer) else _attribute_names(layer)
    )
    counts: dict[str, int] = {}
    for child in children_of(layer):
        label = attributes.get(id(child))
        if label is None:
            label = given_name(child)
        if label is None:
            kind = snake_case(type(child).__name__)
            count = counts[kind] = counts.get(kind, 0) + 1
            label = kind if count == 1 else f"{kind}_{count - 1}"
        yield label, child


def is_functional(layer: Any) -> bool:
    return isinstance(layer, keras.Model) and has_graph_of_layers(layer)


def _attribute_names(layer: Any) -> dict[int, str]:
    """Which attribute, or which place in an attribute's list or dictionary, holds each child."""
    found: dict[int, str] = {}
    for name, value in attributes_of(layer, without=CHILDREN):
        label = name.lstrip("_")
        if isinstance(value, keras.layers.Layer):
            found.setdefault(id(value), label)
        elif isinstance(value, list | tuple):
            for number, item in enumerate(value):
                found.setdefault(id(item), f"{label}/{number}")
        elif isinstance(value, dict):
            for key, item in value.items():
                found.setdefault(id(item), f"{label}/{key}")
    return found


def given_name(layer: Any) -> str | None:
    """The layer's name, unless Keras made it up from the class and a counter."""
    made_up = rf"{re.escape(snake_case(type(layer).__name__))}(_\d+)?"
    return None if re.fullmatch(made_up, layer.name) else str(layer.name)


def snake_case(name: str) -> str:
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _join(path: str, label: str) -> str:
    return f"{path}/{label}" if path else label
