"""Keys that a delta deletes: unknown with its commit, known again when it is taken back, judged as what they are.

And keys that wait until they were seen often enough: unknown until the commit that gives them a row.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import Position
from hotdelta.sanity_limits import SanitySettings
from hotdelta.train import DynamicTable, SeenTimes, SeenTimesInFilter
from hotdelta.train.loop import DeltaWriter
from loader import Loader
from tests.loader.step_model import BY_HAND, SIGNATURE, export, serving, wait_for_position, wait_for_status

ALL_KEYS = np.arange(200)
UNKNOWN = [-7.0, -7.0]


class Ranker(tf.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.users = DynamicTable(2, max_rows=1_000, default=UNKNOWN, name="users", **options)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="users")])
    def serve(self, users: Any) -> dict[str, Any]:
        return {"vector": self.users.look_up(users)}


class Training:
    """A row is the number of the delta that wrote it."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.ranker = Ranker(**options)
        signatures = {SIGNATURE: self.ranker.serve}
        self.writer = DeltaWriter(root / "run", self.ranker, signatures=signatures, **BY_HAND)
        self.deltas = 0

    def commit(self, train: Any, remove: Any = (), *, scale: float = 1.0) -> Position:
        self.deltas += 1
        users = self.ranker.users
        if len(remove):
            users.remove(remove)
        users.look_up(train, training=True)
        rows = users.rows_of(train)
        rows = rows[rows > 0]
        values = tf.fill([len(rows), 2], scale * self.deltas)
        tf.raw_ops.ResourceScatterUpdate(resource=users.rows.handle, indices=rows, updates=values)
        self.writer.touch("users/rows", rows.numpy())
        self.writer.step()
        position = self.writer.save()
        assert position is not None
        return position

    def vectors(self) -> bytes:
        return bytes(self.ranker.serve(ALL_KEYS)["vector"].numpy().tobytes())


def vectors(loader: Loader) -> bytes:
    return bytes(loader.predict(SIGNATURE, {"users": ALL_KEYS})[0]["vector"].tobytes())


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    training = Training(tmp_path)
    training.commit([1, 2, 3, 4])
    export(tmp_path / "run", tmp_path / "export")
    yield training
    training.writer.close()


@pytest.mark.I1
def test_a_rollback_over_many_deltas_brings_back_exactly_what_was(training: Training, tmp_path: Path) -> None:
    """Each delta deletes a key, brings one back and deals rows that others had."""
    with serving(tmp_path) as loader:
        served = {}
        for number in range(36):
            remove = [number, 1 + number % 4]
            position = training.commit([number + 5, number + 6, 1 + (number + 2) % 4], remove)
            wait_for_position(loader, position)
            served[position] = vectors(loader)
            assert served[position] == training.vectors()
        assert training.ranker.users.counts.numpy()[0] < 20
        positions = sorted(served)
        for target in (positions[-2], positions[-30], positions[3]):
            assert loader.rollback(target).position == target
            assert vectors(loader) == served[target]
        loader.resume()
        wait_for_position(loader, positions[-1])
        assert vectors(loader) == served[positions[-1]]


def test_a_deleted_key_is_unknown_and_counted_as_such(training: Training, tmp_path: Path) -> None:
    def ask(loader: Loader) -> tuple[list[float], int]:
        vector = loader.predict(SIGNATURE, {"users": [1]})[0]["vector"]
        (rows,) = (table for table in loader.status().tables if table.key == "users/rows")
        return vector[0].tolist(), rows.unknown_keys or 0

    with serving(tmp_path) as loader:
        wait_for_position(loader, training.commit([2]))
        assert ask(loader) == ([1.0, 1.0], 0)
        wait_for_position(loader, training.commit([2], remove=[1]))
        assert ask(loader) == (UNKNOWN, 1)
        wait_for_position(loader, training.commit([1]))
        assert ask(loader) == ([4.0, 4.0], 1)


@pytest.mark.I4
def test_a_delta_that_deletes_too_many_is_quarantined(training: Training, tmp_path: Path) -> None:
    with serving(tmp_path) as loader:
        wait_for_position(loader, training.commit([5, 6], remove=[1, 2]))
        before = vectors(loader)
        training.commit([7], remove=[3, 4, 5])
        status = wait_for_status(loader, lambda status: bool(status.quarantined), "it is quarantined")
        (refused,) = status.quarantined
        assert "75.0% of its keys are deleted, more than 50.0%" in refused.reason
        assert vectors(loader) == before


@pytest.mark.I4
def test_a_damaged_count_of_keys_is_judged_anew_when_it_is_put_right(
    training: Training, tmp_path: Path
) -> None:
    wanted = training.commit([7], remove=[1])
    manifest = max((tmp_path / "run").glob(".incremental_checkpoint/*.manifest.json"))
    good = json.loads(manifest.read_text())
    bad = copy.deepcopy(good)
    bad["tables"]["users/rows"]["keys_live"] = 1
    manifest.write_text(json.dumps(bad))
    with serving(tmp_path) as loader:
        wait_for_status(loader, lambda status: bool(status.quarantined), "it is quarantined")
        manifest.write_text(json.dumps(good))
        wait_for_position(loader, wanted)
        wait_for_status(loader, lambda status: not status.quarantined, "it is free again")


@pytest.mark.I4
def test_the_row_of_another_key_is_no_change(training: Training, tmp_path: Path) -> None:
    """A row of 1 becomes one of 1,000 for another key: a new row. For the same key it is a change beyond all others."""
    sanity = SanitySettings(min_updates=2)
    with serving(tmp_path, sanity=sanity) as loader:
        for number in range(6):
            wait_for_position(loader, training.commit([2, 3, 50 + number], remove=[49 + number]))
        in_use = training.ranker.users.counts.numpy()[0]
        wait_for_position(loader, training.commit([90], remove=[55], scale=10.0))
        assert training.ranker.users.counts.numpy()[0] == in_use
        training.commit([2], scale=1e6)
        wait_for_status(loader, lambda status: bool(status.quarantined), "it is quarantined")


@pytest.mark.I1
@pytest.mark.parametrize("admission", [SeenTimes(3), SeenTimesInFilter(3, keys=1_000)])
def test_a_key_that_waits_is_unknown_until_the_commit_that_gives_it_a_row(
    tmp_path: Path, admission: Any
) -> None:
    """What is counted until then is in the commits, and neither the export nor the server has it."""
    training = Training(tmp_path, admission=admission)
    training.commit([1, 1, 1, 2])
    export(tmp_path / "run", tmp_path / "export")
    with serving(tmp_path) as loader:
        for train, known in (([2], [1]), ([2, 3, 3], [1, 2]), ([3], [1, 2, 3])):
            wait_for_position(loader, training.commit(train))
            found = loader.predict(SIGNATURE, {"users": ALL_KEYS})[0]["vector"]
            assert found.tobytes() == training.vectors()
            assert np.flatnonzero((found != UNKNOWN).any(axis=1)).tolist() == known
        assert [table.key for table in loader.status().tables] == ["users/index", "users/rows"]
    training.writer.close()
