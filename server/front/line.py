"""The front-end's end of the connection to the model's process: what is asked in one turn goes together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotdelta.chain import SignatureSpec
from hotdelta.errors import HotdeltaError
from server.front.messages import (
    PROTOCOLS,
    Frames,
    Kind,
    ask_frame,
    ask_many_frame,
    document_frame,
    number_of,
    read_answer,
    read_document,
    read_error,
    short_frame,
    small_of,
)
from server.front.told import Told, ToldModel, read_told
from server.http.joined_writes import JoinedWrites
from server.predict.request import PredictRequest
from server.served_model import Array, ServedVersion

_NUMBERS = 2**32
# Of signatures of all generations: more are forgotten, and found out again.
_MOST_APART = 1000
_PROTOCOL_NUMBERS = {name: number for number, name in enumerate(PROTOCOLS)}

# Generation, model, signature, protocol.
_Way = tuple[int, int, int, int]
Answer = tuple[Mapping[str, Array], ServedVersion]


class OutdatedError(Exception):
    """A request was read by what is not true any more; what is has come before this."""


class AnswerError(Exception):
    """What the model's process says is wrong: whatever is outdated here, that is the answer."""

    def __init__(self, error: HotdeltaError) -> None:
        self.error = error


@dataclass(frozen=True, slots=True)
class _Question:
    """One request, what it is for, and who waits for the answer."""

    asked: PredictRequest
    spec: SignatureSpec
    waiting: asyncio.Future[Any]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.spec.inputs]

    def rows_to_share(self, model: ToldModel) -> int:
        """How many it has, if it can share a call with others; else 0."""
        if self.asked.min_position is not None:
            return 0
        sizes = {len(array) if array.ndim else 0 for array in self.asked.feeds.values()}
        rows = max(sizes, default=0)
        return rows if len(sizes) == 1 and rows <= model.max_shared_rows else 0

    def shapes(self) -> Hashable:
        feeds = self.asked.feeds
        return tuple((feeds[name].shape[1:], feeds[name].dtype) for name in self.names)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What was asked in one turn of the event loop and can share a call."""

    questions: list[_Question]
    rows: list[int]


class ModelLine(JoinedWrites):
    """Belongs to the event loop. `told`: what the model's process said last; there once it is `is_open`.

    `report` gives what was counted since it was called last. `stop` is called when the server stops, `leave` when the
    model's process is gone.
    """

    told: Told

    def __init__(
        self, report: Callable[[], dict[str, Any]], stop: Callable[[], None], leave: Callable[[], None]
    ) -> None:
        super().__init__()
        self._make_report = report
        self._stop = stop
        self._leave = leave
        self._frames = Frames()
        self._next_number = 0
        self._gathered: dict[tuple[_Way, Hashable], _Gathered] = {}
        self._together: dict[int, tuple[list[int], tuple[int, int, int]]] = {}
        self._apart: set[tuple[int, int, int]] = set()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._is_closed = asyncio.Event()
        self.is_open = asyncio.Event()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._is_closed.set()
        self._leave()

    def data_received(self, data: bytes) -> None:
        for piece, start, kind in self._frames.feed(data):
            if kind == Kind.DOCUMENT:
                self.told = read_told(read_document(piece, start))
                self.is_open.set()
            elif kind == Kind.ANSWER_MANY:
                self._take_many(piece, start)
            elif kind == Kind.APART:
                self._take_apart(piece, start)
            elif kind == Kind.TELL:
                self.report(is_asked=True)
            elif kind == Kind.STOP:
                self._stop()
            else:
                self._take(kind, piece, start)

    def _take(self, kind: int, data: bytes, start: int) -> None:
        waiting = self._waiting.pop(number_of(data, start), None)
        if waiting is None or waiting.done():
            return
        if kind == Kind.ANSWER:
            waiting.set_result(read_answer(data, start))
        elif kind == Kind.ERROR:
            waiting.set_exception(AnswerError(read_error(data, start)))
        elif kind == Kind.OUTDATED:
            waiting.set_exception(OutdatedError())
        else:
            waiting.set_result(None)

    async def ask(
        self, told: Told, model: int, asked: PredictRequest, *, signature: int, protocol: str
    ) -> tuple[Mapping[str, Array], ServedVersion]:
        """Raises OutdatedError, AnswerError."""
        way = (told.generation, model, signature, _PROTOCOL_NUMBERS[protocol])
        question = _Question(
            asked, told.models[model].signatures[asked.signature], self._loop.create_future()
        )
        rows = question.rows_to_share(told.models[model])
        if rows and way[:3] not in self._apart:
            self._gather(way, question, rows, told.models[model].max_shared_rows)
        else:
            self._send_alone(way, question)
        answer: Answer = await question.waiting
        return answer

    def _send_alone(self, way: _Way, question: _Question) -> None:
        generation, model, signature, protocol = way
        number = self._take_numbers(1)
        self._waiting[number] = question.waiting
        self._write(
            ask_frame(
                question.asked,
                question.names,
                number=number,
                generation=generation,
                model=model,
                signature=signature,
                protocol=protocol,
            )
        )

    def _gather(self, way: _Way, question: _Question, rows: int, max_rows: int) -> None:
        """With what else is asked so in this turn of the event loop."""
        key = (way, question.shapes())
        gathered = self._gathered.get(key)
        if gathered is not None and sum(gathered.rows) + rows > max_rows:
            self._send_gathered(key)
            gathered = None
        if gathered is None:
            gathered = self._gathered[key] = _Gathered([], [])
            self._loop.call_soon(self._send_gathered, key)
        gathered.questions.append(question)
        gathered.rows.append(rows)

    def _send_gathered(self, key: tuple[_Way, Hashable]) -> None:
        gathered = self._gathered.pop(key, None)
        if gathered is None:
            return
        way = generation, model, signature, protocol = key[0]
        questions = gathered.questions
        if len(questions) == 1:
            self._send_alone(way, questions[0])
            return
        number = self._take_numbers(len(questions))
        for each, question in enumerate(questions, number):
            self._waiting[each] = question.waiting
        self._together[number] = (gathered.rows, (generation, model, signature))
        arrays = [
            np.concatenate([question.asked.feeds[name] for question in questions])
            for name in questions[0].names
        ]
        self._write(
            ask_many_frame(
                arrays,
                gathered.rows,
                number=number,
                generation=generation,
                model=model,
                signature=signature,
                protocol=protocol,
            )
        )

    def _take_many(self, data: bytes, start: int) -> None:
        """To each its rows."""
        number = number_of(data, start)
        outputs, version = read_answer(data, start)
        rows, _ = self._together.pop(number)
        end = 0
        for each, size in enumerate(rows, number):
            begin, end = end, end + size
            waiting = self._waiting.pop(each)
            if not waiting.done():
                waiting.set_result(({name: array[begin:end] for name, array in outputs.items()}, version))

    def _take_apart(self, data: bytes, start: int) -> None:
        """They are answered one by one. Where outputs have no rows of their own that is always so."""
        _, way = self._together.pop(number_of(data, start))
        if small_of(data, start):
            if len(self._apart) >= _MOST_APART:
                self._apart.clear()
            self._apart.add(way)

    def _take_numbers(self, count: int) -> int:
        number = self._next_number if self._next_number + count <= _NUMBERS else 0
        self._next_number = number + count
        return number

    async def check(self) -> None:
        """Raises OutdatedError when what was told last is not true any more."""
        number = self._take_numbers(1)
        waiting = self._waiting[number] = self._loop.create_future()
        self._write(short_frame(Kind.CHECK, number=number))
        await waiting

    def look(self) -> None:
        """Hear it soon if what was told last is not true any more."""
        self._write(short_frame(Kind.CHECK, number=self._take_numbers(1)))

    def say_ready(self) -> None:
        self._write(short_frame(Kind.READY))

    def report(self, *, is_asked: bool) -> None:
        self._write(document_frame(Kind.REPORT, {**self._make_report(), "is_asked": is_asked}))

    async def close(self) -> None:
        """When all that was said has been taken."""
        self._leave = lambda: None
        self._write_out()
        if self._transport is not None:
            self._transport.close()
            await self._is_closed.wait()
