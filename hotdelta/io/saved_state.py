"""What a directory holds at one position: which variables, of which shape, dtype and class, and their values.

Reads the bundles alone, so it needs neither TensorFlow nor the model that was saved.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import TableRecord
from hotdelta.chain.format.slot_key import is_slot_key
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.state_index import TensorType
from hotdelta.chain.history.state_pieces import Array
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.errors import ManifestError
from hotdelta.io.variable_class import VariableClass, VariableInfo

_SLOT_PREFIXES = ("optimizer/", "slots/")
_IN_ORDER_OF_IDS = "div"


class SavedState:
    """The variables of a state.

    `id_rules`: what the save says of how ids were made, as it is written there; empty when it says nothing.
    """

    def __init__(self, state: ChainState) -> None:
        self.state = state
        self.newest = state.newest
        self._held: dict[str, Array] = {}
        self._reader = StateReader(state)
        types = self._find_types()
        trainer_state = self._read_trainer_state()
        self.id_rules: Mapping[str, Any] = trainer_state.get(names.ID_RULES_MEMBER, {})
        parameters = self._find_parameters(types, trainer_state)
        self.variables: Mapping[str, VariableInfo] = {
            key: self._describe(key, found, parameters) for key, found in sorted(types.items())
        }

    def read(self, key: str, dtype: Any) -> Array:
        """The value, in memory of its own, as the numpy dtype that has these bits."""
        held = self._held.get(key)
        return self._reader.value(key, dtype=dtype) if held is None else held.view(dtype)

    def has_rows(self, key: str) -> bool:
        """Whether it is a table of which deltas carry rows, or a slot of one."""
        return any(_is_of(key, table) for table in self.newest.tables)

    def hold(self, keys: Collection[str]) -> None:
        """Read these now: what is asked for later does not depend on files being there."""
        self._held = {key: self._reader.value(key) for key in keys}

    def _find_types(self) -> dict[str, TensorType]:
        """Of each variable that the newest link knows, and of which a link has all."""
        keys = self._reader.newest_keys()
        return {key: found for key in keys if (found := self._reader.type_of(key)) is not None}

    def _read_trainer_state(self) -> Mapping[str, Any]:
        tensor = self._reader.newest_tensor(names.TRAINER_STATE_TENSOR)
        if tensor is None:
            return {}
        try:
            document: Mapping[str, Any] = json.loads(tensor.tobytes())
        except ValueError as error:
            raise ManifestError(f"trainer state cannot be read: {error}") from error
        return document

    def _find_parameters(self, keys: Collection[str], trainer_state: Mapping[str, Any]) -> set[str]:
        """As the save or the trainer says. TF1 trainers do not: there they are the tables and what has a slot."""
        if names.PARAMETERS_MEMBER in trainer_state:
            return set(trainer_state[names.PARAMETERS_MEMBER])
        return {_slot_owner(key, keys) for key in keys} | set(self.newest.tables)

    def _describe(self, key: str, found: TensorType, parameters: set[str]) -> VariableInfo:
        variable_class = VariableClass.PARAMETER if key in parameters else VariableClass.PERSISTABLE
        record, own = self._find_record(key, found.shape, parameters), self.newest.tables.get(key)
        return VariableInfo(
            key,
            variable_class,
            found.shape,
            found.dtype,
            is_table=key in self.newest.tables,
            layout=row_layout(record.part_rows, record.strategy) if record else "",
            reserved_rows=own.shape[0] if own is not None and own.rows_in_use is not None else None,
        )

    def _find_record(self, key: str, shape: tuple[int, ...], parameters: set[str]) -> TableRecord | None:
        """Of the table that it is, or of the one that it is a slot of: only TF1 has tables in parts."""
        tables = self.newest.tables
        if key in parameters:
            return tables.get(key)
        owners = [
            table
            for table, record in tables.items()
            if is_slot_key(key, shape, owner=table, owner_shape=record.stored_shape, parameters=parameters)
        ]
        return tables[max(owners, key=len)] if owners else None


def row_layout(part_rows: Sequence[int], strategy: str) -> str:
    """What VariableInfo says of a table whose rows lie in so many parts."""
    if not part_rows or strategy == _IN_ORDER_OF_IDS:
        return ""
    return f"{strategy or 'unknown'} in parts of {', '.join(map(str, part_rows))} rows"


def _slot_owner(key: str, keys: Container[str]) -> str:
    """The variable that an optimizer slot belongs to; empty when it is none."""
    owner = key.split("/", 2)[-1] if key.startswith(_SLOT_PREFIXES) else key.rpartition("/")[0]
    return owner if owner != key and owner in keys else ""


def _is_slot_of(key: str, table: str) -> bool:
    """Keras names the slot before its table, TF1 after it.

    So may layers be named, which is_slot_key tells apart. Here it does no harm: they get their vocabulary checked, too.
    """
    return key.endswith(f"/{table}") or key.startswith(f"{table}/")


def _is_of(key: str, table: str) -> bool:
    return key == table or _is_slot_of(key, table)
