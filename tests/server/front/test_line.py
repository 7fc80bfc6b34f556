"""The two ends of the line between a front-end and the model's process, here in one event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hotdelta.errors import HotdeltaError, OverloadedError, RequestError
from server.front.line import AnswerError, ModelLine, OutdatedError
from server.front.model_side import ModelSide
from server.front.planes import ToldModels
from server.front.told import Telling
from server.model_settings import ModelSettings
from server.models.entry import Entry
from server.models.models import Models
from server.models.target import Target
from server.predict.request import PredictRequest
from tests.server.application import EXPORT_DIR
from tests.server.fake_model import SIGNATURES, FakeModel

Body = Callable[[ModelLine, Models], Awaitable[None]]


def run(model: FakeModel, body: Body, **settings: Any) -> None:
    """`body` with an open line to this model."""

    async def both() -> None:
        entry = Entry(ModelSettings(EXPORT_DIR, None, **settings), model, max_wait_ms=10)
        entry.batcher.start()
        models = Models([entry])
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        for end in (ours, theirs):
            end.setblocking(False)
        side = ModelSide(Telling(models), {}, lambda _: None)
        line = ModelLine(dict, lambda: None, lambda: None)
        await loop.create_unix_connection(lambda: side, sock=ours)
        await loop.create_unix_connection(lambda: _AfterSettings(line), sock=theirs)
        await line.is_open.wait()
        try:
            await body(line, models)
        finally:
            await line.close()
            await side.is_gone.wait()
            entry.batcher.stop()

    asyncio.run(both())


class _AfterSettings(asyncio.Protocol):
    """A front-end reads its settings before it has an event loop."""

    def __init__(self, line: ModelLine) -> None:
        self._line = line
        self._has_settings = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._line.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._line.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if not self._has_settings:
            size = int.from_bytes(data[:8], "little")
            data, self._has_settings = data[size:], True
        self._line.data_received(data)


def ask(line: ModelLine, *ids: list[int], signature: str = "serving_default") -> Awaitable[Any]:
    plane = ToldModels(line).plane(None)
    return plane.predict(PredictRequest(signature, {"ids": np.array(ids)}, len(ids)), protocol="hotdelta")


def errors_of(answers: Sequence[Any]) -> list[HotdeltaError]:
    return [each.error for each in answers if isinstance(each, AnswerError)]


def scores(answers: Sequence[Any]) -> list[list[float]]:
    return [answer[0]["score"].tolist() for answer in answers]


def test_what_is_asked_in_one_turn_is_one_call_and_each_gets_its_rows() -> None:
    model = FakeModel()

    async def body(line: ModelLine, models: Models) -> None:
        answers = await asyncio.gather(ask(line, [1, 2]), ask(line, [3, 4], [5, 6]), ask(line, [7, 8]))
        assert scores(answers) == [[3.0], [7.0, 11.0], [15.0]]
        assert {str(version.position) for _, version in answers} == {"1.1"}
        figures = models.default().plane.figures.seconds["hotdelta"].read()
        assert sum(figures.counts) == 3

    run(model, body)
    assert model.calls == [("serving_default", 4)]


def test_a_turn_that_is_more_than_a_batch_is_several_calls() -> None:
    model = FakeModel()

    async def body(line: ModelLine, _: Models) -> None:
        answers = await asyncio.gather(*(ask(line, [number, 1]) for number in range(50)))
        assert scores(answers) == [[number + 1.0] for number in range(50)]

    run(model, body, max_batch_size=8)
    assert sum(rows for _, rows in model.calls) == 50
    assert max(rows for _, rows in model.calls) <= 8


def test_of_those_that_came_together_only_the_one_at_fault_fails() -> None:
    async def body(line: ModelLine, models: Models) -> None:
        asked = (ask(line, [1, 2]), ask(line, [1, 200]), ask(line, [3, 4]))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert scores([answers[0], answers[2]]) == [[3.0], [7.0]]
        (failed,) = errors_of(answers)
        assert isinstance(failed, RequestError)
        assert "an id is not in [0, 100)" in str(failed)
        assert models.default().plane.in_flight == 0

    run(FakeModel(), body)


def test_outputs_that_have_no_rows_are_asked_for_one_by_one() -> None:
    model = FakeModel()

    async def body(line: ModelLine, _: Models) -> None:
        for _once in range(2):
            asked = (ask(line, [1, 2], signature="total"), ask(line, [3, 4], signature="total"))
            assert [answer[0]["sum"].item() for answer in await asyncio.gather(*asked)] == [3, 7]

    run(model, body)
    # The first time together, which was of no use.
    assert model.calls[0] == ("total", 2)
    assert model.calls[-2:] == [("total", 1)] * 2


def test_each_of_those_that_find_no_place_is_told_so() -> None:
    model = FakeModel()
    model.may_answer.clear()

    async def body(line: ModelLine, _: Models) -> None:
        waiting = asyncio.ensure_future(ask(line, [1, 2]))
        await asyncio.to_thread(model.is_asked.wait)
        queued = asyncio.ensure_future(ask(line, [1, 2]))
        await asyncio.sleep(0)
        await line.check()
        refused = await asyncio.gather(*(ask(line, [1, 2]) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in errors_of(refused)] == [OverloadedError] * 3
        model.may_answer.set()
        assert scores(await asyncio.gather(waiting, queued)) == [[3.0], [3.0]]

    run(model, body, max_queue=1)


def test_all_that_was_read_by_what_is_outdated_is_to_be_read_again() -> None:
    async def body(line: ModelLine, models: Models) -> None:
        before = ToldModels(line).plane(Target("fake"))
        models.put(models.entries(), labels={}, default_model=None)
        asked = PredictRequest("serving_default", {"ids": np.array([[1, 2]])}, 1)
        for count in (1, 3):
            requests = [before.predict(asked, protocol="hotdelta") for _ in range(count)]
            refused = await asyncio.gather(*requests, return_exceptions=True)
            assert [type(each) for each in refused] == [OutdatedError] * count
        assert line.told.generation == 2
        assert scores([await ask(line, [1, 2])]) == [[3.0]]

    run(FakeModel(), body)


def test_who_asks_whether_it_still_holds_hears_what_holds() -> None:
    async def body(line: ModelLine, models: Models) -> None:
        await line.check()
        models.put(models.entries(), labels={}, default_model=None)
        with pytest.raises(OutdatedError):
            await line.check()
        await line.check()

    run(FakeModel(), body)


def test_texts_and_several_inputs_share_a_call_too() -> None:
    async def body(line: ModelLine, _: Models) -> None:
        plane = ToldModels(line).plane(None)
        texts = [np.array([b"a", b""], object), np.array([b"\xff\x00"], object)]
        asked = [
            *(PredictRequest("echo", {"text": text}, None) for text in texts),
            *(
                PredictRequest("two", {"weight": np.array([weight], np.float32), "user": np.array([2])}, None)
                for weight in (0.5, 1.5)
            ),
        ]
        answers = await asyncio.gather(*(plane.predict(each, protocol="hotdelta") for each in asked))
        assert [answer[0]["text"].tolist() for answer in answers[:2]] == [[b"a", b""], [b"\xff\x00"]]
        assert [answer[0]["product"].tolist() for answer in answers[2:]] == [[1.0], [3.0]]
        assert list(answers[2][0]) == [each.name for each in SIGNATURES["two"].outputs]

    run(FakeModel(), body)
