"""Requests that want a position which is not served yet wait here, without a thread each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hotdelta.chain import Position

_LOOK_SECONDS = 0.005


class PositionWait:
    """Looks at the live position for all who wait, and only while somebody does. Belongs to the event loop."""

    def __init__(self, live_position: Callable[[], Position | None]) -> None:
        self.live_position = live_position
        self._waiting: dict[asyncio.Future[None], Position] = {}
        self._looker: asyncio.Task[None] | None = None

    async def until(self, wanted: Position, seconds: float) -> bool:
        """Whether `wanted` or a later position is served within so many seconds."""
        if self._is_reached(wanted):
            return True
        if seconds <= 0:
            return False
        reached = asyncio.get_running_loop().create_future()
        self._waiting[reached] = wanted
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(seconds):
                await reached
        except TimeoutError:
            return self._is_reached(wanted)
        finally:
            self._waiting.pop(reached, None)
        return True

    async def _look(self) -> None:
        while self._waiting:
            live = self.live_position()
            for reached, wanted in self._waiting.items():
                if live is not None and live >= wanted and not reached.done():
                    reached.set_result(None)
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_reached(self, wanted: Position) -> bool:
        live = self.live_position()
        return live is not None and live >= wanted
