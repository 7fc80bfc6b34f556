"""The programs of these tests as forks of a process that has imported what they import: that takes them seconds.

A program for tests.forks: `python -m tests.chaos.warm_programs DIRECTORY`.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from tests.end_to_end.processes import ENVIRONMENT, Program
from tests.forks import Forks, serve_forks

IMPORTED = ("server.app", "server.garbage", "server.http.listening", "tests.loader.step_model")

_at_exit = ExitStack()
atexit.register(_at_exit.close)


class WarmProgram(Program):
    """A Program that is there at once; it ends with these tests, if not before."""

    def _start(self, module: str, arguments: Sequence[str], errors: Path) -> WarmProcess:
        return WarmProcess(module, arguments, errors)


class WarmProcess:
    """What a Program needs to know of its process."""

    def __init__(self, module: str, arguments: Sequence[str], errors: Path) -> None:
        with tempfile.TemporaryDirectory() as directory:
            pipes = [Path(directory) / name for name in ("stdin", "stdout")]
            for pipe in pipes:
                os.mkfifo(pipe)
            self._fork = _forks().start(
                "run",
                errors,
                module=module,
                arguments=arguments,
                environment=dict(os.environ),
                pipes=[str(pipe) for pipe in pipes],
            )
            # In the order in which the other end opens them: each waits for the other.
            self.stdin: IO[str] | None = pipes[0].open("w")
            self.stdout: IO[str] | None = pipes[1].open()
        self.pid = self._fork.pid

    def poll(self) -> int | None:
        return self._fork.poll()

    def wait(self, seconds: float) -> int:
        return self._fork.wait(seconds)

    def send_signal(self, number: int) -> None:
        self._fork.send(signal.Signals(number))

    def kill(self) -> None:
        self._fork.kill()


@functools.cache
def _forks() -> Forks:
    directory = tempfile.mkdtemp()
    # Not a TemporaryDirectory, which is removed before _at_exit is closed: how forks ended is noted there.
    _at_exit.callback(shutil.rmtree, directory)
    return _at_exit.enter_context(Forks(__name__, Path(directory), ENVIRONMENT))


def run(module: str, arguments: list[str], environment: dict[str, str], pipes: list[str]) -> None:
    """As `python -m` does."""
    os.environ.clear()
    os.environ.update(environment | ENVIRONMENT)
    for number, pipe in enumerate(pipes):
        os.dup2(os.open(pipe, os.O_RDONLY if number == 0 else os.O_WRONLY), number)
    # The others hold what was read ahead, or not yet written, by the process that this is a fork of.
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", buffering=1)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    serve_forks({"run": run})
