"""What a chain says of its tables: which have keys, which row an id is, and the numbers that stored bits mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from hotdelta.chain import KeyTable, Manifest, TableRecord
from hotdelta.chain.format import names
from hotdelta.chain.history.state import read_schema
from hotdelta.chain.history.state_pieces import Array
from hotdelta.errors import ConfigurationError

Floats = npt.NDArray[np.float64]


def key_tables(run_dir: Path, manifest: Manifest) -> tuple[KeyTable, ...]:
    """The tables whose rows are found by keys. Their files must be there to ask for a key."""
    schema = read_schema(run_dir, manifest)
    return schema.key_tables if schema is not None else ()


def find_table(tables: tuple[str, ...], asked: str) -> str:
    """The key of the table that is meant: itself, or what it begins with. Raises ConfigurationError."""
    if asked in tables:
        return asked
    found = [table for table in tables if table.startswith(f"{asked}/")]
    if len(found) == 1:
        return found[0]
    problem = f"{asked!r} may be any of {', '.join(found)}" if found else f"there is no table {asked!r}"
    raise ConfigurationError(problem, hint=f"the tables are {', '.join(tables) or 'none'}")


def row_of_id(record: TableRecord, given: int) -> int:
    """The row of an id in a table without keys. Raises ConfigurationError."""
    rows = record.stored_shape[0]
    if not 0 <= given < rows:
        raise ConfigurationError(f"there is no row {given}", hint=f"the table has rows 0 to {rows - 1}")
    if record.strategy != "mod":
        return given
    part, row = given % len(record.part_rows), given // len(record.part_rows)
    return sum(record.part_rows[:part]) + row


def id_of_row(record: TableRecord, row: int) -> int:
    """The inverse of row_of_id."""
    if record.strategy != "mod":
        return row
    part = 0
    while row >= record.part_rows[part]:
        row -= record.part_rows[part]
        part += 1
    return row * len(record.part_rows) + part


def served_keys(run_dir: Path, manifest: Manifest) -> frozenset[str] | None:
    """The variables that a server needs; None when that is not known."""
    schema = read_schema(run_dir, manifest)
    return None if schema is None else frozenset(variable.key for variable in schema.variables)


def roles_of(run_dir: Path, manifest: Manifest, table: str) -> tuple[str, ...]:
    """Of the files that a table is read from: those for trainers may be missing where only servers read."""
    served = served_keys(run_dir, manifest)
    return names.SERVING_ROLES if served is not None and table in served else names.ROLES


def as_floats(values: Array, dtype: str) -> Floats:
    """The numbers that stored bits stand for; of complex ones their absolute values."""
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(np.abs(values) if values.dtype.kind == "c" else values, np.float64)
