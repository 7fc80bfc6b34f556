"""The model's end of the connection to one front-end: packed requests in, packed answers out.

What it costs is what front-ends are there to save: no task, no future and no JSON for a request, one write for all
answers of a turn of the event loop.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotdelta.chain import Position
from hotdelta.errors import DeadlineError, HotdeltaError, NotReadyError, OverloadedError, PredictionError
from server.front.messages import (
    ASK,
    PROTOCOLS,
    Frames,
    Kind,
    answer_frame,
    document_frame,
    error_frame,
    number_of,
    read_arrays,
    read_document,
    read_many,
    short_frame,
)
from server.front.told import Place, Telling
from server.http.joined_writes import JoinedWrites
from server.predict.batching import Answer
from server.predict.request import PredictRequest
from server.served_model import Array

Report = Mapping[str, Any]

# They say nothing of the request: each of those that came together is told so.
_OF_ALL = (OverloadedError, DeadlineError, NotReadyError)


@dataclass(frozen=True, slots=True)
class _Many:
    """Requests that came as one: the number of the first, the rows of all of them, and how many each has."""

    number: int
    place: Place
    signature: str
    feeds: Mapping[str, Array]
    rows: Sequence[int]
    protocol: str


class ModelSide(JoinedWrites):
    """Belongs to the event loop. `is_ready`: the front-end takes connections; `is_gone`: it will never again.

    `hear`: what it says of its clients.
    """

    def __init__(self, telling: Telling, settings: Mapping[str, Any], hear: Callable[[Report], None]) -> None:
        super().__init__()
        self._telling = telling
        self._settings = settings
        self._hear = hear
        self._frames = Frames()
        self._told = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports: list[asyncio.Future[None]] = []
        self.is_ready = asyncio.Event()
        self.is_gone = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._write(document_frame(Kind.SETTINGS, self._settings))
        self._tell_models()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        for report in self._reports:
            if not report.done():
                report.set_result(None)
        self.is_gone.set()

    def data_received(self, data: bytes) -> None:
        for piece, start, kind in self._frames.feed(data):
            if kind == Kind.ASK:
                self._ask(piece, start)
            elif kind == Kind.ASK_MANY:
                self._ask_many(piece, start)
            elif kind == Kind.CHECK:
                self._check(number_of(piece, start))
            elif kind == Kind.REPORT:
                self._take_report(read_document(piece, start))
            else:
                self.is_ready.set()

    async def report(self, seconds: float) -> None:
        """When it has said all that it counted until now, or time is over, or it is gone."""
        if self._transport is not None:
            heard = self._loop.create_future()
            self._reports.append(heard)
            self._write(short_frame(Kind.TELL))
            await asyncio.wait([heard], timeout=seconds)

    def stop(self) -> None:
        """Tell it to take nobody else, to answer whom it has, and to end."""
        self._write(short_frame(Kind.STOP))

    def _ask(self, data: bytes, start: int) -> None:
        _, _, protocol, model, number, generation, signature, count, run, seq, wait_ms = ASK.unpack_from(
            data, start
        )
        place = self._telling.place(generation, model)
        if place is None:
            self._refuse_outdated(number)
            return
        name, inputs = place.calls[signature]
        feeds = dict(zip(inputs, read_arrays(data, start + ASK.size, count), strict=True))
        if run:
            asked = PredictRequest(name, feeds, None, Position(run, seq), wait_ms)
            task = self._loop.create_task(self._wait_for_position(number, place, asked, PROTOCOLS[protocol]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            tell = functools.partial(self._answer, number, place)
            place.plane.begin(name, feeds, protocol=PROTOCOLS[protocol], tell=tell)

    def _ask_many(self, data: bytes, start: int) -> None:
        """Requests that can share a call: that is one call, one answer, one position for all of them."""
        _, _, protocol, model, number, generation, signature, count, _, _, requests = ASK.unpack_from(
            data, start
        )
        place = self._telling.place(generation, model)
        if place is None:
            self._refuse_all_outdated(number, requests)
            return
        rows, arrays = read_many(data, start, requests, count)
        name, inputs = place.calls[signature]
        many = _Many(number, place, name, dict(zip(inputs, arrays, strict=True)), rows, PROTOCOLS[protocol])
        tell = functools.partial(self._answer_many, many)
        place.plane.begin(name, many.feeds, protocol=many.protocol, tell=tell, requests=requests)

    def _answer_many(self, many: _Many, answer: Answer | Exception) -> None:
        requests = len(many.rows)
        if isinstance(answer, Exception):
            if not many.place.is_current and not isinstance(answer, OverloadedError):
                self._refuse_all_outdated(many.number, requests)
            elif isinstance(answer, _OF_ALL):
                self._write(short_frame(Kind.APART, number=many.number))
                for number in range(many.number, many.number + requests):
                    self._write(error_frame(number, answer))
            else:
                # One of them is at fault: that one fails, alone.
                self._ask_apart(many, has_no_rows=False)
            return
        outputs, version = answer
        total = sum(many.rows)
        if any(array.ndim == 0 or len(array) != total for array in outputs.values()):
            self._ask_apart(many, has_no_rows=True)
            return
        try:
            self._write(answer_frame(many.number, outputs, version, kind=Kind.ANSWER_MANY))
        except HotdeltaError:
            self._ask_apart(many, has_no_rows=False)

    def _ask_apart(self, many: _Many, *, has_no_rows: bool) -> None:
        self._write(short_frame(Kind.APART, number=many.number, small=has_no_rows))
        end = 0
        for number, rows in enumerate(many.rows, many.number):
            start, end = end, end + rows
            feeds = {name: array[start:end] for name, array in many.feeds.items()}
            tell = functools.partial(self._answer, number, many.place)
            many.place.plane.begin(many.signature, feeds, protocol=many.protocol, tell=tell)

    def _refuse_all_outdated(self, number: int, requests: int) -> None:
        self._write(short_frame(Kind.APART, number=number))
        for each in range(number, number + requests):
            self._refuse_outdated(each)

    async def _wait_for_position(
        self, number: int, place: Place, asked: PredictRequest, protocol: str
    ) -> None:
        try:
            answer: Answer | Exception = await place.plane.predict(asked, protocol=protocol)
        except HotdeltaError as error:
            answer = error
        self._answer(number, place, answer)

    def _answer(self, number: int, place: Place, answer: Answer | Exception) -> None:
        if not isinstance(answer, Exception):
            try:
                self._write(answer_frame(number, *answer))
            except HotdeltaError as error:
                self._write(error_frame(number, error))
        elif not place.is_current and not isinstance(answer, OverloadedError):
            # It was read by what the signatures were before: the model that failed at it may be another one.
            self._refuse_outdated(number)
        elif isinstance(answer, HotdeltaError):
            self._write(error_frame(number, answer))
        else:
            self._write(error_frame(number, PredictionError(f"the prediction failed: {answer!r}")))

    def _check(self, number: int) -> None:
        self._telling.renew()
        if self._told == self._telling.generation:
            self._write(short_frame(Kind.CURRENT, number=number))
        else:
            self._refuse_outdated(number)

    def _refuse_outdated(self, number: int) -> None:
        """After what is true now, by which it is read again."""
        self._telling.renew()
        if self._told != self._telling.generation:
            self._tell_models()
        self._write(short_frame(Kind.OUTDATED, number=number))

    def _tell_models(self) -> None:
        self._told = self._telling.generation
        self._write(document_frame(Kind.DOCUMENT, self._telling.document))

    def _take_report(self, report: Report) -> None:
        self._hear(report)
        if report["is_asked"] and self._reports:
            heard = self._reports.pop(0)
            if not heard.done():
                heard.set_result(None)
