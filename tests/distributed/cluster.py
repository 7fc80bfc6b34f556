"""Real processes of a parameter-server cluster on this machine, for tests that kill them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.forks import Forks
from tests.reserved_ports import SHARING, reserved_ports
from tests.waiting import wait_until


class Cluster:
    """Parameter servers, workers and a coordinator; every process that is left is killed at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pids: dict[tuple[str, int], int] = {}
        self._forks = Forks("tests.distributed.cluster_program", directory, SHARING)
        self._ports = ExitStack()
        self._addresses: dict[str, list[str]] = {}
        self._reports = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forks.__exit__(kind, error, trace)
        self._ports.close()

    def start_servers(self, *, ps: int, workers: int, calls: Mapping[int, Path] | None = None) -> None:
        """A new cluster, on ports that are its own until the next. `calls`: of parameter servers, see `serve`."""
        self.kill_all()
        self._ports.close()
        ports = self._ports.enter_context(reserved_ports(ps + workers + 1))
        self._addresses = {
            "ps": [f"localhost:{port}" for port in ports[:ps]],
            "worker": [f"localhost:{port}" for port in ports[ps:-1]],
            "chief": [f"localhost:{ports[-1]}"],
        }
        for job, count in (("ps", ps), ("worker", workers)):
            for index in range(count):
                path = (calls or {}).get(index) if job == "ps" else None
                self.start_server(job, index, calls=str(path or ""))

    def start_server(self, job: str, index: int, *, calls: str = "") -> None:
        arguments = {"cluster": self._addresses, "job": job, "index": index, "calls": calls}
        self._pids[job, index] = self._fork("serve", f"{job}-{index}", arguments)

    def pid(self, job: str, index: int) -> int:
        return self._pids[job, index]

    def kill(self, job: str, index: int) -> None:
        pid = self._pids.pop((job, index))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), f"end of {job} {index}")

    def kill_all(self) -> None:
        for job, index in list(self._pids):
            self.kill(job, index)

    def coordinate(
        self,
        run_dir: Path,
        *,
        tracking: str = "touched",
        update: str | None = None,
        shards: int = 0,
        rows_written_by: str = "servers",
        working_dir: Path | None = None,
        ends_with_full: bool = False,
        slow_seconds: float = 60.0,
    ) -> Reporter:
        """`shards`: of the table; 0 is one for each parameter server."""
        arguments = {
            "cluster": self._addresses,
            "run_dir": str(run_dir),
            "tracking": tracking,
            "update": update,
            "shards": shards,
            "rows_written_by": rows_written_by,
            "working_dir": str(working_dir) if working_dir else None,
            "ends_with_full": ends_with_full,
            "slow_seconds": slow_seconds,
        }
        return self._report("coordinate", arguments)

    def train_along(self, run_dir: Path, trainer_id: int, trainers: int) -> Reporter:
        arguments = {"run_dir": str(run_dir), "trainer_id": trainer_id, "trainers": trainers}
        return self._report("train_along", arguments)

    def lead(self, run_dir: Path, trainers: int, *, dies: str = "") -> Reporter:
        """Trainer 0; see job_program."""
        return self._report("lead", {"run_dir": str(run_dir), "trainers": trainers, "dies": dies})

    def write_remotely(self, *, is_sharded: bool, slow_seconds: float) -> Reporter:
        """Writes to a variable of parameter server 0, which it stops before."""
        arguments = {
            "cluster": self._addresses,
            "server_pid": self.pid("ps", 0),
            "is_sharded": is_sharded,
            "slow_seconds": slow_seconds,
        }
        return self._report("write_remotely", arguments)

    def _report(self, task: str, arguments: dict[str, Any]) -> Reporter:
        self._reports += 1
        report = self._directory / f"report-{self._reports}"
        pid = self._fork(task, report.name, {**arguments, "report": str(report)})
        self._pids[task, self._reports] = pid
        return Reporter(pid, report, self._directory / f"{report.name}.log")

    def _fork(self, task: str, name: str, arguments: Any) -> int:
        return self._forks.start(task, self._directory / f"{name}.log", **arguments).pid


class Reporter:
    """A process that trains, and what it says."""

    def __init__(self, pid: int, report: Path, log: Path) -> None:
        self.pid = pid
        self._report = report
        self._log = log

    def said(self, what: str) -> list[Any]:
        text = self._report.read_text() if self._report.exists() else ""
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [value for name, value in map(json.loads, lines) if name == what]

    def wait_for(self, what: str, count: int = 1) -> Any:
        def is_said() -> bool:
            # In this order: what it says before it ends is found.
            is_running = is_alive(self.pid)
            is_found = len(self.said(what)) >= count
            assert is_found or is_running, self.log()[-3000:]
            return is_found

        wait_until(is_said, f"a process that says {what}")
        return self.said(what)[-1]

    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait_for_end()

    def halt(self) -> None:
        halt(self.pid)

    def die(self) -> None:
        """Let it kill itself, where it was told to."""
        Path(f"{self._report}.die").touch()
        self.wait_for_end()

    def wait_for_end(self) -> None:
        wait_until(lambda: not is_alive(self.pid), "end of a process")

    def stop(self) -> Path:
        """Let it finish; where its variables are."""
        Path(f"{self._report}.stop").touch()
        self.wait_for("saved")
        self.wait_for_end()
        return Path(f"{self._report}.npz")


def halt(pid: int) -> None:
    """Until all of it stands still: one thread is told to stop, and stops the others, which may answer until then."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(map(is_halted, psutil.Process(pid).threads())), "a process that stands still")


def is_halted(thread: Any) -> bool:
    try:
        return psutil.Process(thread.id).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return True


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
