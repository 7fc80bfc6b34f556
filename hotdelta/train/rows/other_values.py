"""The last saved value of every variable that is not a table, and which of them changed since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hotdelta.chain.bundle.row_memory import is_same_bits
from hotdelta.train.model.variables import OtherVariable
from hotdelta.train.tables.row_values import Array, read_whole


class OtherValues:
    """Owned by the training thread. Remembered arrays are replaced, never written to, so others may keep them."""

    def __init__(self, variables: Iterable[OtherVariable], *, unsaved: frozenset[str] = frozenset()) -> None:
        self.variables = tuple(variables)
        self._remembered = {item.key: _copy(item) for item in self.variables}
        self._due = set(unsaved)

    def take(self) -> dict[str, Array]:
        """The values that changed since the last take, with what was given back."""
        changed = {}
        for item in self.variables:
            live = read_whole(item.variable)
            if item.key in self._due or not is_same_bits(live, self._remembered[item.key]):
                changed[item.key] = np.array(live, copy=True)
        self._remembered.update(changed)
        self._due.clear()
        return changed

    def give_back(self, keys: Iterable[str]) -> None:
        self._due.update(keys)

    def mark_all(self) -> None:
        self._due.update(item.key for item in self.variables)

    def snapshot(self) -> Mapping[str, Array]:
        """Every value as of the last take."""
        return dict(self._remembered)


def _copy(item: OtherVariable) -> Array:
    return np.array(read_whole(item.variable), copy=True)
