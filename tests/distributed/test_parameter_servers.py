from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.history.scan import Scanner
from tests.distributed.chains import assert_chain_holds, assert_served, committed, serving
from tests.distributed.cluster import Cluster
from tests.distributed.cluster_model import ROWS
from tests.waiting import wait_until

pytestmark = pytest.mark.I6


def deltas(run_dir: Path) -> list[int]:
    """Changed rows of the table in each delta."""
    manifests = Scanner(run_dir).scan().manifests
    return [found.rows_changed for found in manifests if found.kind is Kind.DELTA]


@pytest.mark.parametrize("tracking", Tracking)
def test_sharded_table_is_one_table_with_exact_deltas(
    tracking: Tracking, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start_servers(ps=2, workers=2)
    coordinator = cluster.coordinate(tmp_path, tracking=tracking)
    coordinator.wait_for("step", 8)
    assert_chain_holds(tmp_path, coordinator.stop())
    newest = Scanner(tmp_path).scan().manifests[-1]
    assert newest.tables["table"].shape == (ROWS, 4)
    assert newest.tables["table"].tracking is tracking
    assert 0 < min(rows for rows in deltas(tmp_path) if rows) < ROWS


@pytest.mark.parametrize("update, expected", [("adagrad", Tracking.TOUCHED), ("every row", Tracking.CHANGED)])
def test_row_wise_optimizer_records_what_workers_write_to_shards(
    update: str, expected: Tracking, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start_servers(ps=2, workers=2)
    coordinator = cluster.coordinate(tmp_path, tracking="", update=update)
    coordinator.wait_for("step", 6)
    assert_chain_holds(tmp_path, coordinator.stop())
    # Schedules and bias correction count by it. Keras reads, adds and writes, and workers lose each other's steps.
    assert coordinator.said("counted") == coordinator.said("step")[-1:]
    assert Scanner(tmp_path).scan().manifests[-1].tables["table"].tracking is expected


def test_killed_tasks_lose_nothing_that_was_committed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_servers(ps=2, workers=2)
    coordinator = cluster.coordinate(tmp_path / "run")
    coordinator.wait_for("step", 4)
    with serving(tmp_path / "run", tmp_path / "export") as loader:
        cluster.kill("worker", 1)
        coordinator.wait_for("step", len(coordinator.said("step")) + 4)
        cluster.start_server("worker", 1)
        coordinator.wait_for("step", len(coordinator.said("step")) + 4)

        wait_until(lambda: committed(tmp_path / "run")[-1].step >= 40, "commits")
        cluster.kill("ps", 1)
        coordinator.wait_for_end()
        assert coordinator.said("saved") == []
        assert "restart the parameter server and the coordinator" in coordinator.log()

        cluster.start_servers(ps=3, workers=1)  # rows are found by id, whatever server holds them
        coordinator = cluster.coordinate(tmp_path / "run")
        assert coordinator.wait_for("resumed") >= 40
        assert coordinator.wait_for("scheduled") == coordinator.said("resumed")[-1]
        coordinator.wait_for("step", 3)
        trained = coordinator.stop()
        assert_chain_holds(tmp_path / "run", trained)
        assert_served(loader, tmp_path / "run", trained)
