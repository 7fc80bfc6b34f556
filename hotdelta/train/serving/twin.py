"""Checks of the model that is traced for serving where that is not the one that is trained."""

from __future__ import annotations

from collections.abc import Sequence

from hotdelta.errors import ConfigurationError
from hotdelta.train.model.optimizer_slots import KeyedVariable
from hotdelta.train.tables.sharded import is_sharded


def refuse_served_shards(served: Sequence[KeyedVariable]) -> None:
    """A prediction is made on one machine, so that what it reads must be one variable."""
    for item in served:
        if is_sharded(item.variable):
            raise ConfigurationError(
                f"variable {item.key!r} is sharded over parameter servers and cannot be served like that",
                hint="make the model once more, outside of strategy.scope(), and pass it as serving_model, "
                "with its functions as signatures",
            )


def refuse_other_shapes(served: Sequence[KeyedVariable], trained: Sequence[KeyedVariable]) -> None:
    """Every served variable must be trained: same key, same shape, same dtype."""
    known = {item.key: item.variable for item in trained}
    for item in served:
        variable = known.get(item.key)
        if variable is item.variable:
            continue
        is_equal = variable is not None and (variable.shape, variable.dtype) == (
            item.variable.shape,
            item.variable.dtype,
        )
        if not is_equal:
            raise ConfigurationError(
                f"variable {item.key!r} of the serving model is not one of the trained model",
                hint="give both the same structure, shapes and dtypes",
            )
