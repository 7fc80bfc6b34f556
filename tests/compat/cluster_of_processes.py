"""A cluster of two parameter servers and two workers, each a process that can be killed."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.forks import Fork, Forks
from tests.reserved_ports import reserved_ports
from tests.waiting import wait_until

TASKS = (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1))
LIMIT_BYTES = 6000
# The keys of whose rows everybody is asked.
ASKED = np.arange(-1000, 4000)
ENDS = (None, 0, -signal.SIGKILL, -signal.SIGXFSZ)


class Cluster:
    """Starts and kills its tasks. What they print is kept beside the chain."""

    def __init__(self, run_dir: Path, ports: Sequence[int], forks: Forks, program: str = "cluster") -> None:
        """`program`: of graph_program."""
        self.run_dir = run_dir
        self._program = program
        self._addresses = [f"localhost:{port}" for port in ports]
        self._forks = forks
        self._tasks: dict[str, Fork] = {}

    def start(self, job: str, index: int) -> None:
        self._tasks[f"{job} {index}"] = self._forks.start(
            self._program,
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

    def start_all(self) -> None:
        for job, index in TASKS:
            self.start(job, index)


@contextmanager
def cluster_in(directory: Path, forks: Forks, program: str = "cluster") -> Iterator[Cluster]:
    """Its tasks, of which none is started yet; what is left of them is killed."""
    run_dir = directory / "run"
    run_dir.mkdir()
    with reserved_ports(len(TASKS)) as ports:
        cluster = Cluster(run_dir, ports, forks, program)
        try:
            yield cluster
        finally:
            cluster.stop()


def step_of(run_dir: Path, worker: int) -> int:
    try:
        return int((run_dir / f"worker-{worker}.step").read_text() or 0)
    except FileNotFoundError:
        return 0
