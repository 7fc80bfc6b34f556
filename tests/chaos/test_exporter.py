"""An exporter that is killed between any two system calls, or whose disk fails at any: nobody sees half an export."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import Prepared
from tests.chaos.programs import follow
from tests.chaos.rig import NEWEST, put
from tests.chaos.seccomp import is_supported
from tests.chaos.seeds import seeded
from tests.chaos.system_calls import Action, Call, SystemCalls
from tests.chaos.truth import Health, Truth
from tests.chaos.warm_programs import WarmProgram
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="only Linux lets us stop system calls"),
    pytest.mark.I6,
]

CI_KILLS, CI_ERRORS = 3, 2
NEVER = 10**9
DISK_FULL, DISK_BROKEN = errno.ENOSPC, errno.EIO


class Exporters(WarmProgram):
    """`exporters`, and a server that follows the directory that they write to."""

    def __init__(self, root: Path, truth: Truth) -> None:
        super().__init__("tests.chaos.exporters", errors=root / "exporters.log")
        self.root = root
        self.truth = truth
        self.server = follow(root)
        self._health = Health(self.server)
        self._known_refusals = 0
        assert self._read_line() == "ready\n"

    def export(self, number: int, action: Action) -> tuple[int, Call | None, str]:
        """The exit code of one exporter, the call before which the action happened, and what it said."""
        errors = self.root / "exporter.log"
        errors.unlink(missing_ok=True)
        (self.root / "calls").unlink(missing_ok=True)
        with SystemCalls(self.root / "calls", within=self.root / "export") as calls:
            calls.arm(number, action)
            directories = [
                "--checkpoint-dir",
                str(self.root / "run"),
                "--export-dir",
                str(self.root / "export"),
            ]
            order = {
                "socket": str(self.root / "calls"),
                "arguments": [*directories, "--save-incr-model"],
                "errors": str(errors),
            }
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            code = int(self._read_line())
            self.calls = len(calls.disarm())
            return code, calls.acted_on, errors.read_text()

    def versions(self) -> list[int]:
        """What a server would look at."""
        return sorted(int(path.name) for path in (self.root / "export").iterdir() if path.name.isdigit())

    def require_whole(self) -> None:
        """Every version is complete: the newest is served in its turn, and its answers are right."""
        newest = self.versions()[-1]
        assert self._count_refusals() == self._known_refusals
        wait_until(lambda: self.server.version()["export_version"] == newest, f"export {newest} is served")
        assert self.truth.ask(self.server) == str(NEWEST)
        self._health.require()

    def expect_refusals(self) -> None:
        """Those so far are no wonder."""
        self._known_refusals = self._count_refusals()

    def _count_refusals(self) -> int:
        return self.server.said.count("cannot be served")

    def kill(self) -> None:
        self.server.kill()
        super().kill()


@pytest.fixture(scope="module")
def exporters(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporters]:
    root = tmp_path_factory.mktemp("exporters")
    shutil.copytree(prepared[0], root, dirs_exist_ok=True)
    running = Exporters(root, Truth(prepared[1]))
    yield running
    running.kill()


def survive_kill(exporters: Exporters, number: int) -> bool:
    """Whether the exporter lived to be killed at that call."""
    before = exporters.versions()
    code, call, said = exporters.export(number, Call.kill)
    assert code == (-signal.SIGKILL if call else 0), said
    assert exporters.versions()[: len(before)] == before
    exporters.require_whole()
    return call is not None


def survive_error(exporters: Exporters, number: int, error: int) -> bool:
    """It says why, and there is no new version; or the call did not matter. Whatever there is, is whole."""
    before = exporters.versions()
    code, call, said = exporters.export(number, lambda _: error)
    if code:
        assert code == 1, said
        assert os.strerror(error) in said, (call, said)
        assert "Traceback" not in said
        assert exporters.versions() == before, call
    exporters.require_whole()
    left = [path for path in (exporters.root / "export").iterdir() if path.name.startswith(".tmp")]
    assert left == [], call
    return call is not None


def test_kills_and_failing_calls(exporters: Exporters) -> None:
    """At some calls: each is an export that a server loads. The soak below is at every call."""
    chance = seeded("exporter")
    assert exporters.export(NEVER, lambda _: 0)[0] == 0
    exporters.require_whole()
    numbers = chance.sample(range(1, exporters.calls), CI_KILLS + CI_ERRORS)
    for number in numbers[:CI_KILLS]:
        assert survive_kill(exporters, number)
    for number in numbers[CI_KILLS:]:
        assert survive_error(exporters, number, chance.choice([DISK_FULL, DISK_BROKEN]))


@pytest.mark.soak
def test_kill_between_any_two_calls(exporters: Exporters) -> None:
    numbers = itertools.count(1)
    while survive_kill(exporters, next(numbers)):
        pass
    assert next(numbers) > CI_KILLS


@pytest.mark.soak
@pytest.mark.parametrize("error", [DISK_FULL, DISK_BROKEN])
def test_a_disk_that_fails_at_any_call(exporters: Exporters, error: int) -> None:
    numbers = itertools.count(1)
    while survive_error(exporters, next(numbers), error):
        pass
    assert next(numbers) > CI_ERRORS


def test_a_damaged_export_is_served_when_it_is_whole_again(exporters: Exporters) -> None:
    export = exporters.root / "export"
    number = exporters.versions()[-1] + 1
    shutil.copytree(export / "1", export / ".copy")
    graph = (export / ".copy" / "saved_model.pb").read_bytes()
    (export / ".copy" / "saved_model.pb").write_bytes(graph[:-1] + bytes([graph[-1] ^ 1]))
    (export / ".copy").rename(export / str(number))
    wait_until(lambda: "does not have the digest" in exporters.server.said, "the reason is logged")
    exporters.truth.ask(exporters.server)
    assert exporters.server.version()["export_version"] == number - 1
    put(export / str(number) / "saved_model.pb", graph)
    wait_until(lambda: exporters.server.version()["export_version"] == number, "the export is served")
    assert exporters.truth.ask(exporters.server) == str(NEWEST)
    exporters.expect_refusals()
