"""Parameter servers read their rows themselves when training resumes: what was verified, or they are sent."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotdelta.chain.format.manifest import Tracking
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.state_pieces import StoredRows
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.train.model.assembly import assemble
from hotdelta.train.model.optimizer_slots import KeyedVariable, SlotVariable
from hotdelta.train.resume import server_reading as server_resume
from hotdelta.train.resume.loading import load_variables
from hotdelta.train.tables.row_values import read_whole
from tests.chain_replay import Values
from tests.distributed.cluster import Cluster
from tests.distributed.test_server_saves import IDS, ROWS, ShardedTraining, sharded

SLOT = "slots/momentum/table"
READ, SENT = "parameter servers read their rows", "rows are sent"


def write_chain(run_dir: Path, deltas: list[list[int]]) -> Values:
    training = ShardedTraining(run_dir, Tracking.TOUCHED)
    for ids in deltas:
        training.write(ids)
        training.save()
    training.trainer.close()
    return {key: value for key, value in training.values().items() if key != "other"}


@dataclass(frozen=True)
class RowsElsewhere(StoredRows):
    """Rows that servers look for at `path`, while the coordinator reads them in `verified`."""

    verified: Path

    def read(self) -> bytes:
        return StoredRows(self.verified, self.file_bytes, self.offset, self.size, self.ids).read()


class SeenElsewhere(StateReader):
    """The state of a run directory for servers that see another directory in its place."""

    def __init__(self, state: ChainState, run_dir: Path, seen_by_servers: Path) -> None:
        super().__init__(state)
        self._run_dir = run_dir
        self._seen_by_servers = seen_by_servers

    def stored_rows(self, key: str, *, owner: str = "") -> Iterator[StoredRows]:
        for rows in super().stored_rows(key, owner=owner):
            seen = self._seen_by_servers / rows.path.relative_to(self._run_dir)
            yield RowsElsewhere(seen, rows.file_bytes, rows.offset, rows.size, rows.ids, rows.path)


def load(run_dir: Path, first_rows: tuple[int, ...], seen_by_servers: Path | None = None) -> Values:
    """The table and its slot after a resume with these shards; servers see another directory, if one is given."""
    zeros = np.zeros((ROWS, 2), np.float32)
    table, slot = sharded(zeros, first_rows), sharded(zeros, first_rows)
    keyed = [KeyedVariable("table", table)]
    variables = assemble(keyed, table_keys={"table"}, slots=[SlotVariable(SLOT, slot, table)])
    state = find_state(run_dir)
    assert state is not None
    reader = SeenElsewhere(state, run_dir, seen_by_servers) if seen_by_servers else StateReader(state)
    load_variables(reader, variables, on_servers=frozenset({"table"}))
    return {"table": read_whole(table).tobytes(), SLOT: read_whole(slot).tobytes()}


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    deltas=st.lists(IDS, max_size=3),
    first_rows=st.lists(st.integers(1, ROWS - 1), max_size=3, unique=True).map(sorted),
    read_bytes=st.sampled_from([1, 24, server_resume.READ_BYTES]),
)
def test_every_server_reads_its_rows_bit_for_bit_whatever_the_shards(
    deltas: list[list[int]], first_rows: list[int], read_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_resume, "READ_BYTES", read_bytes)
        expected = write_chain(Path(name), deltas)
        with caplog.at_level(logging.INFO, "hotdelta"):
            assert load(Path(name), tuple(first_rows)) == expected
    assert READ in caplog.text
    assert SENT not in caplog.text


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage, reason",
    [
        (flip_a_byte, "reads something else"),
        (Path.unlink, "No such file or directory"),
        (lambda path: path.write_bytes(path.read_bytes() + b"more"), "not an exact multiple"),
    ],
)
@pytest.mark.parametrize("stem", ["model.ckpt", ".incremental_checkpoint/incremental_model.ckpt"])
def test_rows_are_sent_when_a_server_does_not_read_what_was_verified(
    stem: str, damage: object, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = write_chain(tmp_path / "run", [[1, 5, 10], [5]])
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    for path in list((tmp_path / "other").glob(f"{stem}-*.data-*")):
        damage(path)  # type: ignore[operator]
    assert load(tmp_path / "run", (4, 5), tmp_path / "other") == expected
    (warning,) = [record.getMessage() for record in caplog.records if SENT in record.getMessage()]
    assert reason in warning


def test_real_servers_read_their_rows_also_when_there_are_others(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_servers(ps=2, workers=1)
    coordinator = cluster.coordinate(tmp_path)
    coordinator.wait_for("step", 4)
    coordinator.stop()
    cluster.start_servers(ps=3, workers=1)
    coordinator = cluster.coordinate(tmp_path)
    assert coordinator.wait_for("resumed") >= 40
    said = [line for line in coordinator.log().splitlines() if "hotdelta" in line]
    assert any(f"{READ} variables=2" in line for line in said), said
    assert not any(SENT in line for line in said), said
