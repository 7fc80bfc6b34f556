"""The replica that goes ahead of this server, asked again and again what it serves.

Never gives it an order, and decides nothing: `HoldBack` does, by what is heard.
"""

from __future__ import annotations

import logging
import threading
from http import HTTPStatus
from typing import Any

import httpx

from hotdelta.chain import Node, Position
from hotdelta.errors import ManifestError
from hotdelta.logs import FailureLog
from hotdelta.replicas import version_path
from loader import Ahead, HoldBack

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 5.0
STOP_SECONDS = 10.0


class Leader:
    """Tells `hold_back` what the server at `url` serves. `start` and `stop` belong to the owner.

    `model`: which of several it is there; None: its only, or default, one. `token`: for a server that asks for one.
    """

    def __init__(
        self,
        url: str,
        hold_back: HoldBack,
        *,
        model: str | None = None,
        token: str = "",
    ) -> None:
        self._url = f"{url.rstrip('/')}{version_path(model)}"
        self._hold_back = hold_back
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._failures = FailureLog(logger)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotdelta-leader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        with httpx.Client(timeout=TIMEOUT_SECONDS, headers=self._headers) as client:
            while not self._is_stopping.is_set():
                self._ask(client)
                self._is_stopping.wait(POLL_SECONDS)

    def _ask(self, client: httpx.Client) -> None:
        try:
            answer = client.get(self._url)
            if answer.status_code != HTTPStatus.OK:
                raise ManifestError(f"it answers {answer.status_code}")
            ahead = read_ahead(answer.json())
        except (httpx.HTTPError, ValueError, ManifestError) as error:
            reason = str(error) or type(error).__name__
            self._hold_back.miss(f"{self._url}: {reason}")
            self._failures.failed("the server ahead is not heard of", url=self._url, reason=reason)
        else:
            self._hold_back.hear(ahead)
            self._failures.worked("the server ahead is heard of again")


def read_ahead(document: Any) -> Ahead:
    """What /model/version says. Raises ManifestError for what is no such document."""
    try:
        position, quarantined = document["position"], document["quarantined"]
        return Ahead(
            Position.parse(position) if position is not None else None,
            frozenset(Node(Position.parse(item["position"]), item["state_id"]) for item in quarantined),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ManifestError("what answers is no server of hotdelta") from error
