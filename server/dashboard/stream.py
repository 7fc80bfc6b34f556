"""Server-sent events for those who look. Nobody looking costs nothing but a sample every other second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import orjson

from server.dashboard.document import Documents, Told
from server.dashboard.samples import SAMPLE_SECONDS, Samples
from server.figures import RequestFigures
from server.models.models import Models

if TYPE_CHECKING:
    from server.dashboard.fleet import Fleet

TICK_SECONDS = 1.0
MAX_WATCHERS = 32


class Stream:
    """Belongs to the event loop. `close` ends every stream: a server that stops must not wait for those who look."""

    def __init__(
        self,
        documents: Documents,
        samples: Samples,
        *,
        fleet: Fleet | None = None,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """`fleet`: the other servers that the page shows."""
        self._documents = documents
        self._fleet = fleet
        self._samples = samples
        self._tick_seconds = tick_seconds
        self._closed: asyncio.Event | None = None
        self.watchers = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Samples are taken inside, and other servers asked."""
        self._closed = asyncio.Event()
        tasks = [asyncio.create_task(self._sample(), name="dashboard-samples")]
        if self._fleet is not None:
            asking = self._fleet.run(lambda: self.watchers > 0, self._documents.model_names)
            tasks.append(asyncio.create_task(asking, name="dashboard-fleet"))
        try:
            yield
        finally:
            self.close()
            for task in tasks:
                task.cancel()

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


def make_stream(
    models: Models,
    requests: Mapping[str, RequestFigures],
    *,
    takes_orders: bool,
    fleet: Fleet | None = None,
) -> Stream:
    """`requests`: by protocol; `takes_orders`: whether anybody may give some; `fleet`: other servers to show."""
    samples = Samples(models)
    documents = Documents(models, requests, samples, takes_orders=takes_orders, fleet=fleet)
    return Stream(documents, samples, fleet=fleet)
