"""Server-sent events for those who look. Nobody looking costs nothing but a sample every other second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import orjson

from server.dashboard.document import Documents, Told
from server.dashboard.samples import SAMPLE_SECONDS, Samples
from server.figures import RequestFigures
from server.models.models import Models

TICK_SECONDS = 1.0
MAX_WATCHERS = 32


class Stream:
    """Belongs to the event loop. `close` ends every stream: a server that stops must not wait for those who look."""

    def __init__(self, documents: Documents, samples: Samples, *, tick_seconds: float = TICK_SECONDS) -> None:
        self._documents = documents
        self._samples = samples
        self._tick_seconds = tick_seconds
        self._closed: asyncio.Event | None = None
        self.watchers = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Samples are taken inside."""
        self._closed = asyncio.Event()
        sampling = asyncio.create_task(self._sample(), name="dashboard-samples")
        try:
            yield
        finally:
            self.close()
            sampling.cancel()

    def close(self) -> None:
        if self._closed is not None:
            self._closed.set()

    @property
    def is_full(self) -> bool:
        return self.watchers >= MAX_WATCHERS

    async def events(self) -> AsyncIterator[bytes]:
        """Everything, and then every second what is new."""
        told: dict[str, Told] = {}
        self.watchers += 1
        try:
            while self._closed is not None and not self._closed.is_set():
                yield b"data: " + orjson.dumps(self._documents.make(told)) + b"\n\n"
                await self._wait(self._tick_seconds)
        finally:
            self.watchers -= 1

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._samples.take()

    async def _wait(self, seconds: float) -> None:
        if self._closed is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), seconds)


def make_stream(models: Models, requests: Mapping[str, RequestFigures], *, takes_orders: bool) -> Stream:
    """`requests`: by protocol; `takes_orders`: whether anybody may give some."""
    samples = Samples(models)
    return Stream(Documents(models, requests, samples, takes_orders=takes_orders), samples)
