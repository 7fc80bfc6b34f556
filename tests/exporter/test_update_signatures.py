"""What the restore, stage and apply signatures do to the live variables, eagerly and in a Session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain.format.position import decode_identity
from tests.exporter.bundles import (
    FIRST,
    ITEMS,
    SECOND,
    USERS,
    WIDTH,
    after,
    delta_tensors,
    fed,
    full_tensors,
    write_bundle,
)
from tests.exporter.runtimes import Runtime

pytestmark = [pytest.mark.I8, pytest.mark.optimized]


def test_restore_full_sets_every_variable_bit_for_bit(runtime: Runtime, full: str) -> None:
    answer = runtime.call("restore_full", prefix=[full])
    state = runtime.state()
    assert {key: state[key] for key in after(full_tensors())} == after(full_tensors())
    assert (answer["run"], answer["seq"], answer["step"]) == (1, 1, 100)
    assert answer["rows"] == USERS + ITEMS


def test_restore_incremental_applies_rows_and_changed_values_only(runtime: Runtime, delta: str) -> None:
    answer = runtime.call("restore_incremental", prefix=[delta])
    state = runtime.state()
    expected = after(full_tensors(), delta_tensors())
    assert {key: state[key] for key in expected} == expected
    assert (answer["run"], answer["seq"], answer["step"], answer["rows"]) == (1, 2, 102, 5)
    live, parent = decode_identity(runtime.call("identity")["identity"])
    assert (live, parent) == (SECOND, FIRST)


def test_predictions_follow_a_restored_delta(runtime: Runtime, delta: str) -> None:
    before = runtime.call("serving_default", user=[3, 4], item=[7, 8])["score"]
    runtime.call("restore_incremental", prefix=[delta])
    values = after(full_tensors(), delta_tensors())
    users = np.frombuffer(values["users"], np.float32).reshape(USERS, WIDTH)
    items = np.frombuffer(values["items"], np.float16).reshape(ITEMS, WIDTH)
    kernel, bias = np.frombuffer(values["kernel"], np.float32), np.frombuffer(values["bias"], np.float32)
    expected = (users[[3, 4]] * items[[7, 8]].astype(np.float32)) @ kernel + bias
    found = runtime.call("serving_default", user=[3, 4], item=[7, 8])["score"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(found, before)


def test_answers_have_the_leading_axis_of_the_prefixes(runtime: Runtime, delta: str) -> None:
    answer = runtime.call("restore_incremental", prefix=[delta] * 3)
    assert {name: value.tolist() for name, value in answer.items()} == {
        "run": [1, 1, 1],
        "seq": [2, 2, 2],
        "step": [102, 102, 102],
        "rows": [5, 5, 5],
    }


def test_staging_touches_nothing_and_applying_equals_restore_incremental(
    runtime: Runtime, delta: str
) -> None:
    before = runtime.state()
    staged = runtime.call("stage_incremental", prefix=[delta])
    assert staged["rows"] == [5]
    assert runtime.state() == before
    applied = runtime.call("apply_staged")
    assert (applied["run"], applied["seq"], applied["step"], applied["rows"]) == (1, 2, 102, 5)
    state = runtime.state()
    expected = after(full_tensors(), delta_tensors())
    assert {key: state[key] for key in expected} == expected


def test_nothing_stays_staged_after_an_apply(runtime: Runtime, delta: str) -> None:
    runtime.call("stage_incremental", prefix=[delta])
    runtime.call("apply_staged")
    before = runtime.state()
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing is staged"):
        runtime.call("apply_staged")
    assert runtime.call("discard_staged")["rows"] == [0]
    assert runtime.state() == before


def test_a_discarded_update_is_not_applied(runtime: Runtime, delta: str) -> None:
    before = runtime.state()
    runtime.call("stage_incremental", prefix=[delta])
    assert runtime.call("discard_staged")["rows"] == [5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing is staged"):
        runtime.call("apply_staged")
    assert runtime.state() == before


def test_the_preimage_fed_back_undoes_the_update_bit_for_bit(runtime: Runtime, delta: str) -> None:
    before = runtime.state()
    runtime.call("stage_incremental", prefix=[delta])
    preimage = runtime.call("staged_preimage")
    assert preimage["users-ids"].tolist() == [0, 3, 19]
    assert preimage["kernel-value"].shape == (0, WIDTH)
    assert preimage["bias-value"].shape == (1,)
    runtime.call("apply_staged")
    assert runtime.state() != before
    runtime.call("stage_rows", **preimage)
    runtime.call("apply_staged")
    undone = runtime.state()
    assert {key: undone[key] for key in ("users", "items", "kernel", "bias", "step")} == {
        key: before[key] for key in ("users", "items", "kernel", "bias", "step")
    }
    assert decode_identity(runtime.call("identity")["identity"])[0] == FIRST


def test_an_undone_delta_can_be_applied_again(runtime: Runtime, delta: str) -> None:
    applied = []
    for _ in range(3):
        runtime.call("stage_incremental", prefix=[delta])
        preimage = runtime.call("staged_preimage")
        runtime.call("apply_staged")
        applied.append(runtime.state())
        runtime.call("stage_rows", **preimage)
        runtime.call("apply_staged")
    runtime.call("restore_incremental", prefix=[delta])
    assert [runtime.state()] * 3 == applied


def test_stage_rows_takes_what_a_delta_holds(runtime: Runtime) -> None:
    runtime.call("stage_rows", **fed(delta_tensors()))
    runtime.call("apply_staged")
    state = runtime.state()
    expected = after(full_tensors(), delta_tensors())
    assert {key: state[key] for key in expected} == expected


def test_an_empty_delta_only_moves_the_position(runtime: Runtime, tmp_path: Path) -> None:
    tensors = delta_tensors()
    for table, dtype in (("users", np.float32), ("items", np.float16)):
        tensors[f"{table}-ids"] = np.zeros(0, np.int64)
        tensors[f"{table}-rows"] = np.zeros((0, WIDTH), dtype)
    tensors["bias-value"] = np.zeros(0, np.float32)
    before = runtime.state()
    answer = runtime.call("restore_incremental", prefix=[write_bundle(tmp_path / "empty", tensors)])
    assert answer["rows"] == [0]
    state = runtime.state()
    assert state["identity"] != before["identity"]
    assert {key: state[key] for key in ("users", "items", "kernel", "bias")} == {
        key: before[key] for key in ("users", "items", "kernel", "bias")
    }
