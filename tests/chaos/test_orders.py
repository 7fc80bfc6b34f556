"""An operator at the command line, against a real server: back, stay, on, and a server that starts pinned."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import Position
from tests.chaos.conftest import Prepared
from tests.chaos.rig import BEFORE, NEWEST, NEXT, Bits
from tests.chaos.warm_programs import WarmProgram
from tests.end_to_end.processes import connect
from tests.loader.step_model import ROWS
from tests.waiting import LIMIT_SECONDS, wait_until

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - opens nothing but this test's server


class OrderedServer(WarmProgram):
    """The command `server` with a token file and further flags."""

    def __init__(self, root: Path, *flags: str) -> None:
        (root / "tokens").write_text(f"night-shift:{TOKEN}\n")
        directories = ("--export-dir", str(root / "export"), "--checkpoint-dir", str(root / "run"))
        tokens = ("--admin-token-file", str(root / "tokens"))
        super().__init__(
            "server.cli", *directories, "--port", "0", *tokens, *flags, errors=root / "server.log"
        )
        self.url = self._read_line().removeprefix("listening on ").strip()
        self.http = connect(self.url)
        wait_until(lambda: self.http.get("/readyz").status_code == 200, "the server is ready")

    def version(self) -> Any:
        return self.http.get("/model/version").json()

    def require(self, position: Position, states: dict[Position, Bits]) -> None:
        document = self.http.post("/predict", json={"inputs": {"ids": list(range(ROWS))}}).json()
        assert document["version"]["position"] == str(position)
        for name, expected in states[position].items():
            assert np.array(document["outputs"][name], np.float32).tobytes() == expected

    def _end(self) -> int:
        self.http.close()
        return super()._end()


def hotdelta(*arguments: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotdelta.cli", *arguments],
        env={**os.environ, "HOTDELTA_ADMIN_TOKEN": token, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.fixture
def server(copied: Prepared) -> Iterator[OrderedServer]:
    running = OrderedServer(copied[0])
    yield running
    running.kill()


def test_rollback_pin_and_resume_from_the_command_line(server: OrderedServer, copied: Prepared) -> None:
    states = copied[1]
    wait_until(lambda: server.version()["position"] == str(NEWEST), "the newest is served")

    back = hotdelta("rollback", server.url, str(BEFORE))
    assert (back.returncode, back.stdout) == (0, f"rollback: {server.url} serves {BEFORE}\n"), back.stderr
    server.require(BEFORE, states)
    version = server.version()
    assert (version["update_state"], version["pinned"], version["commits_behind"]) == ("pinned", "1.4", 3)
    assert version["seconds_behind"] > 0
    assert [item["position"] for item in version["quarantined"]] == ["1.5", "1.6", "1.7"]

    refused = hotdelta("pin", server.url, str(NEXT))
    assert refused.returncode == 1
    assert "was rolled back" in refused.stderr

    assert hotdelta("resume", server.url).returncode == 0
    wait_until(lambda: server.version()["position"] == str(NEWEST), "the newest is served again")
    server.require(NEWEST, states)
    assert hotdelta("pin", server.url).returncode == 0
    assert hotdelta("rollback", server.url, "--deltas", "2").returncode == 0
    server.require(NEXT, states)
    wait_until(lambda: server.said.count("night-shift") >= 4, "the orders are in the log")
    assert TOKEN not in server.said


def test_orders_without_the_token_are_refused(server: OrderedServer) -> None:
    refused = hotdelta("rollback", server.url, "--deltas", "1", token="x" * 32)
    assert refused.returncode == 1
    assert "does not know this token" in refused.stderr
    assert hotdelta("rollback", server.url, token="").returncode == 2
    assert hotdelta("rollback", "http://127.0.0.1:9", "1.2").returncode == 1
    assert "Traceback" not in refused.stderr


def test_a_server_that_is_started_with_a_pin_serves_that_position(copied: Prepared) -> None:
    server = OrderedServer(copied[0], "--pin", str(NEXT))
    try:
        server.require(NEXT, copied[1])
        assert server.version()["pinned"] == str(NEXT)
    finally:
        server.kill()
