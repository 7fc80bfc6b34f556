"""A server that was rolled back, killed with kill -9 and started again must not serve the bad state again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.conftest import Prepared
from tests.chaos.rig import BEFORE, NEWEST
from tests.chaos.test_orders import OrderedServer, hotdelta
from tests.waiting import wait_until

pytestmark = pytest.mark.I6


@contextmanager
def killed_server(root: Path, *flags: str) -> Iterator[OrderedServer]:
    """A server that ends with kill -9."""
    server = OrderedServer(root, "--poll-seconds", "0.1", *flags)
    try:
        yield server
    finally:
        server.kill()


def wait_for_newest(server: OrderedServer) -> None:
    wait_until(lambda: server.version()["position"] == str(NEWEST), "the newest is served")


def test_a_rollback_survives_a_kill(copied: Prepared) -> None:
    root, states = copied
    keeping = ("--state-dir", str(root / "state"))
    with killed_server(root, *keeping) as server:
        wait_for_newest(server)
        rolled_back = hotdelta("rollback", server.url, str(BEFORE))
        assert (rolled_back.returncode, rolled_back.stderr) == (0, "")
    with killed_server(root, *keeping) as server:
        server.require(BEFORE, states)
        wait_until(lambda: server.version()["update_state"] == "pinned", "it says that it is pinned")
        version = server.version()
        assert (version["position"], version["pinned"], version["orders_survive_restart"]) == (
            "1.4",
            "1.4",
            True,
        )
        assert [item["position"] for item in version["quarantined"]] == ["1.5", "1.6", "1.7"]
        assert hotdelta("resume", server.url).returncode == 0
    with killed_server(root, *keeping) as server:
        wait_for_newest(server)
        server.require(NEWEST, states)
    assert not list((root / "run").glob("**/orders*"))


def test_without_a_state_directory_it_is_forgotten_and_the_operator_is_told(copied: Prepared) -> None:
    root, states = copied
    with killed_server(root) as server:
        wait_for_newest(server)
        rolled_back = hotdelta("rollback", server.url, str(BEFORE))
        assert rolled_back.returncode == 0
        assert "a restart of the server forgets this" in rolled_back.stderr
        assert server.version()["orders_survive_restart"] is False
    with killed_server(root) as server:
        wait_for_newest(server)
        server.require(NEWEST, states)
