"""Tables that are named like the slots of others, and their training by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from hotdelta.train.loop import DeltaWriter
from tests.chain_replay import Values, values_of

KEYS = ["items", "momentum/items", "momentum/momentum/items"]
NAMES = ["momentum", "second/momentum"]


class Tables:
    """Three tables with two slots each, trained by hand in rows of their own."""

    def __init__(self, run_dir: Path, *, seed: int, tables: list[str] = KEYS) -> None:
        self._random = np.random.default_rng(seed)
        self.model = {key: self._variable() for key in KEYS}
        self.slots = {key: {name: self._variable() for name in NAMES} for key in KEYS}
        self.writer = DeltaWriter(
            run_dir,
            self.model,
            tables=tables,
            slots=self.slots,
            tracking=dict.fromkeys(tables, "touched"),
            save_secs=None,
            save_incremental_secs=None,
        )

    def _variable(self) -> tf.Variable:
        return tf.Variable(self._random.random((9, 2), np.float32))

    def train(self) -> None:
        """As many rows of each table, so that not even their number tells whose they are."""
        for first, key in enumerate(KEYS):
            ids = np.array([first, first + 3])
            for variable in (self.model[key], *self.slots[key].values()):
                rows = self._random.random((2, 2), np.float32)
                tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)
            self.writer.touch(key, ids)
        self.writer.step()
        self.writer.save()

    def values(self) -> Values:
        slots = {f"slots/{name}/{key}": self.slots[key][name] for key in KEYS for name in NAMES}
        return values_of(self.model | slots)
