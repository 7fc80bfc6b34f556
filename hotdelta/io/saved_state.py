"""What a directory holds at one position: which variables, of which shape, dtype and class, and their values.

Reads the bundles alone, so it needs neither TensorFlow nor the model that was saved.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta.chain import names
from hotdelta.chain.bundle import BundleEntry, BundleReader
from hotdelta.chain.delta_tensors import has_value, ids_tensor
from hotdelta.chain.manifest import Manifest, TableRecord
from hotdelta.chain.slice_key import is_slice_key
from hotdelta.chain.slot_key import is_slot_key
from hotdelta.chain.verification import directory_of
from hotdelta.errors import ManifestError
from hotdelta.io.variable_class import VariableClass, VariableInfo

_OWN_TENSORS = {names.IDENTITY_TENSOR, names.STEP_TENSOR, names.TRAINER_STATE_TENSOR}
_SLOT_PREFIXES = ("optimizer/", "slots/")
_IN_ORDER_OF_IDS = "div"

Array = npt.NDArray[Any]


class SavedState:
    """The variables of a full and the deltas after it. A context manager.

    Unless they are held, files are open only while they are read: there may be more than a process may open.
    `id_rules`: what the save says of how ids were made, as it is written there; empty when it says nothing.
    """

    def __init__(self, directory: Path, manifests: Sequence[Manifest]) -> None:
        """`manifests`: the full first, then the deltas in order."""
        self.newest = manifests[-1]
        self._stack = ExitStack()
        self._is_held = False
        self._readers = [
            self._stack.enter_context(BundleReader(directory_of(directory, manifest.kind), manifest.prefix))
            for manifest in manifests
        ]
        entries = self._find_entries()
        trainer_state = self._read_trainer_state()
        self.id_rules: Mapping[str, Any] = trainer_state.get(names.ID_RULES_MEMBER, {})
        parameters = self._find_parameters(entries, trainer_state)
        self.variables: Mapping[str, VariableInfo] = {
            key: self._describe(key, entry, parameters) for key, entry in sorted(entries.items())
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def read(self, key: str, dtype: Any) -> Array:
        """The value at the newest position, in memory of its own, as the numpy dtype that has these bits."""
        shape = self.variables[key].shape
        value = np.empty(shape, dtype)
        if key in self._readers[0].entries:
            value.reshape(-1).view(np.uint8)[:] = self._readers[0].map_bytes(key)
        for reader in self._readers[1:]:
            if key + names.ROWS_SUFFIX in reader.entries:
                ids = reader.read(ids_tensor(reader.entries, key))
                value[ids] = reader.map_bytes(key + names.ROWS_SUFFIX).view(dtype).reshape(-1, *shape[1:])
            elif has_value(reader.entries, key):
                value.reshape(-1).view(np.uint8)[:] = reader.map_bytes(key + names.VALUE_SUFFIX)
            if not self._is_held:
                reader.close()
        return value

    def has_rows(self, key: str) -> bool:
        """Whether it is a table of which deltas carry rows, or a slot of one."""
        return any(_is_of(key, table) for table in self.newest.tables)

    def hold(self) -> None:
        """Open every file now: what is read later does not depend on its name being there."""
        self._is_held = True
        for reader in self._readers:
            for name, entry in reader.entries.items():
                if not entry.is_sliced:
                    reader.map_bytes(name)

    def _find_entries(self) -> dict[str, BundleEntry]:
        """Shape and dtype of each variable that the newest link knows, from the link that holds all of it.

        A full before it may hold variables of an optimizer that went, and lack those of the one that came.
        """
        newest = self._readers[-1]
        if len(self._readers) == 1:
            return {
                name: entry
                for name, entry in newest.entries.items()
                if not is_slice_key(name) and name not in _OWN_TENSORS
            }
        found = {}
        for suffix in (names.ROWS_SUFFIX, names.VALUE_SUFFIX):
            for name in newest.entries:
                if name.endswith(suffix):
                    key = name.removesuffix(suffix)
                    found[key] = self._readers[0].entries.get(key) or self._first_whole(key)
        return found

    def _first_whole(self, key: str) -> BundleEntry:
        """A recompiled optimizer brings its slots in the middle of a chain, whole, in one delta."""
        for reader in self._readers[1:]:
            rows = reader.entries.get(key + names.ROWS_SUFFIX)
            if rows is not None:
                return rows
            if has_value(reader.entries, key):
                value = reader.entries[key + names.VALUE_SUFFIX]
                return BundleEntry(
                    value.dtype, value.shape[1:], value.shard, value.offset, value.size, value.crc32c
                )
        return self._readers[-1].entries[key + names.VALUE_SUFFIX]

    def _read_trainer_state(self) -> Mapping[str, Any]:
        reader = self._readers[-1]
        if names.TRAINER_STATE_TENSOR not in reader.entries:
            return {}
        try:
            document: Mapping[str, Any] = json.loads(reader.read(names.TRAINER_STATE_TENSOR).tobytes())
        except ValueError as error:
            raise ManifestError(f"trainer state cannot be read: {error}") from error
        return document

    def _find_parameters(
        self, entries: Mapping[str, BundleEntry], trainer_state: Mapping[str, Any]
    ) -> set[str]:
        """As the save or the trainer says. TF1 trainers do not: there they are the tables and what has a slot."""
        if names.PARAMETERS_MEMBER in trainer_state:
            return set(trainer_state[names.PARAMETERS_MEMBER])
        return {_slot_owner(key, entries) for key in entries} | set(self.newest.tables)

    def _describe(self, key: str, entry: BundleEntry, parameters: set[str]) -> VariableInfo:
        variable_class = VariableClass.PARAMETER if key in parameters else VariableClass.PERSISTABLE
        record = self._find_record(key, tuple(entry.shape), parameters)
        return VariableInfo(
            key,
            variable_class,
            tuple(entry.shape),
            entry.dtype,
            is_table=key in self.newest.tables,
            layout=row_layout(record.part_rows, record.strategy) if record else "",
        )

    def _find_record(self, key: str, shape: tuple[int, ...], parameters: set[str]) -> TableRecord | None:
        """Of the table that it is, or of the one that it is a slot of: only TF1 has tables in parts."""
        tables = self.newest.tables
        if key in parameters:
            return tables.get(key)
        owners = [
            table
            for table, record in tables.items()
            if is_slot_key(key, shape, owner=table, owner_shape=record.shape, parameters=parameters)
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
