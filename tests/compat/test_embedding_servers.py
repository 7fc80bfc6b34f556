"""Embedding variables in parts on a cluster of real processes: servers and the chief end by kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Kind
from loader.loader import Loader
from tests.compat.chain_states import manifests
from tests.compat.cluster_of_processes import ASKED, Cluster, cluster_in, step_of
from tests.forks import Forks
from tests.loader.step_model import serving, wait_for_position

pytestmark = [pytest.mark.I1, pytest.mark.I6]


@pytest.fixture
def cluster(tmp_path: Path, forks: Forks) -> Iterator[Cluster]:
    with cluster_in(tmp_path, forks, "keyed cluster") as cluster:
        yield cluster


Tasks = list[tuple[str, int]]


def test_a_server_and_the_chief_that_are_killed_come_back_with_what_was_served(cluster: Cluster) -> None:
    """The other worker lives on."""
    come_back(cluster, [[("ps", 0), ("worker", 0)]])


@pytest.mark.soak  # checks_of_embedding_servers.py has a chief that loses the servers, and one that is lost
def test_servers_and_a_chief_that_are_killed_one_after_the_other_come_back(cluster: Cluster) -> None:
    come_back(cluster, [[("ps", 0)], [("worker", 0)], [("ps", 1), ("ps", 0)]])


def come_back(cluster: Cluster, killed: list[Tasks]) -> None:
    """Those of each list are killed at once."""
    run_dir = cluster.run_dir
    cluster.start_all()
    cluster.wait_until(lambda: step_of(run_dir, 1) > 0 and len(manifests(run_dir, Kind.DELTA)) > 1)
    cluster.start("export", 0)
    with serving(run_dir.parent) as loader:
        for number, tasks in enumerate(killed, 1):
            wait_for_steps(cluster, 60)
            (run_dir / "hold").write_text(str(number))
            cluster.wait_until((run_dir / f"held-{number}").exists)
            for task in tasks:
                cluster.kill(*task)
            for task in tasks:
                cluster.start(*task)
            cluster.wait_until((run_dir / f"answers-{number}.npz").exists)
            assert cluster.wait_for("export", 0) == 0, cluster.logs()
            assert_served(loader, run_dir, number)
            (run_dir / "hold").unlink()
        wait_for_steps(cluster, 60)
        (run_dir / "stop").touch()
        assert [cluster.wait_for("worker", index) for index in (1, 0)] == [0, 0], cluster.logs()
        assert_served(loader, run_dir, len(killed) + 1)
    assert sum(record.rows_deleted for each in manifests(run_dir) for record in each.tables.values()) > 0


def wait_for_steps(cluster: Cluster, count: int) -> None:
    """Of both workers, with a commit."""
    run_dir = cluster.run_dir
    before, newest = [step_of(run_dir, index) for index in (0, 1)], manifests(run_dir)[-1].node
    cluster.wait_until(lambda: all(step_of(run_dir, index) > before[index] + count for index in (0, 1)))
    cluster.wait_until(lambda: manifests(run_dir)[-1].node != newest)


def assert_served(loader: Loader, run_dir: Path, number: int) -> None:
    """The newest commit, bit for bit what the cluster answers; and each key has one row."""
    newest = manifests(run_dir)[-1]
    wait_for_position(loader, newest.position)
    with np.load(run_dir / f"answers-{number}.npz") as answers:
        found = dict(answers)
    assert found["step"] == newest.step
    served, version = loader.predict("serving_default", {"ids": ASKED})
    assert version.position == newest.position
    np.testing.assert_array_equal(served["rows"].view(np.uint32), found["rows"].view(np.uint32))
    assert len(found["keys"]) == len(set(found["keys"])) > 100
    assert sum(record.keys_live or 0 for record in newest.tables.values()) == len(found["keys"])
