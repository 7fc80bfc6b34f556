"""A restore or stage signature that refuses what it is given has changed nothing at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.exporter.bad_updates import BAD_DELTAS, BAD_FULLS, Damage
from tests.exporter.bundles import (
    SECOND,
    THIRD,
    USERS,
    delta_tensors,
    fed,
    full_tensors,
    write_bundle,
)
from tests.exporter.runtimes import Runtime

pytestmark = [pytest.mark.I4, pytest.mark.optimized]


@pytest.mark.parametrize("signature", ["restore_incremental", "stage_incremental"])
@pytest.mark.parametrize("damage", BAD_DELTAS.values(), ids=BAD_DELTAS.keys())
def test_a_bad_delta_changes_nothing_at_all(
    runtime: Runtime, tmp_path: Path, damage: Damage, signature: str
) -> None:
    tensors = delta_tensors()
    damage(tensors)
    bad = write_bundle(tmp_path / "bad", tensors)
    before = runtime.state()
    with pytest.raises(tf.errors.OpError):
        runtime.call(signature, prefix=[bad])
    assert runtime.state() == before
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing is staged"):
        runtime.call("apply_staged")


@pytest.mark.parametrize("damage", BAD_FULLS.values(), ids=BAD_FULLS.keys())
def test_a_bad_full_changes_nothing_at_all(runtime: Runtime, tmp_path: Path, damage: Damage) -> None:
    tensors = full_tensors(seed=5)
    damage(tensors)
    before = runtime.state()
    with pytest.raises(tf.errors.OpError):
        runtime.call("restore_full", prefix=[write_bundle(tmp_path / "bad", tensors)])
    assert runtime.state() == before


def test_different_prefixes_in_one_call_change_nothing(runtime: Runtime, full: str, delta: str) -> None:
    before = runtime.state()
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be equal"):
        runtime.call("restore_incremental", prefix=[delta, full])
    with pytest.raises(tf.errors.OpError):
        runtime.call("restore_incremental", prefix=np.array([], object))
    assert runtime.state() == before


def test_the_same_delta_is_not_applied_twice(runtime: Runtime, delta: str) -> None:
    runtime.call("restore_incremental", prefix=[delta])
    before = runtime.state()
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not follow"):
        runtime.call("restore_incremental", prefix=[delta])
    assert runtime.state() == before


def test_a_staged_update_whose_parent_is_no_longer_live_is_not_applied(
    runtime: Runtime, full: str, delta: str, tmp_path: Path
) -> None:
    runtime.call("restore_incremental", prefix=[delta])
    third = write_bundle(tmp_path / "third", delta_tensors(THIRD, SECOND, seed=3))
    runtime.call("stage_incremental", prefix=[third])
    runtime.call("restore_full", prefix=[full])
    before = runtime.state()
    with pytest.raises(tf.errors.InvalidArgumentError):
        runtime.call("apply_staged")
    assert runtime.state() == before


@pytest.mark.parametrize(
    "name",
    [
        "parent_of_another_state",
        "id_beyond_the_second_table",
        "negative_id",
        "duplicate_id",
        "more_rows_than_ids",
        "more_ids_than_rows",
        "two_values",
    ],
)
def test_bad_fed_rows_are_not_staged(runtime: Runtime, name: str) -> None:
    tensors = delta_tensors()
    BAD_DELTAS[name](tensors)
    before = runtime.state()
    with pytest.raises(tf.errors.InvalidArgumentError):
        runtime.call("stage_rows", **fed(tensors))
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing is staged"):
        runtime.call("apply_staged")
    assert runtime.state() == before


def test_ids_outside_a_table_raise_when_predicting(runtime: Runtime) -> None:
    for user in (USERS, -1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            runtime.call("serving_default", user=[user], item=[0])
