"""Of tables that reserve more rows than they have, an export holds those in use, and only those are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporter.fingerprint import Fingerprint, fingerprint
from exporter.proof import Expected, verify_export
from exporter.signatures.variables import checkpoint_key
from exporter.value_files import fingerprint_values, write_values
from hotdelta.chain import BundleReader, BundleWriter, Disk, KeyTable, Schema, TensorLayout
from hotdelta.chain.format import names
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.errors import ModelMismatchError
from hotdelta.keras.model.structure import model_variables
from tests.chain.key_table_chain import ROWS, SCHEMA, Array, KeyTableChain
from tests.exporter.trained_run import Trained, schema_of

pytestmark = pytest.mark.optimized


@pytest.fixture
def chain(tmp_path: Path) -> KeyTableChain:
    chain = KeyTableChain(tmp_path / "run")
    for at in range(3):
        chain.delta(range(at * 10, at * 30), 1.0 + at)
    return chain


def state_of(chain: KeyTableChain) -> ChainState:
    state = find_state(chain.run_dir)
    assert state is not None
    return state


def test_the_values_of_an_export_are_the_rows_in_use(chain: KeyTableChain, tmp_path: Path) -> None:
    folder = tmp_path / "export" / "variables"
    folder.mkdir(parents=True)
    saved = np.arange(3)
    writer = BundleWriter(
        folder,
        "variables",
        [TensorLayout("what TensorFlow saved", "int64", saved.shape, 0)],
        shard_roles=[names.ROLE_SERVING],
        disk=Disk(),
    )
    writer.write("what TensorFlow saved", saved)
    for name, temporary in writer.finish().temporary_names.items():
        (folder / temporary).rename(folder / name)

    found = write_values(tmp_path / "export", SCHEMA, state_of(chain))

    with BundleReader(folder, "variables") as reader:
        assert reader.read("what TensorFlow saved").tolist() == saved.tolist()
        for index, spec in enumerate(SCHEMA.variables):
            value = chain.table.values[spec.key]
            stored = reader.read(checkpoint_key(index))
            assert stored.shape == value.shape
            assert stored.tobytes() == value.tobytes()
            assert found[spec.key] == fingerprint(spec, [value])
    assert found == fingerprint_values(SCHEMA, state_of(chain))
    assert found[ROWS].rows == 51


def test_tables_with_another_number_of_rows_differ(chain: KeyTableChain) -> None:
    spec, rows = SCHEMA.variables[0], chain.table.values[ROWS]
    whole, part = fingerprint(spec, [rows]), fingerprint(spec, [rows[:-1]])
    assert whole.difference(part) == "50 rows, and not 51"
    assert whole.difference(fingerprint(spec, [rows[:9], rows[9:]])) is None


def growing_schema(export: Path) -> Schema:
    """That of an export, as if its first table had more rows than are in use."""
    schema = schema_of(export)
    key = schema.tables[0].key
    return replace(schema, key_tables=(KeyTable(key, key, schema.others[0].key),))


def values_in_memory(trained: Trained) -> dict[str, Array]:
    return {item.key: item.variable.numpy() for item in model_variables(trained.model)}


def expect_rows(trained: Trained, schema: Schema, rows: int) -> dict[str, Fingerprint]:
    values, (growing,) = values_in_memory(trained), schema.growing
    values[growing] = values[growing][:rows]
    return {spec.key: fingerprint(spec, [values[spec.key]]) for spec in schema.variables}


def test_only_the_rows_in_use_are_compared(trained: Trained, trained_export: Path) -> None:
    schema = growing_schema(trained_export)
    expected = expect_rows(trained, schema, 5)
    verify_export(trained_export, schema, Expected(expected))
    verify_export(trained_export, schema, Expected(expect_rows(trained, schema, schema.tables[0].shape[0])))


def test_a_difference_in_the_rows_in_use_is_named(trained: Trained, trained_export: Path) -> None:
    schema = growing_schema(trained_export)
    table, values = schema.tables[0], values_in_memory(trained)
    rows = np.array(values[table.key][:5])
    rows[4, 0] += 1
    expected = {**expect_rows(trained, schema, 5), table.key: fingerprint(table, [rows])}
    with pytest.raises(ModelMismatchError, match=f"{table.key}: rows 0 to"):
        verify_export(trained_export, schema, Expected(expected))


def test_an_export_with_fewer_rows_than_are_in_use_is_refused(trained: Trained, trained_export: Path) -> None:
    schema = growing_schema(trained_export)
    table = schema.tables[0]
    values = values_in_memory(trained)[table.key]
    more = np.concatenate([values, values[:2]])
    expected = {**expect_rows(trained, schema, 5), table.key: fingerprint(table, [more])}
    with pytest.raises(ModelMismatchError, match=f"{len(values)} rows, and not {len(more)}"):
        verify_export(trained_export, schema, Expected(expected))
