"""GET /docs: the description of the routes in a browser. Its scripts come with a package, so it needs no other host.

Swagger UI is licensed under Apache-2.0; fastapi-offline, which brings its files, under MIT.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, Response
from starlette.types import ASGIApp

PAGE = "/docs"
_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
DOCS_PATHS = frozenset({PAGE, *(f"{PAGE}/{name}" for name in _FILES)})

# The page may not load, and may not send, anything from or to anywhere else: a token may be typed in there.
_POLICY = "default-src 'self' 'unsafe-inline'; img-src 'self' data:"


def docs_router(title: str) -> APIRouter:
    router = APIRouter()
    # Relative: a proxy may put a path in front.
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
        swagger_ui_parameters={"validatorUrl": None},
    )
    page.headers["Content-Security-Policy"] = _POLICY

    async def docs() -> Response:
        return page

    router.add_api_route(PAGE, docs, methods=["GET", "HEAD"], include_in_schema=False)
    directory = _directory()
    for name in _FILES:
        router.add_api_route(
            f"{PAGE}/{name}", _file(directory / name), methods=["GET", "HEAD"], include_in_schema=False
        )
    return router


def _file(path: Path) -> ASGIApp:
    async def send() -> Response:
        return FileResponse(path, headers={"Cache-Control": "max-age=86400"})

    return send  # type: ignore[return-value]


def _directory() -> Path:
    """Found, not imported: it would bring an application of its own."""
    found = importlib.util.find_spec("fastapi_offline")
    if found is None or found.origin is None:
        raise ImportError("there is no package fastapi_offline", name="fastapi_offline")
    return Path(found.origin).parent / "static"
