"""Which keys are those of optimizer slots, as TensorFlow 1 names them: `<variable>/<optimizer>`."""

from __future__ import annotations

from collections.abc import Iterable

Shape = tuple[int, ...]


def is_slot_key(key: str, shape: Shape, *, owner: str, owner_shape: Shape, parameters: Iterable[str]) -> bool:
    """Whether `key` is a slot of `owner`, and not of a layer whose scope is named like it.

    A slot has a row for each row of its owner. An optimizer may have a name in several parts; but no other
    parameter lies above a slot or beside it, as it does in the scope of a layer.
    """
    if not key.startswith(f"{owner}/"):
        return False
    scope = key.rpartition("/")[0]
    if scope == owner:
        return shape[:1] == owner_shape[:1]
    return shape == owner_shape and not any(
        other == scope or other.startswith(f"{scope}/") for other in parameters
    )
