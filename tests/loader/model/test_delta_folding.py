"""Deltas that are taken as one lead to the same rows, and each is measured as if it came alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotdelta import signatures as contract
from hotdelta.chain import Kind, Manifest, Node, Position, Schema, TableRecord, Tracking, VariableSpec
from hotdelta.chain.format.position import encode_identity
from hotdelta.errors import SanityError
from loader import SanitySettings
from loader.checks.sanity_figures import StackedRows, chunked, measure, measure_each
from loader.checks.sanity_gate import SanityGate
from loader.files.fed_update import Array, FedUpdate
from loader.model.delta_folding import FoldedDeltas, is_plain
from tests.loader.follow.test_short_plans import manifest_of

pytestmark = pytest.mark.I4

ROWS = 6
SCHEMA = Schema(
    (
        VariableSpec("table", (ROWS, 2), "float32", is_table=True),
        VariableSpec("bias", (3,), "float32", is_table=False),
    ),
    {},
    {},
)
VALUES = st.floats(width=32, allow_nan=True, allow_infinity=True)
DELTAS = st.lists(
    st.tuples(st.sets(st.integers(0, ROWS - 1)), st.booleans(), st.lists(VALUES, min_size=15, max_size=15)),
    min_size=1,
    max_size=6,
)


def node_of(seq: int) -> Node:
    return Node(Position(1, seq), f"{seq:032x}")


def manifest_at(seq: int, rows: int) -> Manifest:
    record = TableRecord((ROWS, 2), "float32", Tracking.TOUCHED, rows)
    made = manifest_of(Kind.DELTA, node_of(seq), node_of(seq - 1))
    return replace(made, tables={"table": record}, step=seq)


def update_of(manifest: Manifest, ids: set[int], has_bias: bool, values: list[float]) -> FedUpdate:
    found = np.array(values, np.float32)
    return {
        "table-ids": np.array(sorted(ids), np.int64),
        "table-rows": found[:12].reshape(ROWS, 2)[: len(ids)],
        "bias-value": found[None, 12:] if has_bias else np.empty((0, 3), np.float32),
        contract.IDENTITY_VALUE: np.array(encode_identity(manifest.node, manifest.parent), np.int64),
        contract.STEP_VALUE: np.array(manifest.step, np.int64),
    }


@given(deltas=DELTAS)
def test_folded_deltas_are_the_deltas_one_after_the_other(
    deltas: list[tuple[set[int], bool, list[float]]],
) -> None:
    manifests = [manifest_at(2 + at, len(delta[0])) for at, delta in enumerate(deltas)]
    updates = [update_of(manifest, *delta) for manifest, delta in zip(manifests, deltas, strict=True)]
    table: Array = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
    bias: Array = np.ones(3, np.float32)

    assert all(is_plain(update, m, SCHEMA) for m, update in zip(manifests, updates, strict=True))
    folded = FoldedDeltas(manifests, updates, SCHEMA)
    ids, count = folded.update["table-ids"], len(folded.update["bias-value"])
    stacked = folded.stacked({"table-rows": table[ids], "bias-value": bias[None][:count]}, [], [])

    old_rows, old_values = [], []
    at_once = table.copy()
    at_once[ids] = folded.update["table-rows"]
    for update in updates:
        old_rows.append(table[update["table-ids"]])
        table[update["table-ids"]] = update["table-rows"]
        if len(update["bias-value"]):
            old_values.append(bias[None])
            bias = update["bias-value"][0]
    assert (np.diff(ids) > 0).all()
    assert at_once.tobytes() == table.tobytes()
    assert stacked["table"].old.tobytes() == np.concatenate(old_rows).tobytes()
    assert b"".join(map(np.ndarray.tobytes, old_values)) == stacked["bias"].old.tobytes()
    if count:
        assert folded.update["bias-value"][0].tobytes() == bias.tobytes()
    identity = folded.update[contract.IDENTITY_VALUE].tolist()
    assert identity == encode_identity(manifests[-1].node, manifests[0].parent)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"table-ids": np.array([3, 3])},
        {"table-ids": np.array([4, 3])},
        {"table-ids": np.array([-1, 3])},
        {"table-ids": np.array([0, ROWS])},
        {"table-ids": np.array([1])},
        {"table-ids": np.array([1, 2], np.int32)},
        {"table-rows": np.zeros((2, 3), np.float32)},
        {"table-rows": np.zeros((2, 2))},
        {"bias-value": np.zeros((2, 3), np.float32)},
        {"bias-value": np.zeros((1, 4), np.float32)},
        {contract.STEP_VALUE: np.array(3)},
        {contract.IDENTITY_VALUE: np.array(encode_identity(node_of(2), node_of(9)), np.int64)},
    ],
)
def test_what_the_graph_would_refuse_is_not_folded(spoiled: FedUpdate) -> None:
    manifest = manifest_at(2, 2)
    update = update_of(manifest, {1, 2}, True, [1.0] * 15)
    assert is_plain(update, manifest, SCHEMA)
    assert not is_plain({**update, **spoiled}, manifest, SCHEMA)


@given(deltas=DELTAS)
def test_each_is_measured_as_if_it_came_alone(deltas: list[tuple[set[int], bool, list[float]]]) -> None:
    parts = [np.array(values[:12], np.float32).reshape(ROWS, 2)[: len(ids)] for ids, _, values in deltas]
    new = np.concatenate(parts)
    old = np.roll(new, 1)
    counts = [len(part) for part in parts]
    each = measure_each(StackedRows(new, old, counts))
    ends = np.cumsum(counts)
    alone = [measure(chunked(new[e - c : e], old[e - c : e])) for e, c in zip(ends, counts, strict=True)]
    for one, other in zip(each, alone, strict=True):
        assert one.nonfinite == other.nonfinite
        np.testing.assert_allclose(
            [one.max_abs, one.max_norm, one.max_change],
            [other.max_abs, other.max_norm, other.max_change],
            rtol=1e-5,
        )


def test_deltas_are_judged_by_those_before_them_and_the_bad_one_is_left_to_be_told() -> None:
    """As `check_delta` would: its change is no outlier of what was known before, only of the ones beside it."""
    settings = SanitySettings(min_updates=3)
    changes = [1.0, 1.0, 1.0, 1.0, 1e5, 1.0]
    manifests = [manifest_at(2 + at, 1) for at in range(len(changes))]
    old = np.zeros((len(changes), 2), np.float32)
    rows = {
        "table": StackedRows(
            np.repeat(np.array(changes, np.float32), 2).reshape(-1, 2), old, [1] * len(changes)
        ),
        "bias": StackedRows(np.empty((0, 3), np.float32), np.empty((0, 3), np.float32), [0] * len(changes)),
    }
    together, alone = SanityGate(settings), SanityGate(settings)

    accepted = together.check_deltas(manifests, SCHEMA, rows)

    assert together.statistics.known() == SanityGate(settings).statistics.known()
    for manifest, change in zip(manifests[:4], changes, strict=False):
        update = {"table-rows": np.full((1, 2), change, np.float32), "bias-value": old[:0]}
        alone.accept(alone.check_delta(manifest, SCHEMA, update, {"table-rows": old[:1]}))
    for each in accepted:
        together.accept(each)
    assert len(accepted) == 4
    assert together.statistics.known() == alone.statistics.known()
    bad = {"table-rows": np.full((1, 2), 1e5, np.float32), "bias-value": old[:0]}
    with pytest.raises(SanityError, match="times the usual"):
        together.check_delta(manifests[4], SCHEMA, bad, {"table-rows": old[:1]})
