"""A cut: everything that changed since the last one, read at one moment between two training steps. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hotdelta.train.model.variables import RowVariable
from hotdelta.train.tables.key_upkeep import KeyState
from hotdelta.train.tables.row_values import Array, Ids
from hotdelta.train.tables.server_rows import ServerRows


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Changed rows of one row variable. A slot that changed in the same rows as its table shares the table's ids.

    Rows that parameter servers are to write stay on the servers. `rows_in_use`: of a variable that grows.
    """

    variable: RowVariable
    ids: Ids
    rows: Array | ServerRows
    shares_ids_of: str | None = None
    rows_in_use: int | None = None


@dataclass(frozen=True, slots=True)
class ScrubSlice:
    """Consecutive rows of one row variable, read with the cut only to be checked."""

    variable: RowVariable
    first: int
    rows: Array


@dataclass(frozen=True, slots=True)
class Cut:
    """What one delta will hold. `keys`: what it says of each table with keys."""

    step: int
    blocks: tuple[RowBlock, ...]
    values: Mapping[str, Array]
    trainer_state: bytes
    watermark: float | None
    trained_at: float
    scrub: tuple[ScrubSlice, ...] = ()
    keys: Mapping[str, KeyState] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.values and not any(len(block.ids) for block in self.blocks)
