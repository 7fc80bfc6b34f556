"""Other servers beside this one: asked while somebody looks, and shown as `hotdelta fleet` shows them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import orjson
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from hotdelta.chain import Position
from hotdelta.errors import ConfigurationError
from loader import LoaderStatus
from server.dashboard.fleet import Fleet
from server.settings import Settings
from tests.server.connections import serving
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS, wait_until

AT_17 = {"position": "3.17", "state_id": "0" * 32, "update_state": "following"}
TOKEN = "r" * 32


@dataclass
class Foreign:
    """What answers everything with the same text, and counts."""

    text: bytes
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@contextmanager
def answering(text: bytes) -> Iterator[Foreign]:
    foreign = Foreign(text)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            foreign.headers.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(foreign.text)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    foreign.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield foreign
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def asking(
    fleet: Fleet, *, is_watched: Callable[[], bool] = lambda: True, model: str | None = None
) -> Iterator[None]:
    """In an event loop of its own."""
    started, loops = threading.Event(), []

    async def run() -> None:
        loops.append((asyncio.get_running_loop(), asyncio.current_task()))
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await fleet.run(is_watched, lambda: [model])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(LIMIT_SECONDS)
    try:
        yield
    finally:
        ((loop, task),) = loops
        assert task is not None
        loop.call_soon_threadsafe(task.cancel)
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()


def shown(fleet: Fleet, model: str | None = None) -> list[tuple[str, str]]:
    return [(row["standing"], row["state"]) for row in fleet.standings(model, AT_17)]


@pytest.mark.parametrize(
    "text",
    [
        b"hello",
        b"[]",
        b"{}",
        b'{"update_state": 5}',
        b'{"update_state": "x", "position": "3.17", "last_update": 7}',
        b'{"update_state": "x", "position": "3.17", "last_update": {"position": "3.17", "committed_at": "noon"}}',
        b'{"update_state": "x", "position": "3.17", "seconds_behind": "far"}',
    ],
)
def test_what_is_no_server_of_ours_is_said_to_be_none(text: bytes) -> None:
    with answering(text) as foreign:
        fleet = Fleet([foreign.url], ask_seconds=0.01)
        with asking(fleet):
            wait_until(
                lambda: shown(fleet) == [("newest", "following"), ("no answer", "no server of hotdelta")],
                lambda: shown(fleet),
            )


def test_nobody_is_asked_while_nobody_looks_and_nothing_old_is_shown() -> None:
    is_watched = threading.Event()
    with answering(orjson.dumps(AT_17)) as other:
        fleet = Fleet([other.url, other.url + "/"], ask_seconds=0.01, token=TOKEN)
        with asking(fleet, is_watched=is_watched.is_set, model="a/b"):
            is_watched.set()
            wait_until(lambda: len(shown(fleet, "a/b")) == 2, lambda: shown(fleet, "a/b"))
            assert shown(fleet, "a/b")[1] == ("newest", "following")
            is_watched.clear()
            wait_until(lambda: len(shown(fleet, "a/b")) == 1, lambda: shown(fleet, "a/b"))
            asked = len(other.headers)
            is_watched.set()
            wait_until(lambda: len(other.headers) > asked, lambda: other.headers)
    assert other.headers[0]["path"] == "/models/a%2Fb/version"
    assert other.headers[0]["authorization"] == f"Bearer {TOKEN}"


def test_addresses_that_cannot_be_asked_are_refused_at_the_start() -> None:
    for url in ("replica-1:8000", "http://ops:hush@replica", "http://"):
        with pytest.raises(ConfigurationError, match="--fleet"):
            Settings(fleet=(url,))


class Serving(FakeModel):
    """Holds these values."""

    digest: str | None = None

    def status(self) -> LoaderStatus:
        return replace(super().status(), digest=self.digest)


def test_the_page_shows_who_of_the_fleet_is_behind_differs_or_is_silent(look: Callable[..., Page]) -> None:
    models = [Serving(position=Position(3, seq)) for seq in (17, 17, 17, 16)]
    for model, digest in zip(models, ("x-11", "x-11", "x-22", None), strict=True):
        model.digest = digest
    with ExitStack() as stack:
        others = ["http://{}:{}".format(*stack.enter_context(serving(model))) for model in models[1:]]
        gone = "http://127.0.0.1:9"
        host, port = stack.enter_context(serving(models[0], fleet=(*others, gone)))
        page = look(f"http://{host}:{port}")
        rows = page.locator("#fleet tbody tr")
        expect(rows).to_have_count(5)
        cells = [row.locator("td").all_inner_texts() for row in rows.all()]
        assert [row[0] for row in cells] == ["this server", *(url[7:] for url in others), gone[7:]]
        assert [(row[2], row[1]) for row in cells[:4]] == [
            ("3.17", "newest"),
            ("3.17", "newest"),
            ("3.17", "differs"),
            ("3.16", "behind"),
        ]
        assert cells[4][1] == "no answer"
        assert rows.nth(1).locator("a").get_attribute("href") == others[0]
        serious = [
            violation["id"]
            for violation in Axe().run(page).response["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_a_server_without_others_shows_no_fleet(look: Callable[..., Page]) -> None:
    with serving(FakeModel()) as (host, port):
        page = look(f"http://{host}:{port}")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#fleet-section")).to_be_hidden()
