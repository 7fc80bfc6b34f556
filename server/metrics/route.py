"""GET /metrics."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from server.metrics.collector import ServerCollector


class Counting(Protocol):
    """Other processes that count, too."""

    async def hear_all(self) -> None:
        """When all that they counted is known here."""


def metrics_router(collector: ServerCollector, others: Counting | None = None) -> APIRouter:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    for of_process in (ProcessCollector, PlatformCollector, GCCollector):
        of_process(registry=registry)
    router = APIRouter()

    @router.get("/metrics", summary="For Prometheus")
    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        if others is not None:
            await others.hear_all()
        # Milliseconds, for which no prediction should wait.
        content = await asyncio.to_thread(encode, registry)
        return Response(content, headers={"Content-Type": content_type})

    router.add_api_route("/metrics", metrics, methods=["HEAD"], include_in_schema=False)
    return router
