"""Whether a model and its optimizers still hold the variables that they held when they were bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from hotdelta.keras.model.contents_watch import ContentsWatch, are_same
from hotdelta.keras.model.other_optimizers import OtherOptimizers
from hotdelta.keras.model.structure import held_beside, held_variables, variable_lists
from hotdelta.keras_internals import list_in_optimizer
from hotdelta.train.model.optimizer_slots import with_wrapped


class HeldState:
    """As of when it is made. Belongs to the training thread."""

    def __init__(self, model: keras.Model, optimizer: Any, others: OtherOptimizers) -> None:
        self._model = model
        self._optimizers = (optimizer, *others.by_label.values())
        self._variables = self._find()
        self._beside = held_beside(model)
        self._watch = ContentsWatch(self._lists)

    @property
    def is_same(self) -> bool:
        """No layer was added, replaced or quantized since, nor the kind of learning rate. Asked before every save."""
        if not self._watch.is_same:
            if not are_same(self._find(), self._variables):
                return False
            self._watch.note()
        return True

    @property
    def is_same_beside(self) -> bool:
        """Nor what layers hold that Keras does not count. Not cheap enough for every save."""
        return are_same(held_beside(self._model), self._beside)

    def _find(self) -> list[Any]:
        trained = (variable for optimizer in self._optimizers for variable in optimizer.variables)
        return [*held_variables(self._model), *trained]

    def _lists(self) -> Iterator[Any]:
        """Where all of that is kept."""
        yield from variable_lists(self._model)
        for optimizer in self._optimizers:
            yield from map(list_in_optimizer, with_wrapped(optimizer))
