"""Values that go from the chain into an export in slices: what lies on disk then, and how little memory it took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint

from exporter import export_saved_model
from exporter.fingerprint import CHUNK_BYTES, fingerprint
from exporter.proof import MAX_RESTORED_DELTAS, expect
from exporter.sources import source_of
from exporter.value_files import SLICE_BYTES, fingerprint_values
from hotdelta.chain.format.schema import VariableSpec
from hotdelta.errors import CommitError, DamagedError
from hotdelta.train import DeltaWriter
from tests.exporter.trained_run import Trained, schema_of, values_of
from tests.full_disk import small_files_only

COLUMNS = 64
BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None, "scrub_saves": 0}


class Rows(tf.Module):
    """A table of random bits, some of which are NaN, and two variables that are no tables."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._random = np.random.default_rng(rows)
        self.table = tf.Variable(self._values(rows), name="table")
        self.bias = tf.Variable(tf.zeros([COLUMNS]), name="bias")
        self.scale = tf.Variable(2.0, name="scale")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"sum": tf.reduce_sum(tf.gather(self.table, ids) * self.scale + self.bias, axis=1)}

    def write_chain(self, run_dir: Path, deltas: int) -> None:
        with DeltaWriter(
            run_dir,
            self,
            tables=["table"],
            tracking={"table": "touched"},
            signatures={"serving_default": self.serve},
            **BY_HAND,
        ) as writer:
            for number in range(deltas):
                rows = self.table.shape[0]
                # The last row of all, and of the first slice, and the first of the next.
                ids = np.unique([*self._random.integers(0, rows, 50), rows - 1, *self._edge(rows)])
                tf.raw_ops.ResourceScatterUpdate(
                    resource=self.table.handle, indices=ids, updates=self._values(len(ids))
                )
                self.bias.assign(tf.fill([COLUMNS], float(number)))
                writer.touch("table", ids)
                writer.step()
                writer.save()

    def _edge(self, rows: int) -> list[int]:
        edge = SLICE_BYTES // (COLUMNS * 4)
        return [edge - 1, edge] if rows > edge else []

    def _values(self, rows: int) -> np.ndarray:
        return self._random.integers(0, 2**32, (rows, COLUMNS), np.uint32).view(np.float32)

    def values(self) -> dict[str, bytes]:
        return {key: getattr(self, key).numpy().tobytes() for key in ("bias", "scale", "table")}


