"""The page and its files, which come with the package: a browser asks nobody else for anything."""

from __future__ import annotations

from importlib.resources import files
from pathlib import PurePosixPath

from blake3 import blake3
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Scope

from hotdelta.errors import OverloadedError
from server.dashboard.stream import Stream

EVENTS = "/dashboard/events"
_PAGE = "index.html"
_FILES = (
    "dashboard.css",
    "dashboard.js",
    "stream.js",
    "charts.js",
    "chain.js",
    "orders.js",
    "format.js",
    "uplot/uPlot.iife.min.js",
    "uplot/uPlot.min.css",
    "icon.svg",
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    # Nothing from elsewhere, nothing inline, and in no frame of somebody else's page.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# The page asks for a token by itself.
DASHBOARD_PATHS = frozenset(f"/dashboard/{name}" for name in _FILES)


class Page:
    """The files, as they are read at the start."""

    def __init__(self) -> None:
        directory = files("server.dashboard") / "static"
        self._contents = {name: directory.joinpath(name).read_bytes() for name in (_PAGE, *_FILES)}
        self._tags = {name: f'"{blake3(content).hexdigest(16)}"' for name, content in self._contents.items()}

    async def page(self, request: Request) -> Response:
        return self._answer(_PAGE, request)

    async def file(self, request: Request) -> Response:
        return self._answer(request.url.path.removeprefix("/dashboard/"), request)

    def _answer(self, name: str, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self._tags[name], "Vary": "Accept"}
        if request.headers.get("if-none-match") == self._tags[name]:
            return Response(status_code=304, headers=headers)
        kind = _TYPES[PurePosixPath(name).suffix]
        return Response(self._contents[name], headers=headers, media_type=f"{kind}; charset=utf-8")


class PageRoute(Route):
    """`/` for browsers; who does not ask for a page gets the list of routes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or "text/html" not in Headers(scope=scope).get("accept", ""):
            return Match.NONE, {}
        return super().matches(scope)


def dashboard_routes(stream: Stream) -> list[Route]:
    """Before all others, so that browsers that ask for `/` get the page."""
    page = Page()

    async def events(_request: Request) -> Response:
        if stream.is_full:
            raise OverloadedError(f"{stream.watchers} look already", hint="close another dashboard")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream.events(), headers=headers, media_type="text/event-stream")

    return [
        PageRoute("/", page.page, methods=["GET"]),
        *(Route(path, page.file, methods=["GET"]) for path in sorted(DASHBOARD_PATHS)),
        Route(EVENTS, events, methods=["GET"]),
    ]
