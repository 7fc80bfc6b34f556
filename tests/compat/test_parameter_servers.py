"""A cluster of two parameter servers and two asynchronous workers: real processes, and kill -9."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import BundleReader, Kind, Manifest, directory_of
from hotdelta.chain.format.names import TRAINER_STATE_TENSOR
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.end_to_end.processes import Server
from tests.forks import Fork, Forks
from tests.reserved_ports import reserved_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.I6

LIMIT_BYTES = 6000
ENDS = (None, 0, -signal.SIGKILL, -signal.SIGXFSZ)


class Cluster:
    """Starts and kills its tasks. What they print is kept beside the chain."""

    def __init__(self, run_dir: Path, ports: Sequence[int], forks: Forks) -> None:
        self.run_dir = run_dir
        self._addresses = [f"localhost:{port}" for port in ports]
        self._forks = forks
        self._tasks: dict[str, Fork] = {}

    def start(self, job: str, index: int) -> None:
        self._tasks[f"{job} {index}"] = self._forks.start(
            "cluster",
            self.run_dir.parent / f"{job}-{index}.log",
            job=job,
            index=index,
            addresses=self._addresses,
            run_dir=str(self.run_dir),
        )

    def kill(self, job: str, index: int) -> None:
        self._tasks[f"{job} {index}"].kill()

    def send(self, job: str, index: int, number: signal.Signals) -> None:
        self._tasks[f"{job} {index}"].send(number)

    def kill_in_next_write(self, job: str, index: int) -> None:
        """It dies when it writes beyond these bytes: what it logs is less, its rows of a delta are more."""
        task = self._tasks[f"{job} {index}"]
        resource.prlimit(task.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
        assert task.wait() == -signal.SIGXFSZ, self.logs()

    def wait_for(self, job: str, index: int) -> int:
        return self._tasks[f"{job} {index}"].wait()

    def require_alive(self) -> None:
        for name, task in self._tasks.items():
            assert task.poll() in ENDS, f"{name} ended: {self.logs()}"

    def wait_until(self, condition: Callable[[], bool], *, poll_seconds: float = 0.1) -> None:
        """Fails at once when a task ends that should not."""

        def is_so() -> bool:
            self.require_alive()
            return condition()

        wait_until(is_so, self.logs, poll_seconds=poll_seconds)

    def said(self, job: str, index: int) -> str:
        return (self.run_dir.parent / f"{job}-{index}.log").read_text()

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text()[-2000:]}" for path in self.run_dir.parent.glob("*.log")
        )

    def stop(self) -> None:
        for task in self._tasks.values():
            task.kill()


@pytest.fixture
def cluster(tmp_path: Path, forks: Forks) -> Iterator[Cluster]:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with reserved_ports(4) as ports:
        cluster = Cluster(run_dir, ports, forks)
        yield cluster
        cluster.stop()


@pytest.mark.soak  # checks_of_clusters.py and tests/distributed kill servers in every run
def test_a_killed_server_or_chief_comes_back_and_the_cluster_goes_on_from_the_last_commit(
    cluster: Cluster,
) -> None:
    run_dir = cluster.run_dir
    for job, index in (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)):
        cluster.start(job, index)
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
    for job, index in (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)):
        cluster.start(job, index)
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


def step_of(run_dir: Path, worker: int) -> int:
    try:
        return int((run_dir / f"worker-{worker}.step").read_text() or 0)
    except FileNotFoundError:
        return 0
