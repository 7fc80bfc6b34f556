"""What other servers say of themselves, for who looks at the page. Gives them no orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from hotdelta.replicas import Replica, Said, find_troubles, judge, version_path

ASK_SECONDS = 2.0
TIMEOUT_SECONDS = 5.0
# As `hotdelta fleet` has it.
LATE_SECONDS = 60.0


class Fleet:
    """Asks the servers at `urls` again and again, while somebody looks. Belongs to the event loop.

    `token`: for those that want one.
    """

    def __init__(self, urls: Sequence[str], *, token: str = "", ask_seconds: float = ASK_SECONDS) -> None:
        self._urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._ask_seconds = ask_seconds
        self._said: dict[tuple[str, str | None], Replica] = {}

    def standings(self, model: str | None, own: Said) -> list[dict[str, Any]]:
        """Of this server, which says `own`, and of those that have been asked."""
        others = [replica for url in self._urls if (replica := self._said.get((url, model))) is not None]
        replicas = [Replica("", own), *others]
        verdicts = judge(replicas, late_seconds=LATE_SECONDS)
        return [
            {
                "url": replica.url,
                "position": str(replica.position) if replica.position else None,
                "state_id": replica.state_id if replica.position else None,
                "behind": verdict.seconds_behind,
                "standing": str(verdict.standing),
                "state": _state(replica),
            }
            for replica, verdict in zip(replicas, verdicts, strict=True)
        ]

    async def run(self, is_watched: Callable[[], bool], models: Callable[[], Sequence[str | None]]) -> None:
        """Until it is cancelled. `models`: what they are called where there are several; None: the only one."""
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, headers=self._headers) as client:
            while True:
                if is_watched():
                    asked = [(url, model) for url in self._urls for model in models()]
                    said = await asyncio.gather(*(self._ask(client, *each) for each in asked))
                    self._said = dict(zip(asked, said, strict=True))
                else:
                    # Of a while ago: nobody should see it as what is now.
                    self._said = {}
                await asyncio.sleep(self._ask_seconds)

    async def _ask(self, client: httpx.AsyncClient, url: str, model: str | None) -> Replica:
        try:
            answer = await client.get(f"{url}{version_path(model)}")
            answer.raise_for_status()
            replica = Replica(url, answer.json())
            _look_at(replica)
        except (ValueError, KeyError, TypeError, AttributeError):
            return Replica(url, problem="no server of hotdelta")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Replica(url, problem=str(error).partition("\n")[0] or type(error).__name__)
        return replica


def _state(replica: Replica) -> str:
    if replica.status is None:
        return replica.problem
    return "; ".join([replica.status["update_state"], *find_troubles(replica.status)])


def _look_at(replica: Replica) -> None:
    """Raises what a document that is not ours raises, before it stands among the others."""
    judge([replica], late_seconds=LATE_SECONDS)
    if replica.status is None or not isinstance(replica.status["update_state"], str):
        raise TypeError
