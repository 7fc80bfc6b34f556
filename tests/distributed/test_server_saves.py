"""Rows that stay where they are until they are written: what servers do, with this process as the server."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from hotdelta.chain.bundle.part_patch import PatchedPart
from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import CommitError
from hotdelta.train.model.assembly import assemble
from hotdelta.train.model.optimizer_slots import KeyedVariable, SlotVariable
from hotdelta.train.save import server_parts
from hotdelta.train.save.chain_trainer import ChainTrainer
from hotdelta.train.save.full_save import FullState
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import SaveEvery
from hotdelta.train.tables.sharded import ShardedTouchedRows, shards_of
from tests.chain_replay import Values, replay

pytestmark = pytest.mark.I1

BY_HAND = WriterOptions(full=SaveEvery(), delta=SaveEvery(), keep_fulls=1000)
SETTINGS = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
ROWS = 11


def sharded(values: np.ndarray, first_rows: tuple[int, ...]) -> ShardedVariable:
    return ShardedVariable([tf.Variable(part) for part in np.split(values, first_rows)])


class ShardedTraining:
    """A table in three shards, its slot in the same, and one other variable, of which 'servers' write the rows."""

    def __init__(self, run_dir: Path, mode: Tracking) -> None:
        self.run_dir = run_dir
        self._random = np.random.default_rng(0)
        self.variables = {
            key: sharded(self._random.random((ROWS, 2), np.float32), (4, 5))
            for key in ("table", "slots/momentum/table")
        }
        table, slot = self.variables.values()
        self.other = tf.Variable(0.0)
        self.touched = ShardedTouchedRows(table, name="table") if mode is Tracking.TOUCHED else None
        self.trainer = ChainTrainer(run_dir, options=BY_HAND)
        self.trainer.start(
            assemble(
                [KeyedVariable("table", table), KeyedVariable("other", self.other)],
                table_keys={"table"},
                slots=[SlotVariable("slots/momentum/table", slot, table)],
            ),
            touched={"table": self.touched} if self.touched else {},
            on_servers=frozenset({"table"}),
        )
        self.saved: dict[Position, Values] = {}
        self.remember()

    def write(self, ids: list[int]) -> None:
        self.put({key: (ids, self._random.random((len(ids), 2), np.float32)) for key in self.variables})

    def write_and_take_back(self, ids: list[int], do: Any) -> None:
        """What `do` sees is not there any more at the next save."""
        before = {
            key: (ids, np.frombuffer(self.values()[key], np.float32).reshape(-1, 2)[ids])
            for key in self.variables
        }
        self.write(ids)
        do()
        self.put(before)

    def put(self, rows: dict[str, tuple[list[int], np.ndarray]]) -> None:
        for key, (ids, values) in rows.items():
            for shard in shards_of(self.variables[key]):
                for place, row in zip(ids, values, strict=True):
                    if 0 <= place - shard.first < shard.rows:
                        tf.raw_ops.ResourceScatterUpdate(
                            resource=shard.variable.handle, indices=[place - shard.first], updates=[row]
                        )
            if self.touched is not None:
                self.touched.record(tf.constant(ids, tf.int64))
        self.other.assign_add(1.0)

    def begin_full(self) -> None:
        """The rows are copied when this returns; the next save closes it."""
        if self.trainer._pipeline.full_state is FullState.NONE:
            self.trainer.start_full()
        self.trainer._pipeline.wait_for_full()

    def save(self) -> None:
        self.trainer.save()
        self.trainer._pipeline.wait_for_full()
        self.remember()

    def remember(self) -> None:
        assert self.trainer.position is not None
        self.saved[self.trainer.position] = self.values()

    def values(self) -> Values:
        found = {
            key: np.concatenate([part.numpy() for part in v.variables]) for key, v in self.variables.items()
        }
        return {
            **{key: value.tobytes() for key, value in found.items()},
            "other": self.other.numpy().tobytes(),
        }

    def check(self) -> None:
        """Every position, from the full at it when there is one, and through all links."""
        fulls = [
            found.position for found in Scanner(self.run_dir).scan().manifests if found.kind is Kind.FULL
        ]
        for position, values in self.saved.items():
            assert replay(self.run_dir, position, values) == values
            assert replay(self.run_dir, position, values, full=min(fulls)) == values


IDS = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=6, unique=True).map(sorted)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), IDS),
        st.tuples(st.just("blur"), IDS),
        st.tuples(st.sampled_from(["save", "full"]), st.just([])),
    ),
    min_size=3,
    max_size=14,
)


@pytest.mark.parametrize("mode", Tracking)
@SETTINGS
@given(actions=ACTIONS)
def test_what_servers_write_is_exact_at_every_position(
    mode: Tracking, actions: list[tuple[str, list[int]]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        training = ShardedTraining(Path(directory), mode)
        for action, ids in actions:
            if action == "write":
                training.write(ids)
            elif action == "blur":
                training.write_and_take_back(ids, training.begin_full)
            else:
                training.begin_full() if action == "full" else training.save()
        training.save()
        training.check()
        training.trainer.close()


@pytest.mark.parametrize("mode", Tracking)
def test_rows_that_servers_have_written_are_not_written_again(mode: Tracking, tmp_path: Path) -> None:
    training = ShardedTraining(tmp_path, mode)
    for ids in ([1, 4, 9], [2]):
        training.write(ids)
        training.save()
    rows = [found.rows_changed for found in Scanner(tmp_path).scan().manifests if found.kind is Kind.DELTA]
    assert sorted(rows) == [1, 3]
    training.trainer.close()


def test_rows_of_a_server_are_written_in_parts_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_parts, "PART_BYTES", 40)
    training = ShardedTraining(tmp_path, Tracking.TOUCHED)
    training.write([1, 5, 9])
    training.begin_full()
    training.save()
    training.check()
    files = [found.files for found in Scanner(tmp_path).scan().manifests if found.kind is Kind.FULL]
    assert {len(found) for found in files} == {7}, "an index, two of our own, two parts for each role"
    training.trainer.close()


def saved_part(directory: Path) -> np.ndarray:
    """As a server leaves it."""
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    tf.raw_ops.SaveV2(
        prefix=str(directory / ".tmp-part"),
        tensor_names=["b", "a"],
        shape_and_slices=["", ""],
        tensors=[rows + 100, rows],
    )
    return rows


@given(ids=st.lists(st.integers(0, 19), min_size=1, unique=True).map(sorted))
@SETTINGS
def test_patched_part_reads_as_what_was_written_over_it(ids: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        expected = saved_part(directory)
        expected[ids] = -1.0
        part = PatchedPart(directory, "part", disk=Disk())
        part.patch_rows("a", np.array(ids), expected[ids])
        prepared = part.finish("serving")
        found, other = tf.raw_ops.RestoreV2(
            prefix=str(directory / ".tmp-part"),
            tensor_names=["a", "b"],
            shape_and_slices=["", ""],
            dtypes=[tf.float32] * 2,
        )
        assert found.numpy().tobytes() == expected.tobytes()
        assert other.numpy().min() == 100.0
        with BundleReader(directory, ".tmp-part") as reader:
            reader.check("a")
        assert {file.role for file in prepared.files} == {"serving", "index"}


def test_part_that_is_not_there_or_takes_no_such_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommitError, match="a part cannot be used"):
        PatchedPart(tmp_path, "part", disk=Disk())
    saved_part(tmp_path)
    part = PatchedPart(tmp_path, "part", disk=Disk())
    with pytest.raises(ValueError, match="do not fit"):
        part.patch_rows("a", np.array([20]), np.zeros((1, 2), np.float32))
    part.close()
