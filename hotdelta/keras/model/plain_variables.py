"""What a layer of the user's own holds beside its weights: a tf.Variable, a random generator, a tf.Module.

Keras looks into none of them, so neither `variables` nor `save_weights` has them; but the layer goes on from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hotdelta.keras_internals import attributes_of
from hotdelta.train.model.module_keys import module_variables


def plain_variables(layer: Any) -> Iterator[tuple[str, tf.Variable]]:
    """Each with the attribute that holds it, itself or in a list or dictionary. Layers of Keras go on from none.

    No checkpoint holds strings: they are left out.
    """
    if type(layer).__module__.partition(".")[0] == "keras":
        return
    for name, value in attributes_of(layer):
        for place, item in _items(name.lstrip("_"), value):
            yield from (found for found in _variables(place, item) if found[1].dtype != tf.string)


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}/{key}", item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{name}/{number}", item) for number, item in enumerate(value))
    else:
        yield name, value


def _variables(place: str, item: Any) -> Iterator[tuple[str, tf.Variable]]:
    if isinstance(item, tf.random.Generator):
        yield f"{place}/state", item.state
    elif isinstance(item, tf.Module):
        yield from ((f"{place}/{key}", found) for key, found in module_variables(item).items())
    elif isinstance(item, tf.Variable):
        yield place, item
