"""A browser for all tests, and a page that has to be in order when a test is over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from loader import Loader, LoaderSettings
from tests.loader.conftest import prepared_root, root, train
from tests.server.application import application
from tests.server.connections import serving_app
from tests.waiting import LIMIT_SECONDS

__all__ = ["prepared_root", "root", "train"]

TOKEN = "0123456789abcdef" * 2
MAX_WAIT_MS = 60_000
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

expect.set_options(timeout=LIMIT_SECONDS * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: while it is open, an event loop runs in the thread of the tests."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium: it is Debian's package chromium (make packages)")
    # Its sandbox refuses to work for root, as which containers run tests.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=arguments)
        yield launched
        launched.close()


@dataclass
class Watched:
    """A page, and what went wrong on it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page at an address; no script may fail, nothing may be asked of others."""
    opened: list[tuple[Watched, str]] = []

    def start(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        watched = Watched(context.new_page())
        watched.page.set_default_timeout(LIMIT_SECONDS * 1000)
        watched.page.on("pageerror", lambda error: watched.problems.append(str(error)))
        watched.page.on("request", lambda request: watched.hosts.add(urlsplit(request.url).netloc))
        opened.append((watched, urlsplit(url).netloc))
        watched.page.goto(url)
        return watched.page

    yield start
    for watched, host in opened:
        watched.page.context.close()
        assert watched.problems == []
        assert watched.hosts == {host}


@contextmanager
def followed(root: Path, **settings: Any) -> Iterator[str]:
    """The address of a server that follows root/run and takes orders."""
    tokens = root / "tokens"
    tokens.write_text(f"ops:{TOKEN}\n")
    of_loader = {"sanity": settings.pop("sanity")} if "sanity" in settings else {}
    chosen = LoaderSettings(
        export_dir=root / "export",
        checkpoint_dir=root / "run",
        poll_seconds=0.2,
        late_data_seconds=0.5,
        **of_loader,
    )
    app = application(
        Loader(chosen), model_name="steps", admin_token_file=tokens, max_wait_ms=MAX_WAIT_MS, **settings
    )
    with serving_app(app) as (host, port):
        yield f"http://{host}:{port}"
