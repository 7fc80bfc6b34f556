"""A loop that trains a table with keys and saves when it is told: what the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.format import key_index
from hotdelta.chain.format.manifest import Kind, Manifest, TableRecord
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.verification import directory_of
from hotdelta.train import DeltaWriter, DynamicTable
from tests.chain_replay import values_of

BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None}
SLOT = "optimizer/accumulators/table/rows"
FIRST_SLOT = 0.1


class Module(tf.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = DynamicTable(2, max_rows=500, name="table", **options)


class Training:
    """A loop whose steps train the keys that they are given: d loss / d row = 1 for each occurrence."""

    def __init__(self, run_dir: Path, **options: Any) -> None:
        self.run_dir = run_dir
        self.module, self.optimizer = Module(**options), hk.Adagrad(0.5, initial_accumulator_value=FIRST_SLOT)
        self.rows = self.module.table.rows
        self.optimizer.build([self.rows])
        self.writer = DeltaWriter(
            run_dir, self.module, optimizer=self.optimizer, scrub_saves=1, keep_fulls=100, **BY_HAND
        )

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(keys: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.module.table.look_up(keys, training=True))
            self.optimizer.apply([tape.gradient(loss, self.rows)], [self.rows])

        self._step = step

    def train(self, keys: Iterable[int], *, event_time: float | None = None) -> None:
        with self.writer.training_step(event_time=event_time):
            self._step(tf.constant(list(keys), tf.int64))

    def save(self) -> TableRecord:
        self.writer.save()
        return self.newest().tables["table/rows"]

    def newest(self) -> Manifest:
        manifests = Scanner(self.run_dir).scan().manifests
        return max(manifests, key=lambda found: (found.position, found.kind is Kind.DELTA))

    @property
    def keys(self) -> list[int]:
        return [int(key) for key in self.module.table.items()[0]]

    def by_key(self, name: str) -> dict[int, Any]:
        """The row of each key in a variable."""
        variable = self.variables[name]
        values = values_of({"rows": variable, "index": self.variables["table/index"]})
        rows = np.frombuffer(values["rows"], variable.dtype.as_numpy_dtype).reshape(-1, variable.shape[1])
        index = np.frombuffer(values["index"], np.int64).reshape(-1, key_index.BUCKET_COLUMNS)
        return {int(key): rows[row] for key, row in zip(*key_index.items_of(index), strict=True)}

    @property
    def variables(self) -> dict[str, tf.Variable]:
        variables = self.writer._trainer.trackers.variables
        return {item.key: item.variable for item in variables.everything()}

    def close(self) -> None:
        assert self.writer.status.rows_unrecorded == 0
        self.writer.close()


def deleted_by(run_dir: Path, manifest: Manifest) -> list[int]:
    reader = tf.train.load_checkpoint(str(directory_of(run_dir, manifest.kind) / manifest.prefix))
    return [int(key) for key in reader.get_tensor("table/rows-deleted")]
