"""`hotdelta key`: the life of one key or row is what the deltas did to it, in their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Scanner
from hotdelta.chain.format import names
from hotdelta.cli.rows.stored_tables import id_of_row, row_of_id
from tests.chain.key_table_chain import KeyTableChain
from tests.chain.table_chain import TABLE, TableChain
from tests.cli.conftest import Run
from tests.golden.golden_chains import golden_chain


def events(run: Run, *arguments: object) -> list[tuple[str, str]]:
    document = run("key", *arguments, "--json").document
    return [(event["event"], event["position"]) for event in document["events"]]


def test_a_row_is_followed_through_the_deltas_that_have_it(tmp_path: Path, run: Run) -> None:
    chain = TableChain(tmp_path / "run")
    values = [chain.values[TABLE][3].copy()]
    for ids in ([1, 3], [4], [2, 3, 5]):
        chain.delta(ids)
        values.append(chain.values[TABLE][3].copy())
    document = run("key", chain.run_dir, TABLE, 3, "--json").document

    assert [(item["event"], item["position"]) for item in document["events"]] == [
        ("held", "1.1"),
        ("changed", "1.2"),
        ("changed", "1.4"),
    ]
    np.testing.assert_array_equal(
        [item["value"] for item in document["events"]], [values[0], values[1], values[3]]
    )
    assert document["events"][0]["distance"] is None
    assert document["events"][2]["distance"] == pytest.approx(np.linalg.norm(values[3] - values[1]), rel=1e-6)
    assert "table, key 3: in 2 of 3 deltas" in run("key", chain.run_dir, TABLE, 3).lines


def test_a_row_of_a_growing_table_comes_with_the_delta_that_dealt_it(tmp_path: Path, run: Run) -> None:
    chain = TableChain(tmp_path / "run", rows=5, reserved_rows=20)
    chain.delta([1], new=2)
    chain.close_with_full([6])
    assert events(run, chain.run_dir, TABLE, 6) == [("came", "1.2"), ("changed", "1.3")]


def test_a_life_begins_with_the_oldest_full_that_is_kept(tmp_path: Path, run: Run) -> None:
    chain = TableChain(tmp_path / "run")
    chain.delta([3])
    chain.close_with_full([3])
    chain.delta([3])
    assert events(run, chain.run_dir, TABLE, 3) == [
        ("held", "1.1"),
        ("changed", "1.2"),
        ("changed", "1.3"),
        ("changed", "1.4"),
    ]


def test_a_key_comes_changes_and_goes(keys: KeyTableChain, run: Run) -> None:
    """In 1.3 the index has more buckets, and keys lie in other ones: that is no event."""
    assert events(run, keys.run_dir, "users", 7) == [("came", "1.2"), ("gone", "1.4")]
    assert events(run, keys.run_dir, "users", 8) == [("came", "1.2"), ("changed", "1.3")]
    document = run("key", keys.run_dir, "users", 8, "--json").document
    assert [event["value"] for event in document["events"]] == [[1.0] * 4, [2.0] * 4]
    assert [event["distance"] for event in document["events"]] == [None, 2.0]


def test_a_text_is_found_by_the_key_that_training_gave_it(tmp_path: Path, run: Run) -> None:
    chain = golden_chain("keyed")
    run_dir = chain.copy_to(tmp_path)
    document = run("key", run_dir, "users", "user 14", "--json").document
    assert document["key"] == 5313413458681998535
    assert [(event["event"], event["row"]) for event in document["events"]] == [("came", 15), ("changed", 15)]


def test_a_number_is_a_key_unless_it_is_said_to_be_a_text(keyed: Path, run: Run) -> None:
    assert run("key", keyed, "users", "5313413458681998535").code == 0
    assert run("key", keyed, "users", "5313413458681998535", "--text").code == 1


def test_a_key_that_never_came_is_said_and_the_exit_code_says_so(keyed: Path, run: Run) -> None:
    done = run("key", keyed, "users", "nobody")
    assert (done.code, done.out) == (1, "")
    assert "never had the key nobody" in done.err
    assert run("key", keyed, "users", "nobody", "--json").document["events"] == []


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("items", "x"), "'x' is no row"),
        (("items", "10"), "there is no row 10. the table has rows 0 to 9"),
        (("people", "1"), "there is no table 'people'"),
    ],
)
def test_what_is_not_there_is_named(keyed: Path, run: Run, arguments: tuple[str, ...], problem: str) -> None:
    done = run("key", keyed, *arguments)
    assert (done.code, done.out) == (2, "")
    assert problem in done.err


def test_every_commit_is_verified_before_it_is_read(tmp_path: Path, run: Run) -> None:
    chain = TableChain(tmp_path / "run")
    path = chain.path(chain.delta([1]), names.ROLE_SERVING)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = run("key", chain.run_dir, TABLE, 1)
    assert (done.code, done.out) == (1, "")
    assert "does not have the digest" in done.err


def test_ids_of_a_table_in_parts_lie_where_tensorflow_puts_them(tmp_path: Path) -> None:
    run_dir = golden_chain("tf1_servers").copy_to(tmp_path)
    found = Scanner(run_dir).scan().manifests[-1].tables["table"]
    assert found.strategy == "mod"
    rows = [row_of_id(found, given) for given in range(found.shape[0])]
    assert sorted(rows) == list(range(found.shape[0]))
    parts = len(found.part_rows)
    for given, row in enumerate(rows):
        assert row == sum(found.part_rows[: given % parts]) + given // parts
        assert id_of_row(found, row) == given
