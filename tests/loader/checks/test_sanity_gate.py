"""The gate with its memory: which updates are compared with earlier ones, and in what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotdelta.chain import Kind, Manifest, Node, Position, Schema, TableRecord, Tracking, VariableSpec
from hotdelta.errors import SanityError
from hotdelta.sanity_limits import SanityLimits
from loader import SanitySettings
from loader.checks.sanity import judge_shares
from loader.checks.sanity_gate import SanityGate
from loader.checks.sanity_statistics import KnownUpdates
from tests.loader.follow.test_short_plans import manifest_of

pytestmark = pytest.mark.I4

ROWS = 1000


def schema_of(dtype: str) -> Schema:
    return Schema((VariableSpec("table", (ROWS, 2), dtype, is_table=True),), {}, {})


def node_at(seq: int) -> Node:
    return Node(Position(1, seq), f"{seq:032x}")


class Updates:
    """Deltas of one table, given to a gate as the loader does."""

    def __init__(self, dtype: str = "float32", known: KnownUpdates | None = None) -> None:
        self._schema = schema_of(dtype)
        self._dtype = np.dtype(dtype)
        self.gate = SanityGate(SanitySettings(min_updates=3), known)

    def take(
        self,
        seq: int,
        *,
        rows: int = 1,
        change: float = 1.0,
        after: int | None = None,
        to: float | None = None,
    ) -> None:
        """One that leads on from the position before, or from `after`. Raises SanityError."""
        old = np.zeros((rows, 2), self._dtype)
        new = (old + change).astype(self._dtype)
        if to is not None:
            old, new = np.full_like(old, to - change), np.full_like(old, to)
        update = {"table-rows": new}
        before = {"table-rows": old}
        manifest = replace(self.manifest(seq, rows), parent=None if after is None else node_at(after))
        accepted = self.gate.check_delta(manifest, self._schema, update, before)
        self.gate.accept(accepted)

    def manifest(self, seq: int, rows: int = 1) -> Manifest:
        node = node_at(seq)
        record = TableRecord((ROWS, 2), self._dtype.name, Tracking.TOUCHED, rows)
        return replace(manifest_of(Kind.DELTA, node, None), tables={"table": record})


def test_what_was_accepted_is_accepted_again_whatever_came_after_it() -> None:
    updates = Updates()
    updates.take(1, change=1e5)
    for seq in range(2, 300):
        updates.take(seq)
    updates.take(1, change=1e5)
    with pytest.raises(SanityError, match="the largest change of a row"):
        updates.take(300, change=1e5)


def test_what_was_refused_is_judged_again_also_after_a_restart() -> None:
    updates = Updates()
    for seq in range(1, 5):
        updates.take(seq)
    with pytest.raises(SanityError):
        updates.take(5, change=1e5)
    updates.take(6)
    restarted = Updates(known=updates.gate.statistics.known())
    for again in (updates, restarted):
        with pytest.raises(SanityError, match="times the usual"):
            again.take(5, change=1e5)
        again.gate.release(again.manifest(5).node)
        again.take(5, change=1e5)
        assert again.gate.statistics.until == Position(1, 6)


def test_absolute_limits_hold_for_what_was_accepted_before_too() -> None:
    updates = Updates()
    updates.take(5)
    with pytest.raises(SanityError, match="larger than"):
        updates.take(4, change=1e7)


def test_shares_of_a_table_of_whole_numbers_are_compared_too() -> None:
    updates = Updates("int8")
    for seq in range(1, 4):
        updates.take(seq)
    with pytest.raises(SanityError, match="rows are touched, more than 100 times the usual"):
        updates.take(4, rows=ROWS)


def test_what_was_released_becomes_usual() -> None:
    updates = Updates()
    for seq in range(1, 4):
        updates.take(seq)
    with pytest.raises(SanityError):
        updates.take(4, change=1e5)
    updates.gate.release(updates.manifest(4).node)
    updates.take(4, change=1e5)
    updates.take(5, change=1e5)


def test_a_delta_over_many_positions_may_do_as_much_as_so_many_deltas() -> None:
    """Deltas that a trainer folded into one, and what it saves after commits that failed."""
    updates = Updates("int8")
    for seq in range(1, 4):
        updates.take(seq)
    with pytest.raises(SanityError, match="rows are touched"):
        updates.take(4, rows=ROWS)
    updates.take(13, rows=ROWS, after=3)
    updates = Updates()
    for seq in range(1, 4):
        updates.take(seq)
    with pytest.raises(SanityError, match="change of a row"):
        updates.take(4, after=3, change=120.0, to=60.0)
    updates.take(14, after=4, change=120.0, to=60.0)
    with pytest.raises(SanityError, match="change of a row"):
        updates.take(15, after=14, change=120.0, to=60.0)


@pytest.mark.parametrize("positions,is_taken", [(1, False), (2, True)])
def test_it_may_delete_as_many_keys_as_so_many_deltas(positions: int, is_taken: bool) -> None:
    record = TableRecord(
        (ROWS, 2), "float32", Tracking.TOUCHED, 1, rows_deleted=75, keys_live=25, keys_new=0, rows_in_use=101
    )
    assert (judge_shares(record, SanityLimits(), positions=positions) == "") == is_taken
