"""A cluster of two parameter servers and two asynchronous workers: real processes, and kill -9."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import BundleReader, Kind, Manifest, directory_of
from hotdelta.chain.format.names import TRAINER_STATE_TENSOR
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.compat.cluster_of_processes import Cluster, step_of
from tests.end_to_end.processes import Server

pytestmark = pytest.mark.I6


@pytest.mark.soak  # checks_of_clusters.py and tests/distributed kill servers in every run
def test_a_killed_server_or_chief_comes_back_and_the_cluster_goes_on_from_the_last_commit(
    cluster: Cluster,
) -> None:
    run_dir = cluster.run_dir
    cluster.start_all()
    cluster.wait_until(lambda: len(manifests(run_dir)) > 1)
    cluster.start("export", 0)
    assert cluster.wait_for("export", 0) == 0, cluster.logs()
    server = Server(run_dir.parent / "export", run_dir, run_dir.parent / "server.log")
    try:
        cluster.wait_until(lambda: step_of(run_dir, 1) > 0 and len(manifests(run_dir, Kind.DELTA)) > 4)
        cluster.kill_in_next_write("ps", 0)
        before = manifests(run_dir)[-1]
        # Nobody trains while a delta is taken, so it has as many batches of the workers as it has steps. Before the
        # first full nobody can be told to stop: a worker that is quick trains, and its first batches once more.
        first, *deltas = [(sum(places_at(run_dir, each)), each.step) for each in manifests(run_dir)]
        assert first[0] <= first[1]
        assert [batches for batches, _ in deltas] == [step for _, step in deltas]
        cluster.start("ps", 0)
        wait_for_the_next_run(cluster, before)
        assert "delta not committed" in cluster.said("worker", 0)
        assert_goes_on(run_dir)
        cluster.wait_until(lambda: manifests(run_dir)[-1].step > before.step + 100)
        lost_step = step_of(run_dir, 1)
        cluster.wait_until(lambda: step_of(run_dir, 1) != lost_step)
        cluster.wait_until(lambda: any(run_dir.rglob(".tmp-*.part-*")), poll_seconds=0.0)
        before = manifests(run_dir)[-1]
        cluster.kill("ps", 1)
        cluster.start("ps", 1)
        wait_for_the_next_run(cluster, before)
        assert_goes_on(run_dir)
        cluster.kill("worker", 0)
        before = manifests(run_dir)[-1]
        cluster.start("worker", 0)
        wait_for_the_next_run(cluster, before)
        assert int((run_dir / "worker-0.resumed").read_text()) == places_at(run_dir, before)[0]
        (run_dir / "stop").touch()
        assert cluster.wait_for("worker", 1) == 0, cluster.logs()
        assert cluster.wait_for("worker", 0) == 0, cluster.logs()
        assert not list(run_dir.rglob(".tmp-*"))
        assert_replays(run_dir)
        assert_served(server, run_dir)
        assert "this trainer went back with it" in cluster.said("worker", 1)
        ends = [int((run_dir / f"worker-{index}.place").read_text()) for index in (0, 1)]
        last = manifests(run_dir)[-1]
        assert places_at(run_dir, last) == ends
        assert sum(ends) <= last.step, "a batch may be trained twice, but none is left out"
    finally:
        server.kill()


@pytest.mark.soak
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_server_that_stays_away_is_reported_and_the_cluster_goes_on_when_it_is_back(
    cluster: Cluster, how: str
) -> None:
    run_dir = cluster.run_dir
    cluster.start_all()
    cluster.wait_until(lambda: step_of(run_dir, 1) > 0 and len(manifests(run_dir, Kind.DELTA)) > 4)
    cluster.wait_until(lambda: any(run_dir.rglob(".tmp-*.part-*")), poll_seconds=0.0)
    if how == "killed":
        cluster.kill("ps", 0)
    else:
        cluster.send("ps", 0, signal.SIGSTOP)
    cluster.wait_until(
        lambda: all("still waiting for the cluster" in cluster.said("worker", i) for i in (0, 1))
    )
    reason = "connection refused" if how == "killed" else "it says nothing"
    assert all(f"/job:ps/task:0 ({reason})" in cluster.said("worker", i) for i in (0, 1)), cluster.logs()
    before = manifests(run_dir)[-1]
    if how == "killed":
        cluster.start("ps", 0)
    else:
        cluster.send("ps", 0, signal.SIGCONT)
    cluster.wait_until(lambda: manifests(run_dir)[-1].step > before.step + 100)
    lost_step = step_of(run_dir, 1)
    cluster.wait_until(lambda: step_of(run_dir, 1) != lost_step)
    (run_dir / "stop").touch()
    assert [cluster.wait_for("worker", index) for index in (1, 0)] == [0, 0], cluster.logs()
    assert "the cluster answers again" in cluster.said("worker", 0)
    assert_replays(run_dir)


def wait_for_the_next_run(cluster: Cluster, before: Manifest) -> None:
    """A commit of it. Its number is higher, but not by one when the chief had to begin more than once."""
    cluster.wait_until(lambda: manifests(cluster.run_dir)[-1].position.run > before.position.run)


def assert_goes_on(run_dir: Path) -> None:
    """The first delta of the newest run follows the last commit before it."""
    run = manifests(run_dir)[-1].position.run
    first = next(link for link in manifests(run_dir, Kind.DELTA) if link.position.run == run)
    newest = [link for link in manifests(run_dir) if link.position.run < run][-1]
    assert first.parent == newest.node


def assert_replays(run_dir: Path) -> None:
    """Every update is in some delta: the oldest full with all deltas is what the last full, at rest, says."""
    fulls = manifests(run_dir, Kind.FULL)
    # Two parameter servers with serving and training data each; in deltas the chief has two files of its own.
    assert len([file for file in fulls[-1].files if ".data-" in file.name]) == 4
    for delta in manifests(run_dir, Kind.DELTA):
        assert len([file for file in delta.files if ".data-" in file.name]) == 6
    last = newest_state(run_dir)
    replayed = state_of(run_dir, fulls[0], links_after(run_dir, fulls[0]))
    assert replayed.keys() == last.keys()
    for key, value in last.items():
        assert value.tobytes() == replayed[key].tobytes(), key


def assert_served(server: Server, run_dir: Path) -> None:
    """Our server has followed all of it by deltas. Row i // 4 of part i mod 4 is id i."""
    server.wait_until_ready()
    table = newest_state(run_dir)["table"]
    position = str(manifests(run_dir)[-1].position)
    ids = np.arange(len(table))
    question = {"inputs": {"ids": ids.tolist()}, "min_position": position, "wait_ms": 10_000}
    answer = server.predict(question).json()
    rows = np.array(answer["outputs"]["rows"], np.float32)
    assert answer["version"]["position"] == position
    assert rows.tobytes() == table[ids % 4 * (len(table) // 4) + ids // 4].tobytes()
    assert server.said.count("loading export") == 1


def places_at(run_dir: Path, manifest: Manifest) -> list[int]:
    """How far the reader of each worker had come."""
    with BundleReader(directory_of(run_dir, manifest.kind), manifest.prefix) as reader:
        state = json.loads(reader.read(TRAINER_STATE_TENSOR).tobytes())
    states = [state, *state.get("trainers", {}).values()]
    return [each["registered"]["reader"]["json"] for each in states]
