"""What the exported graph itself asserts before its first write, and what gets through without the asserts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from exporter.signatures import update_tensors
from hotdelta.chain import Node, encode_identity
from hotdelta.errors import ApplyError
from loader import Checks
from loader.files.delta_in_memory import DeltaFiles
from loader.model.live_model import LiveModel
from tests.chaos.conftest import Prepared, hide_after
from tests.chaos.hostile import publish, rewrite
from tests.chaos.rig import BEFORE, NEXT, Rig
from tests.chaos.spoiled_delta import ROWS, Spoil, gets_through, is_kept_out, served_after
from tests.loader.step_model import ROWS as TABLE_ROWS
from tests.loader.step_model import SIGNATURE, export, find_commit

pytestmark = pytest.mark.I4


@pytest.fixture(scope="module")
def exported_without_asserts(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of BEFORE as an exporter would write it that asserts neither row ids nor parents."""
    root = tmp_path_factory.mktemp("without_asserts")
    shutil.copytree(prepared[0] / "run", root / "run")
    hide_after(root, BEFORE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_tensors, "_ids_assert", lambda *_: tf.no_op())
        patch.setattr(update_tensors, "parent_asserts", lambda *_: [])
        export(root / "run", root / "export")
    return root / "export"


@pytest.fixture
def without_asserts(until_next: Prepared, exported_without_asserts: Path) -> Prepared:
    root, states = until_next
    shutil.rmtree(root / "export")
    shutil.copytree(exported_without_asserts, root / "export")
    return root, states


def no_gate(*_: object) -> None:
    return


def spoil_ids(ids: list[int]) -> Spoil:
    def spoil(ready: Rig) -> None:
        bad = np.array(ids, np.int64)
        publish(ready.run_dir, rewrite(ready.run_dir, ready.commit(NEXT), users__ids=bad, users__rows=ROWS))

    return spoil


@pytest.mark.parametrize(
    "ids", [[2, 9, 64], [2, 9, -1], [2, 9, 9], [2, 9, 2**40]], ids=["above", "below", "twice", "far above"]
)
def test_row_ids(until_next: Prepared, ids: list[int]) -> None:
    assert "ids must be strictly increasing" in is_kept_out(until_next, spoil_ids(ids))


def test_without_the_assert_a_row_is_written_twice(without_asserts: Prepared) -> None:
    outcome = gets_through(without_asserts, spoil_ids([2, 9, 9]))
    assert (outcome.outputs["users"][9] == ROWS[0]).all()


@pytest.mark.parametrize("bad_id", [64, -1, 2**40])
def test_without_the_assert_rows_out_of_range_leave_an_update_half_applied(
    without_asserts: Prepared, bad_id: int
) -> None:
    """The loader would still notice when it looks for the pre-image: TensorFlow does not gather such rows."""
    run_dir = without_asserts[0] / "run"
    bad = rewrite(run_dir, find_commit(run_dir, NEXT), users__ids=np.array([2, 9, bad_id]), users__rows=ROWS)
    model = LiveModel.load(without_asserts[0] / "export" / "1")
    try:
        with DeltaFiles(run_dir, bad) as delta:
            model.stage_rows(delta.update(model.metadata.schema))
        with pytest.raises(ApplyError, match="is not in"):
            model.apply()
        assert (users_of(model)[[2, 9]] == ROWS[:2]).all()
    finally:
        model.close()


def users_of(model: LiveModel) -> Any:
    return model.predict(SIGNATURE, {"ids": np.arange(TABLE_ROWS)})["users"]


def spoil_parent(ready: Rig) -> None:
    """A manifest whose delta follows a state that was never live."""
    other = replace(ready.commit(BEFORE).node, state_id="0" * 32)
    publish(ready.run_dir, replace(ready.commit(NEXT), parent=other))


def test_lineage(until_next: Prepared) -> None:
    outcome = served_after(until_next, spoil_parent)
    outcome.require_before()


def spoil_origin(ready: Rig) -> None:
    """The manifest says that the delta follows what is live; its files were made from another state."""
    manifest = ready.commit(NEXT)
    other = Node(BEFORE, "0" * 32)
    identity = np.array(encode_identity(manifest.node, other), np.int64)
    changed = {"hotdelta__identity": identity, "users__rows": ROWS}
    publish(ready.run_dir, rewrite(ready.run_dir, manifest, **changed))


def test_the_parent_that_the_files_name(until_next: Prepared) -> None:
    assert "its files say that they follow" in is_kept_out(until_next, spoil_origin)


def test_without_the_layout_gate_the_graph_refuses_another_parent(until_next: Prepared) -> None:
    reason = is_kept_out(until_next, spoil_origin, Checks(layout=no_gate))
    assert "does not follow the live state" in reason


def test_without_gate_and_assert_the_delta_of_another_state_is_served(without_asserts: Prepared) -> None:
    outcome = gets_through(without_asserts, spoil_origin, Checks(layout=no_gate))
    assert (outcome.outputs["users"][9] == ROWS[0]).all()
