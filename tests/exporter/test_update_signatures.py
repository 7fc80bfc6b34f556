"""What the restore, stage and apply signatures do to the live variables, eagerly and in a Session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain.identity import decode_identity, encode_identity
from hotdelta.chain.position import Node
from tests.exporter.bundles import (
    FIRST,
    ITEMS,
    SECOND,
    THIRD,
    USERS,
    WIDTH,
    Array,
    after,
    delta_tensors,
    full_tensors,
    write_bundle,
)
from tests.exporter.runtimes import Runtime

Damage = Callable[[dict[str, Array]], None]


def _set(name: str, value: Any) -> Damage:
    def damage(tensors: dict[str, Array]) -> None:
        tensors[name] = value

    return damage


def _remove(name: str) -> Damage:
    def damage(tensors: dict[str, Array]) -> None:
        del tensors[name]

    return damage


_ROWS = np.zeros((2, WIDTH), np.float16)
BAD_DELTAS: dict[str, Damage] = {
    "parent_of_another_state": _set("hotdelta-identity", np.array(encode_identity(THIRD, SECOND), np.int64)),
    "parent_at_the_same_position_with_another_state_id": _set(
        "hotdelta-identity", np.array(encode_identity(SECOND, Node(FIRST.position, "ac" * 16)), np.int64)
    ),
    "id_beyond_the_second_table": _set("items-ids", np.array([7, ITEMS], np.int64)),
    "id_beyond_the_first_table": _set("users-ids", np.array([0, 3, USERS], np.int64)),
    "negative_id": _set("items-ids", np.array([-1, 29], np.int64)),
    "duplicate_id": _set("items-ids", np.array([7, 7], np.int64)),
    "ids_out_of_order": _set("items-ids", np.array([29, 7], np.int64)),
    "rows_of_another_width": _set("items-rows", np.zeros((2, WIDTH + 1), np.float16)),
    "rows_of_another_rank": _set("items-rows", np.zeros((2, WIDTH, 1), np.float16)),
    "rows_without_columns": _set("items-rows", np.zeros(2, np.float16)),
    "more_rows_than_ids": _set("items-rows", np.zeros((3, WIDTH), np.float16)),
    "more_ids_than_rows": _set("items-ids", np.array([7, 8, 29], np.int64)),
    "ids_of_another_rank": _set("items-ids", np.array([[7, 29]], np.int64)),
    "rows_of_another_dtype": _set("items-rows", np.zeros((2, WIDTH), np.float32)),
    "ids_of_another_dtype": _set("items-ids", np.array([7, 29], np.int32)),
    "value_of_another_shape": _set("kernel-value", np.zeros((1, WIDTH + 1), np.float32)),
    "value_of_another_shape_with_as_many_elements": _set(
        "kernel-value", np.zeros((1, 2, WIDTH // 2), np.float32)
    ),
    "value_without_leading_axis": _set("kernel-value", np.zeros(WIDTH, np.float32)),
    "two_values": _set("bias-value", np.zeros(2, np.float32)),
    "scalar_value": _set("bias-value", np.float32(1)),
    "short_identity": _set("hotdelta-identity", np.array(encode_identity(SECOND, FIRST)[:7], np.int64)),
    "long_identity": _set("hotdelta-identity", np.array([*encode_identity(SECOND, FIRST), 1], np.int64)),
    "step_with_an_axis": _set("hotdelta-step", np.array([101], np.int64)),
    "missing_rows": _remove("items-rows"),
    "missing_identity": _remove("hotdelta-identity"),
}
BAD_FULLS: dict[str, Damage] = {
    "table_of_another_width": _set("users", np.zeros((USERS, WIDTH + 1), np.float32)),
    "table_with_fewer_rows": _set("users", np.zeros((USERS - 1, WIDTH), np.float32)),
    "table_transposed": _set("users", np.zeros((WIDTH, USERS), np.float32)),
    "table_of_another_dtype": _set("users", np.zeros((USERS, WIDTH), np.float64)),
    "scalar_with_an_axis": _set("bias", np.zeros(1, np.float32)),
    "short_identity": _set("hotdelta-identity", np.zeros(4, np.int64)),
    "step_with_an_axis": _set("hotdelta-step", np.zeros(1, np.int64)),
    "missing_table": _remove("users"),
}


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


def test_answers_have_the_leading_axis_of_the_prefixes(runtime: Runtime, delta: str) -> None:
    answer = runtime.call("restore_incremental", prefix=[delta] * 3)
    assert {name: value.tolist() for name, value in answer.items()} == {
        "run": [1, 1, 1],
        "seq": [2, 2, 2],
        "step": [102, 102, 102],
        "rows": [5, 5, 5],
    }


def test_the_same_delta_is_not_applied_twice(runtime: Runtime, delta: str) -> None:
    runtime.call("restore_incremental", prefix=[delta])
    before = runtime.state()
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not follow"):
        runtime.call("restore_incremental", prefix=[delta])
    assert runtime.state() == before


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
    runtime.call("stage_rows", **_fed(delta_tensors()))
    runtime.call("apply_staged")
    state = runtime.state()
    expected = after(full_tensors(), delta_tensors())
    assert {key: state[key] for key in expected} == expected


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
        runtime.call("stage_rows", **_fed(tensors))
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing is staged"):
        runtime.call("apply_staged")
    assert runtime.state() == before


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


def test_ids_outside_a_table_raise_when_predicting(runtime: Runtime) -> None:
    for user in (USERS, -1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            runtime.call("serving_default", user=[user], item=[0])


def _fed(tensors: dict[str, Array]) -> dict[str, Array]:
    fed = {name: value for name, value in tensors.items() if not name.startswith("hotdelta-")}
    return fed | {"identity": tensors["hotdelta-identity"], "step": tensors["hotdelta-step"]}
