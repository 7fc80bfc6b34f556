"""Real trainer processes for tests that kill them, cheap enough to start by the dozen.

A zygote imports TensorFlow (seconds) and runs no operation, which would start threads that a fork loses; each trainer
is a fork of it that builds its model, trains and ends as any process does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import LIMIT_SECONDS, wait_until


class TrainerProcess:
    """One fork: it reports in a file, a JSON document per line."""

    def __init__(self, zygote: Zygote, pid: int, report: Path) -> None:
        self._zygote = zygote
        self.pid = pid
        self._report = report

    def reports(self) -> list[dict[str, Any]]:
        text = self._report.read_text() if self._report.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_report(self, count: int = 1) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.reports()) >= count, "the trainer process reports", poll_seconds=0.002)
        return self.reports()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit status; negative for a signal."""
        return os.waitstatus_to_exitcode(self._zygote.wait_for_end())


class Zygote:
    """Forks one trainer after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.keras.trainer_scenarios"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )

    def start(self, scenario: str, run_dir: Path, **arguments: Any) -> TrainerProcess:
        self._count += 1
        report = self._directory / f"report-{self._count}"
        self._send([scenario, str(run_dir), str(report), arguments])
        return TrainerProcess(self, int(self._receive()), report)

    def run(self, scenario: str, run_dir: Path, **arguments: Any) -> tuple[int, list[dict[str, Any]]]:
        process = self.start(scenario, run_dir, **arguments)
        return process.wait(), process.reports()

    def wait_for_end(self) -> int:
        return int(self._receive())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_SECONDS)
        self._process.stdout.close()

    def _send(self, request: list[Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def serve_forks(scenarios: dict[str, Callable[..., None]]) -> None:
    """The zygote's loop: a request per line; answers with the pid, then with the status the child ended with."""
    for line in sys.stdin:
        scenario, run_dir, report, arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            with _reporting(Path(report)) as tell:
                scenarios[scenario](Path(run_dir), tell, **arguments)
            return
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


@contextmanager
def _reporting(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    with path.open("a", buffering=1) as file:
        yield lambda document: print(json.dumps(document), file=file, flush=True)
