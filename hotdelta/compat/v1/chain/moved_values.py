"""Which of the variables that are saved whole have changed since they were last saved."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from hotdelta.train.tables.row_values import Array, is_same_bits


class MovedValues:
    """Remembers every value as it was last taken. One thread at a time."""

    def __init__(self, saved: Mapping[str, Array]) -> None:
        """`saved`: what is on disk."""
        self._remembered = {key: np.array(value) for key, value in saved.items()}
        self._due: set[str] = set()

    def take(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Those that changed, or were given back."""
        moved = {
            key: np.array(value)
            for key, value in values.items()
            if key in self._due or not is_same_bits(value, self._remembered[key])
        }
        self._remembered.update(moved)
        self._due.difference_update(moved)
        return moved

    def give_back(self, keys: Collection[str]) -> None:
        """What was taken was not committed: it is due again."""
        self._due.update(keys)

    def give_back_all(self) -> None:
        self._due.update(self._remembered)
