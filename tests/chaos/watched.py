"""A deployment whose trainer and server wait at their system calls for what a test wants to happen there."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import httpx

from hotdelta.chain.format import names
from tests.chaos.deployment import Deployment
from tests.chaos.programs import asking
from tests.chaos.seccomp import READS, WRITES
from tests.chaos.system_calls import Action, Call, SystemCalls
from tests.waiting import wait_until

NEVER = 10**9


class WatchedDeployment(Deployment):
    """The trainer asks before it writes to its directory, the server before it reads from the run directory."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.writer_calls = SystemCalls(root / "writer-calls", within=root / "source")
        self.server_calls = SystemCalls(root / "server-calls", within=root / "run")
        super().__init__(
            root,
            chance,
            writer_launcher=asking(root / "writer-calls", WRITES),
            server_launcher=asking(root / "server-calls", READS),
        )

    def update(self, number: int, action: Action, *, is_full: bool) -> Call | None:
        """One more state, and an action before that call of the server's that it causes.

        The call; None when the server needed fewer. With a full the closing delta never comes, so that the way leads
        through the full.
        """
        self.train(is_full=is_full)
        if is_full:
            self.withheld.update(path for path in self.new_files() if path.parent != self.root / "source")
        known = (self.target(path) for path in self.source_files())
        self.server_calls.passed = frozenset(path for path in known if path.exists())
        self.server_calls.arm(number, action)
        try:
            self.deliver_all()
        except FileNotFoundError:
            # The action took the directory away from under the copy tool. Who asks for it waits until it is back.
            assert self.server_calls.acted_on
            self.deliver_all()
        self._wait_for_the_action()
        return self.server_calls.acted_on

    def _wait_for_the_action(self) -> None:
        wait_until(
            lambda: self.server_calls.acted_on is not None or self.ask() == self.newest,
            lambda: f"the action, or the newest state: {self.server.version()}",
            poll_seconds=0.02,
        )

    def require_recovery(self) -> None:
        """The reason is visible while the newest is not served; it is served as soon as the files are right again.

        What has no manifest does not exist: when the action took one away, there is nothing to be said of it.
        """
        if not any(path.name.endswith(names.MANIFEST_SUFFIX) for path in self.new_files()):
            self.wait_for_newest_or_reason()
        self.server_calls.disarm()
        self.deliver_again()
        self.wait_for_newest()
        self.require_health()

    def commit(self, number: int, action: Action, *, is_full: bool) -> dict[str, Any] | None:
        """A commit of the trainer's with an action before that call; None when it needed fewer calls."""
        self.writer_calls.arm(number, action)
        told = self.try_to_train(is_full=is_full)
        self.writer_calls.disarm()
        return told if self.writer_calls.acted_on else None

    def require_next_commit(self) -> None:
        """The trainer goes on, what it commits next is served, and nothing of a failed commit is left."""
        self.train()
        self.deliver_all()
        self.wait_for_newest()
        self.require_health()
        source = self.root / "source"
        assert [path for path in source.rglob("*") if path.name.startswith(names.TEMPORARY_PREFIX)] == []

    def kill_writer_at(self, number: int, *, is_full: bool) -> Call | None:
        """kill -9 before that call of a commit, and a new trainer. None when the commit needed fewer calls."""
        self.writer_calls.arm(number, Call.kill)
        self.writer.begin([1, 2, 3], is_full=is_full)
        self.writer.wait_for_word()
        self.writer.kill()
        call = self.writer_calls.acted_on
        self.ask()
        self.writer_calls = _renewed(self.writer_calls, self.root / "writer-calls", self.root / "source")
        self.restart_writer(asking(self.root / "writer-calls", WRITES))
        return call

    def kill_server_at(self, number: int) -> Call | None:
        """kill -9 before that call of an update, and a new server. None when the update needed fewer calls."""
        self.train()
        self.server_calls.arm(number, Call.kill)
        self.deliver_all()
        with contextlib.suppress(httpx.TransportError):
            self._wait_for_the_action()
        call = self.server_calls.acted_on
        self.server.kill()
        self.server_calls = _renewed(self.server_calls, self.root / "server-calls", self.root / "run")
        self.server = self.start_server(asking(self.root / "server-calls", READS))
        return call

    def close(self) -> None:
        super().close()
        self.writer_calls.close()
        self.server_calls.close()


def _renewed(calls: SystemCalls, socket_path: Path, within: Path) -> SystemCalls:
    calls.close()
    socket_path.unlink()
    return SystemCalls(socket_path, within)
