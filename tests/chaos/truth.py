"""What every state holds, and whether a server tells it: the checks that follow every fault."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import numpy as np
import psutil

from hotdelta.chain import Position
from tests.end_to_end.processes import Server
from tests.loader.step_model import ROWS
from tests.waiting import wait_until

MOST_GROWTH_BYTES = 256 * 2**20
QUESTION = {"inputs": {"ids": list(range(ROWS))}}


class Truth:
    """The bits of each state that was committed; every answer is compared with those of the position it names."""

    def __init__(self, states: Mapping[Position, Mapping[str, bytes]] | None = None) -> None:
        self._states = {str(position): bits for position, bits in (states or {}).items()}
        self.answers = 0

    def __contains__(self, position: str) -> bool:
        return position in self._states

    def learn(self, position: Position | str, bits: Mapping[str, bytes]) -> str:
        self._states[str(position)] = bits
        return str(position)

    def ask(self, server: Server) -> str:
        """The position of one answer, whose values are right."""
        answer = server.http.post("/predict", json=QUESTION)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        position: str = document["version"]["position"]
        for name, expected in self._states[position].items():
            found = np.array(document["outputs"][name], np.float32).tobytes()
            assert found == expected, f"a wrong answer at {position}: {name}"
        self.answers += 1
        return position

    def wait_for(self, server: Server, position: Position | str) -> None:
        wait_until(
            lambda: self.ask(server) == str(position),
            lambda: f"{position} is served: {server.version()}",
            poll_seconds=0.02,
        )

    def wait_for_or_reason(self, server: Server, position: Position | str) -> str:
        """Until a position is served, or the server says why it is not. What it says; empty when it is served."""
        said: list[str] = []

        def is_served_or_said() -> bool:
            if self.ask(server) == str(position):
                return True
            told = server.version()
            reasons = [told["reason"], *(item["reason"] for item in (*told["quarantined"], *told["refused"]))]
            said.extend(filter(None, reasons))
            return bool(said)

        wait_until(
            is_served_or_said,
            lambda: f"{position} is served, or a reason is said: {server.version()}",
            poll_seconds=0.02,
        )
        return said[0] if said else ""


class Health:
    """A server process as it was when it was ready, to be compared with what it is later."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rss_at_start = self._rss()

    def require(self) -> None:
        """It lives, it has not failed in a way that nobody thought of, and it has not grown."""
        assert is_alive(self._server)
        assert "Traceback" not in self._server.said
        grown = self._rss() - self._rss_at_start
        assert grown < MOST_GROWTH_BYTES, f"it grew by {grown / 2**20:.0f} MB"

    def _rss(self) -> int:
        return int(psutil.Process(self._server.process.pid).memory_info().rss)


def is_alive(server: Server) -> bool:
    try:
        return server.http.get("/healthz").status_code == 200
    except httpx.HTTPError:
        return False
