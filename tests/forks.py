"""Processes that are forks of one that has imported TensorFlow and run nothing: importing takes longer than most tests.

An operation would start threads, which a fork loses.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from tests.waiting import LIMIT_SECONDS, wait_until

# Python's own are 700, 10 and 10.
SELDOM = (50_000, 10, 10)


class Fork:
    """One process, which is no child of ours: what subprocess.Popen can do with one."""

    def __init__(self, pid: int, end: Path) -> None:
        self.pid = pid
        self._end = end

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return int(self._end.read_text()) if self._end.exists() else None

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        wait_until(self._end.exists, f"process {self.pid} has ended", limit_seconds=seconds)
        status = self.poll()
        assert status is not None
        return status

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        # It may have ended, and its end not yet be noted.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
        self.wait()


class Forks:
    """Starts them. `module` is a program that calls `serve_forks`; when it is left all of them have ended."""

    def __init__(self, module: str, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._started: list[Fork] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def start(self, task: str, log: Path, **arguments: Any) -> Fork:
        """What it prints is added to `log`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([task, str(log), arguments]) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        self._started.append(Fork(pid, _end_of(self._directory, pid)))
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as ends:
            ends.callback(self._process.communicate, timeout=LIMIT_SECONDS)
            for fork in self._started:
                ends.callback(fork.kill)


def serve_forks(tasks: Mapping[str, Callable[..., None]]) -> None:
    """The loop of the program: a task per line (JSON); answers with the pid of the fork that runs it."""
    ends = Path(sys.argv[1])

    def note_ends(number: int, frame: FrameType | None) -> None:
        _note_ends(ends)

    signal.signal(signal.SIGCHLD, note_ends)
    # The forks share what is imported, and need not search it for garbage.
    search_less_for_garbage()
    for line in sys.stdin:
        task, log, arguments = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            tasks[task](**arguments)
            return
        # A pid comes back after some thousands: how another process ended that had it is not how this one does.
        _end_of(ends, pid).unlink(missing_ok=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)


def search_less_for_garbage() -> None:
    """Never again what is there now; the rest seldom: a graph is a million small objects, and 700 are the default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)


def _note_ends(ends: Path) -> None:
    """Of all that have ended: several ends may come as one signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        end = _end_of(ends, pid)
        end.with_suffix(".new").write_text(str(os.waitstatus_to_exitcode(status)))
        end.with_suffix(".new").rename(end)


def _end_of(directory: Path, pid: int) -> Path:
    return directory / f"{pid}.end"
