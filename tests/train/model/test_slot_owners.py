"""Tables that are named like the slots of others: every slot gets its own rows back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.format import names
from hotdelta.train.loop import DeltaWriter
from hotdelta.train.save import delta_bundle

pytestmark = pytest.mark.I1

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

    def values(self) -> dict[str, Any]:
        slots = {f"slots/{name}/{key}": self.slots[key][name] for key in KEYS for name in NAMES}
        return {key: variable.numpy().tolist() for key, variable in (self.model | slots).items()}


@pytest.fixture
def trained(tmp_path: Path) -> Tables:
    trained = Tables(tmp_path, seed=1)
    trained.train()
    trained.train()
    trained.writer.close()
    return trained


def test_every_slot_is_resumed_under_the_ids_of_its_own_table(trained: Tables, tmp_path: Path) -> None:
    resumed = Tables(tmp_path, seed=2)
    resumed.writer.close()
    assert resumed.values() == trained.values()


def test_so_it_is_when_the_delta_has_the_ids_of_tables_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of earlier commits have."""
    monkeypatch.setattr(delta_bundle, "_finds_ids", lambda block, with_ids: block.shares_ids_of is not None)
    trained = Tables(tmp_path, seed=1)
    trained.train()
    trained.writer.close()
    resumed = Tables(tmp_path, seed=2)
    resumed.writer.close()
    assert resumed.values() == trained.values()


def test_what_is_no_table_any_more_has_its_slots_back_too(trained: Tables, tmp_path: Path) -> None:
    resumed = Tables(tmp_path, seed=2, tables=KEYS[1:])
    resumed.writer.close()
    assert resumed.values() == trained.values()


def test_every_slot_is_loaded_by_name_alone(trained: Tables, tmp_path: Path) -> None:
    loaded = {key: tf.Variable(tf.zeros((9, 2))) for key in trained.values()}
    hio.load_vars(loaded, tmp_path)
    assert {key: variable.numpy().tolist() for key, variable in loaded.items()} == trained.values()


def test_only_a_slot_that_could_be_of_another_table_has_ids_of_its_own(
    trained: Tables, tmp_path: Path
) -> None:
    (index, *_) = sorted((tmp_path / names.DELTA_DIRECTORY).glob("*.index"))
    with BundleReader(index.parent, index.stem) as reader:
        with_ids = {name.removesuffix(names.IDS_SUFFIX) for name in reader.entries if name.endswith("-ids")}
    assert with_ids == {*KEYS, "slots/second/momentum/items", "slots/second/momentum/momentum/items"}
