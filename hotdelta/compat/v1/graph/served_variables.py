"""Which variables of a training graph serving needs: all but the optimizer's, by the names that tf.train gives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from hotdelta.chain.format.slot_key import is_slot_key
from hotdelta.compat.v1.graph.saved_variables import SavedVariable

# A collection of a graph, with the names of variables that training alone needs, whatever tf.train would call them.
_KEPT_FROM_SERVING = "hotdelta_kept_from_serving"
_OPTIMIZER_SCALAR = re.compile(r"(.*/)?beta[12]_power(_\d+)?")


def slot_owner(item: SavedVariable, saved: Sequence[SavedVariable]) -> SavedVariable | None:
    """The trainable variable whose optimizer slot this is: tf.train names slots `<variable>/<optimizer>`.

    An optimizer that is used inside of a variable_scope puts the scope's name before that of the variable.
    """
    if item.is_trainable:
        return None
    if item.growth is not None:
        return _grown_beside(item, saved)
    trainable = [other for other in saved if other.is_trainable]
    owners = [other for other in trainable if _is_slot_of(item, other, trainable)] or [
        other
        for other in trainable
        if item.key.rpartition("/")[0].endswith(f"/{other.key}") and item.shape == other.shape
    ]
    return max(owners, key=lambda owner: len(owner.key), default=None)


def _grown_beside(item: SavedVariable, saved: Sequence[SavedVariable]) -> SavedVariable | None:
    """The rows of a table know what grows along with them."""
    if item.growth is None or not item.growth.is_beside(item.parts[0].variable):
        return None
    with_rows = (other for other in saved if other.growth is item.growth)
    return next(
        (each for each in with_rows if not item.growth.is_beside(each.parts[0].variable)),
        None,
    )


def _is_slot_of(item: SavedVariable, owner: SavedVariable, trainable: Sequence[SavedVariable]) -> bool:
    return is_slot_key(
        item.key,
        item.shape,
        owner=owner.key,
        owner_shape=owner.shape,
        parameters=(other.key for other in trainable),
    )


def shares_ids(slot: str, table: str) -> bool:
    """Whether readers of a delta find the ids of a slot's rows under the key of its table: by the beginning."""
    return slot.startswith(f"{table}/")


def is_served(item: SavedVariable, saved: Sequence[SavedVariable]) -> bool:
    return slot_owner(item, saved) is None and not _is_of_training(item)


def keep_from_serving(variable: Any) -> None:
    """Of a variable of training that has not the name of a slot, or not the shape."""
    graph = tf.compat.v1.get_default_graph()
    if variable.op.name not in graph.get_collection(_KEPT_FROM_SERVING):
        graph.add_to_collection(_KEPT_FROM_SERVING, variable.op.name)


def served_variables(saved: Iterable[SavedVariable]) -> list[SavedVariable]:
    everything = list(saved)
    return [item for item in everything if is_served(item, everything)]


def _is_of_training(item: SavedVariable) -> bool:
    step = tf.compat.v1.train.get_global_step()
    if step is not None and item.parts[0].variable is step:
        return True
    # Bytes, in a graph that was imported.
    kept = {tf.compat.as_str(name) for name in tf.compat.v1.get_collection(_KEPT_FROM_SERVING)}
    if all(part.name in kept for part in item.parts):
        return True
    return not item.is_trainable and not item.shape and _OPTIMIZER_SCALAR.fullmatch(item.key) is not None