def test_a_table_of_several_slices_is_exported_bit_for_bit(tmp_path: Path) -> None:
    rows = Rows(2 * SLICE_BYTES // (COLUMNS * 4) + 5)
    rows.write_chain(tmp_path / "run", deltas=3)
    path = export_saved_model(tmp_path / "run", tmp_path / "export", save_incr_model=True)
    assert values_of(path) == rows.values()


def test_what_is_written_is_a_bundle_that_tensorflow_reads(trained: Trained, trained_export: Path) -> None:
    prefix = trained_export / "variables" / "variables"
    assert sorted(path.name for path in prefix.parent.iterdir()) == [
        "variables.data-00000-of-00002",
        "variables.data-00001-of-00002",
        "variables.index",
    ]
    reader = tf.train.load_checkpoint(str(prefix))
    values = trained.values(trained.newest.position, schema_of(trained_export))
    for index, spec in enumerate(schema_of(trained_export).variables):
        stored = reader.get_tensor(f"hotdelta_variables/{index}/.ATTRIBUTES/VARIABLE_VALUE")
        assert stored.tobytes() == values[spec.key]
    shapes = reader.get_variable_to_shape_map()
    assert not [
        name for name, shape in shapes.items() if name.startswith("hotdelta_variables") and 0 in shape
    ]


def test_the_fingerprint_beside_an_export_is_the_one_that_tensorflow_computes(trained_export: Path) -> None:
    path = trained_export / "fingerprint.pb"
    written = tf.saved_model.experimental.read_fingerprint(str(trained_export))
    before = path.read_bytes()
    write_fingerprint(str(trained_export))
    computed = tf.saved_model.experimental.read_fingerprint(str(trained_export))
    path.write_bytes(before)
    assert written.checkpoint_hash == computed.checkpoint_hash
    assert written.singleprint() == computed.singleprint()


def test_of_a_long_chain_the_first_deltas_are_restored_and_all_are_exported(tmp_path: Path) -> None:
    rows = Rows(100)
    rows.write_chain(tmp_path / "run", deltas=MAX_RESTORED_DELTAS + 3)
    path = export_saved_model(tmp_path / "run", tmp_path / "export", save_incr_model=True)
    assert values_of(path) == rows.values()
    source = source_of(tmp_path / "run")
    assert source.state is not None
    saved = fingerprint_values(source.schema, source.state)
    expected = expect(source.schema, saved, source.state, is_incremental=True)
    assert expected.state is not None
    assert expected.state.deltas == source.state.deltas[:MAX_RESTORED_DELTAS]
    assert expected.restored()["table"] != saved["table"]
    assert expected.restored()["scale"] == saved["scale"]
    assert expected.restored() is expected.restored(), "the chain was read twice"


def test_nobody_reads_a_chain_again_for_an_export_that_is_not_proved(tmp_path: Path) -> None:
    rows = Rows(100)
    rows.write_chain(tmp_path / "run", deltas=MAX_RESTORED_DELTAS + 1)
    source = source_of(tmp_path / "run")
    assert source.state is not None
    saved = fingerprint_values(source.schema, source.state)
    for path in (tmp_path / "run").rglob("*.index"):
        path.unlink()
    expected = expect(source.schema, saved, source.state, is_incremental=True)
    with pytest.raises(DamagedError):
        expected.restored()


def test_a_full_disk_is_a_commit_error_with_a_hint_and_publishes_nothing(
    trained: Trained, tmp_path: Path
) -> None:
    with small_files_only(), pytest.raises(CommitError, match=r"nothing was published|free space"):
        export_saved_model(trained.run_dir, tmp_path / "export")
    assert [path.name for path in (tmp_path / "export").iterdir()] == [".exporter.lock"]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 24), max_size=4))
def test_a_fingerprint_does_not_depend_on_the_slices(lengths: list[int]) -> None:
    row_bytes = CHUNK_BYTES // 16
    rows = sum(lengths)
    values = np.repeat(np.arange(rows, dtype=np.uint8), row_bytes).reshape(rows, row_bytes)
    spec = VariableSpec("table", values.shape, "uint8", is_table=True)
    slices = np.split(values, np.cumsum(lengths))
    assert fingerprint(spec, slices) == fingerprint(spec, [values])
    assert len(fingerprint(spec, slices).digests) == -(-rows // 16)


def measure_growth(directory: Path, rows: int) -> float:
    """How much more memory a large export took than a small one in the same process, in sizes of the table."""
    peaks = []
    for name in ("small", "large"):
        export_saved_model(directory / name, directory / f"{name}-export", save_incr_model=True)
        # Not ru_maxrss: it begins with the memory of the process that started this one.
        status = Path("/proc/self/status").read_text()
        peaks.append(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
    return (peaks[1] - peaks[0]) / (rows * COLUMNS * 4)


@pytest.mark.soak  # benchmarks.export measures it, too
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells of the peak")
def test_an_export_takes_the_memory_of_its_tables_once(tmp_path: Path) -> None:
    rows = 1_200_000
    Rows(100).write_chain(tmp_path / "small", deltas=2)
    Rows(rows).write_chain(tmp_path / "large", deltas=2)
    program = (
        "import sys, pathlib; from tests.exporter.test_value_files import measure_growth; "
        "print(measure_growth(pathlib.Path(sys.argv[1]), int(sys.argv[2])))"
    )
    # In a process of its own: this one held the table already.
    command = [sys.executable, "-c", program, str(tmp_path), str(rows)]
    growth = float(subprocess.check_output(command, text=True).splitlines()[-1])
    assert growth <= 1.3
