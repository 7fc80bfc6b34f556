"""The values of an export that holds the rows in use of a table, of more that it reserves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.errors import ApplyError
from hotdelta.export_metadata import ExportMetadata
from loader import SanitySettings
from loader.exports.values import find_bad_values, measure_values
from tests.chain.key_table_chain import BIAS, ROWS, SCHEMA, Array, TrainedTable

pytestmark = [pytest.mark.I4, pytest.mark.optimized]

METADATA = ExportMetadata("model", SCHEMA, True, {}, None, 0)


class Exported(tf.Module):
    """The variables of an export, in the order of the schema."""

    def __init__(self, values: dict[str, Array]) -> None:
        super().__init__()
        self.hotdelta_variables = [tf.Variable(values[spec.key]) for spec in SCHEMA.variables]


def save(path: Path, **changed: Array) -> Path:
    table = TrainedTable()
    table.train(range(50), 3.0)
    tf.saved_model.save(Exported({**table.values, **changed}), str(path))
    return path


def test_the_rows_in_use_are_measured(tmp_path: Path) -> None:
    figures = measure_values(save(tmp_path), METADATA)
    assert figures.keys() == {ROWS, BIAS}
    assert (figures[ROWS].max_abs, figures[ROWS].max_norm) == (3.0, 6.0)
    assert find_bad_values(figures, METADATA, SanitySettings()) == ""


def test_a_bad_value_in_the_last_row_is_found(tmp_path: Path) -> None:
    rows = np.ones((51, 4), np.float32)
    rows[50, 3] = np.nan
    figures = measure_values(save(tmp_path, **{ROWS: rows}), METADATA)
    assert find_bad_values(figures, METADATA, SanitySettings()) == f"{ROWS!r}: NaN or infinite in 1 value"


@pytest.mark.parametrize("shape", [(2001, 4), (51, 5), (0, 4)])
def test_rows_that_the_table_cannot_have_are_refused(tmp_path: Path, shape: tuple[int, int]) -> None:
    with pytest.raises(ApplyError, match="and the model reserves"):
        measure_values(save(tmp_path, **{ROWS: np.ones(shape, np.float32)}), METADATA)
