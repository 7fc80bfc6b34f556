"""`hotdelta diff`: what it counts is what numpy finds between the values of two positions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import Position
from hotdelta.chain.format import names
from hotdelta.chain.history.state import find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.cli.rows import differences
from tests.chain.key_table_chain import ROWS, KeyTableChain
from tests.chain.table_chain import BIAS, SLOT, TABLE, TableChain
from tests.cli.conftest import Run
from tests.golden.golden_chains import golden_chain

BIAS_VALUE, NO_BIAS = BIAS + names.VALUE_SUFFIX, np.zeros((0, 2), np.float32)


def reader_at(run_dir: Path, position: str) -> StateReader:
    state = find_state(run_dir, position=Position.parse(position))
    assert state is not None
    return StateReader(state)


@pytest.mark.parametrize("slice_bytes", [16, 16_000_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_rows_that_differ_are_counted_and_the_largest_changes_named(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, dtype: str, slice_bytes: int
) -> None:
    monkeypatch.setattr(differences, "_SLICE_BYTES", slice_bytes)
    chain = TableChain(tmp_path / "run", dtype=dtype)
    chain.delta([1, 2, 30])
    before = {key: value.copy() for key, value in chain.values.items()}
    chain.delta([2, 5])
    chain.delta([5, 39], bias=2.5)

    document = run("diff", chain.run_dir, "1.2", "1.4", "--top", 2, "--json").document

    assert document["deltas"] == 2
    tables = {table["key"]: table for table in document["tables"]}
    assert set(tables) == {TABLE, SLOT}
    assert (tables[TABLE]["rows"], tables[TABLE]["rows_changed"]) == (40, 3)
    old, new = before[TABLE], chain.values[TABLE]
    if dtype == "bfloat16":
        old, new = ((rows.astype(np.uint32) << 16).view(np.float32) for rows in (old, new))
    distances = np.linalg.norm(new.astype(np.float64) - old.astype(np.float64), axis=1)
    wanted = [int(row) for row in np.argsort(-distances)[:2]]
    assert [change["row"] for change in tables[TABLE]["largest"]] == wanted
    assert tables[TABLE]["largest"][0]["distance"] == pytest.approx(distances.max())
    (bias,) = document["variables"]
    assert (bias["key"], bias["is_changed"]) == ("bias", True)
    assert bias["distance"] == pytest.approx(2.5 * 2**0.5)


def test_values_are_compared_by_their_bits(tmp_path: Path, run: Run) -> None:
    """NaN is the same as itself, zero is not minus zero, and what has no distance is the largest change."""
    chain = TableChain(tmp_path / "run")
    rows = chain.values[TABLE][[1, 2, 3]].copy()
    rows[0, 0], rows[1, 0] = np.nan, 0.0

    def write(new: Any) -> None:
        ids = {TABLE + names.IDS_SUFFIX: np.array([1, 2, 3])}
        chain.link({**ids, **{key + names.ROWS_SUFFIX: new for key in (TABLE, SLOT)}, BIAS_VALUE: NO_BIAS})

    write(rows)
    write(rows)
    assert run("diff", chain.run_dir, "1.2", "1.3", "--json").document["tables"][0]["rows_changed"] == 0
    rows[1, 0] = -0.0
    write(rows)
    (table, _) = run("diff", chain.run_dir, "1.3", "1.4", "--all", "--json").document["tables"]
    assert (table["rows_changed"], table["largest"][0]["row"], table["largest"][0]["distance"]) == (1, 2, 0.0)
    rows[2, 1] = np.nan
    write(rows)
    (table, _) = run("diff", chain.run_dir, "1.3", "1.5", "--json").document["tables"]
    assert [change["row"] for change in table["largest"]] == [3, 2]
    assert table["largest"][0]["distance"] is None


@pytest.mark.parametrize("name", ["forked", "keras", "keyed", "tf1_servers", "tf2_servers"])
def test_any_two_positions_of_a_chain_differ_by_what_their_values_say(
    tmp_path: Path, run: Run, name: str
) -> None:
    run_dir = golden_chain(name).copy_to(tmp_path)
    commits = [commit["position"] for commit in run("log", run_dir, "--json").document["commits"]]
    for first, second in itertools.product(commits[:3], commits):
        document = run("diff", run_dir, first, second, "--json").document
        old, new = reader_at(run_dir, first), reader_at(run_dir, second)
        assert document["tables"]
        for table in document["tables"]:
            before, after = old.value(table["key"]), new.value(table["key"])
            shared = min(len(before), len(after))
            differs = before[:shared].reshape(shared, -1) != after[:shared].reshape(shared, -1)
            assert table["rows_changed"] == differs.any(axis=1).sum()
            assert table["rows_new"] - table["rows_gone"] == len(after) - len(before)
        for variable in document["variables"]:
            key = variable["key"]
            assert variable["is_changed"] == (old.value(key) != new.value(key)).any()


def test_keys_that_came_and_went_are_named(keys: KeyTableChain, run: Run) -> None:
    (table,) = run("diff", keys.run_dir, "1.2", "1.4", "--json").document["tables"]

    assert table["key"] == ROWS
    assert (table["keys"], table["keys_come"], table["keys_gone"]) == (33, list(range(9, 41)), [7])
    assert (table["rows_changed"], table["rows_new"]) == (1, 32)
    assert [change["key"] for change in table["largest"]] == [8]
    said = run("diff", keys.run_dir, "1.2", "1.4")
    assert "users/rows: keys gone: 7" in said.lines
    assert "1.4 follows 1.2 by 2 deltas" in said.lines
    (back,) = run("diff", keys.run_dir, "1.4", "1.2", "--json").document["tables"]
    assert (back["keys_come"], back["keys_gone"], back["rows_gone"]) == ([7], list(range(9, 41)), 32)


def test_what_is_abandoned_can_be_compared_with_what_took_its_place(forked: Path, run: Run) -> None:
    said = run("diff", forked, "1.4", "2.2")
    assert said.code == 0
    assert "2.2 does not follow 1.4 by deltas" in said.lines


def test_without_a_second_position_the_newest_is_meant(forked: Path, run: Run) -> None:
    assert run("diff", forked, "1.1", "--json").document["to"]["position"] == "2.2"


def test_slots_are_compared_when_they_are_asked_for(forked: Path, run: Run) -> None:
    served = run("diff", forked, "1.1", "--json").document["tables"]
    everything = run("diff", forked, "1.1", "--all", "--json").document["tables"]
    assert not [table for table in served if table["key"].startswith("optimizer/")]
    assert [table for table in everything if table["key"].startswith("optimizer/")]


def test_one_table_may_be_named_by_what_it_begins_with(keyed: Path, run: Run) -> None:
    for name in ("users", "users/rows"):
        document = run("diff", keyed, "1.1", "--table", name, "--json").document
        assert [table["key"] for table in document["tables"]] == ["users/rows"]
        assert document["variables"] == []
    assert [t["key"] for t in run("diff", keyed, "1.1", "--table", "items", "--json").document["tables"]] == [
        "items"
    ]


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("7.7",), "holds no position 7.7"),
        (("1.1", "9.1"), "holds no position 9.1"),
        (("1.1", "--table", "user"), "there is no table 'user'. the tables are items, users/rows"),
    ],
)
def test_what_is_not_there_is_named(keyed: Path, run: Run, arguments: tuple[str, ...], problem: str) -> None:
    done = run("diff", keyed, *arguments)
    assert (done.code, done.out) == (2, "")
    assert problem in done.err


def test_damage_is_named_and_nothing_is_compared(tmp_path: Path, run: Run) -> None:
    chain = TableChain(tmp_path / "run")
    chain.path(chain.delta([1]), names.ROLE_SERVING).write_bytes(b"")
    done = run("diff", chain.run_dir, "1.1", "1.2")
    assert (done.code, done.out) == (1, "")
    assert "data-00000-of-00002 of 1.2 has 0 bytes" in done.err
