"""What the command says of tables that reserve more rows than they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.cli import main
from tests.chain.key_table_chain import KeyTableChain
from tests.chain.table_chain import TableChain


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    chain = KeyTableChain(tmp_path)
    chain.delta(range(20), 1.0)
    chain.delta(range(15, 25), 2.0)
    return tmp_path


@pytest.mark.parametrize("command", ["chain", "verify"])
def test_the_rows_in_use_at_the_newest_position_are_told(
    run_dir: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(run_dir)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "users/rows: 26 of 2,000 rows in use" in said
    assert any(line.startswith("users/index: ") and line.endswith(" of 500 rows in use") for line in said)


def test_a_full_counts_the_rows_in_use(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["chain", str(run_dir)])
    (full,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("full "))
    assert full[4] == "2"


def test_a_growing_table_is_described_with_its_rows_and_its_reserve(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", str(run_dir)]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["users/rows"][2:] == ["table", "26x4", "of", "2000", "float32", f"{26 * 4 * 4}"]
    assert lines["bias"][2:] == ["2", "float32", "8"]


def test_slots_are_described_with_the_rows_of_their_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = TableChain(tmp_path, rows=3, reserved_rows=100)
    chain.delta([1], new=4)
    assert main(["describe", str(tmp_path)]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["table"][2:6] == ["table", "7x3", "of", "100"]
    assert lines["table/momentum"][1:3] == ["persistable", "7x3"]
