"""One way from a request to an answer, whatever protocol it came by."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from hotdelta.chain import Position, SignatureSpec
from hotdelta.errors import HotdeltaError, PositionNotReachedError
from server.figures import PredictFigures
from server.predict.batching import Answer, Batcher
from server.predict.position_wait import PositionWait
from server.predict.request import PredictRequest
from server.served_model import Array, ServedModel


class DataPlane:
    """Answers from one position, and from none that is older than the request wants. Belongs to the event loop.

    The model runs in the threads of the batcher. `max_wait_ms`: as long as a request may wait for its position.
    `told_name`: what answers say of which model they are; None where there is only one. `in_flight`: requests that wait
    for a position or for the model.
    """

    def __init__(
        self,
        model: ServedModel,
        batcher: Batcher,
        wait: PositionWait,
        *,
        max_wait_ms: int,
        told_name: str | None = None,
    ) -> None:
        self.model = model
        self.max_wait_ms = max_wait_ms
        self.batcher = batcher
        self.figures = PredictFigures()
        self.told_name = told_name
        self.in_flight = 0
        self._is_at_rest: asyncio.Event | None = None
        self._wait = wait

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        """What may be asked for now; empty while nothing is served."""
        return self.model.signatures

    async def come_to_rest(self, seconds: float) -> None:
        """When nobody is given this way any more: until those who have it have their answers, or time is over."""
        if self.in_flight:
            self._is_at_rest = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_at_rest.wait(), seconds)

    def begin(
        self,
        signature: str,
        feeds: Mapping[str, Array],
        *,
        protocol: str,
        tell: Callable[[Answer | Exception], None],
        requests: int = 1,
    ) -> None:
        """The same as `predict` for who wants no position, without a task: `tell` is called in the event loop, once.

        It may be called before this returns, and must not raise. `requests`: as so many it counts.
        """
        call = _Call(self, protocol, tell, requests)
        try:
            self.batcher.begin(signature, feeds, call, requests=requests)
        except HotdeltaError as error:
            call.set_exception(error)

    def end(self, requests: int = 1) -> None:
        """So many less are under way."""
        self.in_flight -= requests
        if self._is_at_rest is not None and not self.in_flight:
            self._is_at_rest.set()

    async def predict(self, asked: PredictRequest, *, protocol: str) -> Answer:
        """`protocol`: under which it is counted. Raises PositionNotReachedError, and what the batcher raises."""
        started = time.perf_counter()
        wanted = asked.min_position
        self.in_flight += 1
        try:
            if wanted is not None and not await self._wait.until(wanted, asked.wait_ms / 1000):
                raise _not_reached(wanted, self._wait.live_position())
            outputs, version = await self.batcher.predict(asked.signature, asked.feeds)
        finally:
            self.end()
        served = version.position
        if wanted is not None and (served is None or served < wanted):
            # It was served a moment ago: the model went back in between.
            raise _not_reached(wanted, served)
        self.figures.observe(protocol, time.perf_counter() - started)
        return outputs, version


class _Call:
    """A prediction that nobody awaits: its time is taken, and who asked is told."""

    __slots__ = ("_is_done", "_plane", "_protocol", "_requests", "_started", "_tell")

    def __init__(
        self, plane: DataPlane, protocol: str, tell: Callable[[Answer | Exception], None], requests: int
    ) -> None:
        self._plane = plane
        self._protocol = protocol
        self._tell = tell
        self._is_done = False
        self._started = time.perf_counter()
        self._requests = requests
        plane.in_flight += requests

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: Answer, /) -> None:
        self._is_done = True
        self._plane.end(self._requests)
        self._plane.figures.observe(self._protocol, time.perf_counter() - self._started, times=self._requests)
        self._tell(result)

    def set_exception(self, exception: Exception, /) -> None:
        self._is_done = True
        self._plane.end(self._requests)
        self._tell(exception)


def _not_reached(wanted: Position, live: Position | None) -> PositionNotReachedError:
    return PositionNotReachedError(
        f"position {wanted} is not served yet, {live or 'no position'} is",
        wanted=str(wanted),
        live=str(live) if live else None,
        hint="try again later, or give wait_ms",
    )
