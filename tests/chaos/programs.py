"""The trainer and the server of these tests as processes, plain or through `launched`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.warm_programs import WarmProgram
from tests.end_to_end.processes import Server

LAUNCHED = "tests.chaos.launched"


def asking(socket_path: Path, calls: Iterable[str]) -> tuple[str, ...]:
    """A launcher: these system calls wait for the SystemCalls that listen there."""
    return LAUNCHED, "--ask", str(socket_path), ",".join(calls)


def with_clock(file: Path) -> tuple[str, ...]:
    """A launcher: the time of day is wrong by as many seconds as the file says."""
    return LAUNCHED, "--clock", str(file)


def obeying(launcher: Sequence[str] = (LAUNCHED,)) -> tuple[str, ...]:
    """A launcher: permissions count, also for root."""
    return *launcher, "--obey-permissions"


class Writer(WarmProgram):
    """`writer_program`. What it says when it starts is the state that it goes on from."""

    def __init__(self, root: Path, launcher: Sequence[str] = ()) -> None:
        command = ("tests.chaos.writer_program", str(root / "source"), str(root / "export"))
        super().__init__(*launcher, *command, errors=root / "writer.log")
        self.start = json.loads(self._read_line())

    def begin(self, ids: list[int], *, is_full: bool = False) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"ids": ids, "is_full": is_full}) + "\n")
        self.process.stdin.flush()

    def wait_for_word(self) -> str:
        """Its next line; empty when it ended."""
        return self._stdout.readline()

    def train(self, ids: list[int], *, is_full: bool = False) -> dict[str, Any]:
        self.begin(ids, is_full=is_full)
        answer: dict[str, Any] = json.loads(self._read_line())
        return answer


class WarmServer(WarmProgram, Server):
    """The command `server`."""


def follow(root: Path, *flags: str, launcher: Sequence[str] = ()) -> Server:
    """The command `server` on root/run and root/export, ready to answer. Polls fast: a lost event costs no time."""
    polling = ("--poll-seconds", "0.2")
    server = WarmServer(
        root / "export", root / "run", root / "server.log", *polling, *flags, launcher=launcher
    )
    server.wait_until_ready()
    return server
