from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hotdelta.errors import DeadlineError, NotReadyError, OverloadedError, PredictionError, RequestError
from loader.model.served import Version
from server.predict.batching import Answer, Batcher
from server.predict.pace import Pace
from server.served_model import Array
from tests.server.fake_model import FakeModel

LIMIT_SECONDS = 60.0


@asynccontextmanager
async def batching(model: FakeModel, **options: Any) -> AsyncIterator[Batcher]:
    defaults = {
        "max_batch_size": 8,
        "max_rows": 100,
        "max_queue": 100,
        "workers": 1,
        "timeout_seconds": LIMIT_SECONDS,
    }
    batcher = Batcher(model.predict, model.predict_at_once, **{**defaults, **options})
    batcher.start()
    try:
        yield batcher
    finally:
        model.may_answer.set()
        await asyncio.to_thread(batcher.stop)
        assert not batcher.is_alive()


def ask(batcher: Batcher, *ids: int, signature: str = "serving_default") -> Coroutine[Any, Any, Answer]:
    return batcher.predict(signature, {"ids": np.array([[number, 0] for number in ids])})


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not is_so():  # noqa: ASYNC110 - a count that threads change has no event
            await asyncio.sleep(0.001)


async def ask_all_while_busy(
    model: FakeModel, batcher: Batcher, *questions: Coroutine[Any, Any, Answer]
) -> list[Answer | BaseException]:
    """All of them queue up behind one request that the model holds on to."""
    model.may_answer.clear()
    first = asyncio.create_task(ask(batcher, 1))
    await asyncio.sleep(0)
    await until(lambda: batcher.waiting == 0)
    tasks = [asyncio.create_task(question) for question in questions]
    await until(lambda: batcher.waiting + sum(task.done() for task in tasks) >= len(tasks))
    model.may_answer.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    await first
    return answers


def scores(answers: list[Answer | BaseException]) -> list[list[float]]:
    return [list(answer[0]["score"]) for answer in answers if not isinstance(answer, BaseException)]


def test_requests_that_wait_share_a_call_and_get_their_own_rows() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model) as batcher:
            answers = await ask_all_while_busy(
                model, batcher, ask(batcher, 2), ask(batcher, 3, 4), ask(batcher, 5)
            )

        assert scores(answers) == [[2], [3, 4], [5]]
        assert model.calls == [("serving_default", 1), ("serving_default", 4)]

    asyncio.run(scenario())


def test_a_bad_request_fails_alone() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model) as batcher:
            answers = await ask_all_while_busy(
                model, batcher, ask(batcher, 2), ask(batcher, 100), ask(batcher, 5)
            )

        assert scores(answers) == [[2], [5]]
        assert isinstance(answers[1], RequestError)

    asyncio.run(scenario())


def test_a_batch_is_not_larger_than_allowed_and_a_larger_request_goes_alone() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model, max_batch_size=2) as batcher:
            questions = [ask(batcher, 1), ask(batcher, *range(5)), ask(batcher, 2), ask(batcher, 3)]
            answers = await ask_all_while_busy(model, batcher, *questions)

        assert scores(answers) == [[1], [0, 1, 2, 3, 4], [2], [3]]
        assert sorted(rows for _, rows in model.calls[1:]) == [1, 2, 5]

    asyncio.run(scenario())


def test_different_signatures_never_share_a_call() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model) as batcher:
            user, weight = np.array([3]), np.array([0.5], np.float32)
            two = batcher.predict("two", {"user": user, "weight": weight})
            answers = await ask_all_while_busy(model, batcher, ask(batcher, 1), two, ask(batcher, 2))

        assert isinstance(answers[1], tuple)
        assert answers[1][0]["product"].tolist() == [1.5]
        assert model.calls[1:] == [("serving_default", 2), ("two", 1)]

    asyncio.run(scenario())


def test_a_model_whose_outputs_are_not_rows_is_called_for_each_request() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model) as batcher:
            questions = [ask(batcher, number, signature="total") for number in (1, 2, 3)]
            answers = await ask_all_while_busy(model, batcher, *questions)
            again = await ask_all_while_busy(model, batcher, ask(batcher, 4, signature="total"))

        assert [int(answer[0]["sum"]) for answer in answers if isinstance(answer, tuple)] == [1, 2, 3]
        assert isinstance(again[0], tuple)
        assert model.calls[-1] == ("total", 1)

    asyncio.run(scenario())


def test_inputs_with_different_numbers_of_rows_go_alone() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model) as batcher:
            feeds = {"user": np.array([1]), "weight": np.array([1, 2, 3], np.float32)}
            questions = [batcher.predict("two", feeds), batcher.predict("two", feeds)]
            await ask_all_while_busy(model, batcher, *questions)

        assert model.calls[1:] == [("two", 1), ("two", 1)]

    asyncio.run(scenario())


def test_a_full_queue_refuses_at_once() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model, max_queue=2) as batcher:
            answers = await ask_all_while_busy(model, batcher, *(ask(batcher, number) for number in range(5)))

        assert [type(answer) for answer in answers] == [tuple] * 2 + [OverloadedError] * 3

    asyncio.run(scenario())


def test_a_model_that_hangs_is_given_up_and_the_next_request_is_answered() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model, timeout_seconds=0.05) as batcher:
            model.may_answer.clear()
            with pytest.raises(DeadlineError):
                await ask(batcher, 1)
            model.may_answer.set()
            assert scores([await answer_in_time(batcher, 2)]) == [[2]]

    asyncio.run(scenario())


async def answer_in_time(batcher: Batcher, number: int) -> Answer:
    """A busy machine may need more than one attempt."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            with contextlib.suppress(DeadlineError):
                return await ask(batcher, number)


def test_a_fault_that_nobody_translated_is_an_error_of_the_model_and_not_the_end_of_the_thread() -> None:
    async def scenario() -> None:
        async with batching(FakeModel()) as batcher:
            with pytest.raises(PredictionError, match="ZeroDivisionError"):
                await ask(batcher, 1, signature="broken")
            assert scores([await ask(batcher, 2)]) == [[2]]

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [1, 100], ids=["answered", "refused"])
def test_a_thread_that_waits_holds_on_to_nothing(number: int) -> None:
    """The frames of an error, for one, hold the model that raised it."""

    async def scenario() -> None:
        async with batching(FakeModel()) as batcher:
            ids = np.array([[number, 0]])
            asked = weakref.ref(ids)
            with contextlib.suppress(RequestError):
                await batcher.predict("serving_default", {"ids": ids})
            del ids
            await until(lambda: gc.collect() >= 0 and asked() is None)

    asyncio.run(scenario())


def test_what_still_waits_is_answered_at_the_stop_and_what_comes_later_is_refused() -> None:
    async def scenario() -> None:
        model = FakeModel()
        async with batching(model) as batcher:
            model.may_answer.clear()
            waiting = [asyncio.create_task(ask(batcher, number)) for number in (1, 2)]
            await asyncio.sleep(0)
            stopping = asyncio.create_task(asyncio.to_thread(batcher.stop))
            await until(lambda: batcher._is_stopping)
            with pytest.raises(NotReadyError, match="stopping"):
                await ask(batcher, 3)
            model.may_answer.set()
            await stopping
            assert scores(await asyncio.gather(*waiting)) == [[1], [2]]

    asyncio.run(scenario())


def test_an_answer_for_nobody_does_no_harm() -> None:
    """The event loop is closed when the answer comes."""
    model, loop = FakeModel(), asyncio.new_event_loop()
    batcher = Batcher(
        model.predict,
        model.predict_at_once,
        max_batch_size=8,
        max_rows=8,
        max_queue=100,
        workers=1,
        timeout_seconds=LIMIT_SECONDS,
    )

    async def ask_in_vain() -> None:
        batcher.start()
        model.may_answer.clear()
        asking = asyncio.create_task(ask(batcher, 1))
        await until(model.is_asked.is_set)
        asking.cancel()
        await asyncio.wait([asking])

    loop.run_until_complete(ask_in_vain())
    loop.close()
    model.may_answer.set()
    batcher.stop()
    assert not batcher.is_alive()
    assert model.calls


@dataclass
class QuickModel(FakeModel):
    """Answers at once, too, unless an update goes on. `at_once`: how many rows each such call had."""

    is_updated: bool = False
    at_once: list[int] = field(default_factory=list)

    def predict_at_once(
        self, signature: str, feeds: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], Version] | None:
        if self.is_updated:
            return None
        assert threading.current_thread() is threading.main_thread()
        self.at_once.append(len(next(iter(feeds.values()))))
        assert self.position is not None
        return self._outputs(signature, feeds), Version(self.position, 10, 1)


class AlwaysQuick(Pace):
    """Whatever calls take."""

    def __init__(self) -> None:
        super().__init__()
        self.is_quick = True

    def observe_in_loop(self, seconds: float) -> None:
        return


async def ask_together(
    batcher: Batcher, *questions: Coroutine[Any, Any, Answer]
) -> list[Answer | BaseException]:
    return await asyncio.gather(*questions, return_exceptions=True)


def test_quick_calls_are_made_in_the_event_loop_for_all_that_it_has_read() -> None:
    async def scenario() -> None:
        model = QuickModel()
        async with batching(model, make_pace=AlwaysQuick) as batcher:
            answers = await ask_together(batcher, ask(batcher, 2), ask(batcher, 3, 4), ask(batcher, 5))

        assert scores(answers) == [[2], [3, 4], [5]]
        assert (model.at_once, model.calls) == ([4], [])

    asyncio.run(scenario())


def test_a_quick_call_is_not_larger_than_allowed_unless_one_request_is() -> None:
    async def scenario() -> None:
        model = QuickModel()
        async with batching(model, make_pace=AlwaysQuick, max_batch_size=3) as batcher:
            questions = [ask(batcher, 1), ask(batcher, *range(5)), ask(batcher, 2, 3), ask(batcher, 4)]
            answers = await ask_together(batcher, *questions)

        assert scores(answers) == [[1], [0, 1, 2, 3, 4], [2, 3], [4]]
        assert (model.at_once, model.calls) == ([1, 5, 3], [])

    asyncio.run(scenario())


def test_what_is_known_of_small_calls_is_not_believed_of_large_ones() -> None:
    made: list[Pace] = []

    def make_pace() -> Pace:
        made.append(Pace() if made else AlwaysQuick())
        return made[-1]

    async def scenario() -> None:
        model = QuickModel()
        async with batching(model, make_pace=make_pace, max_batch_size=3) as batcher:
            answers = await ask_together(batcher, ask(batcher, 1), ask(batcher, *range(5)))
            # Two that would be quick each, and are more together than is known to be.
            await ask_together(batcher, ask(batcher, 1), ask(batcher, 2))

        assert scores(answers) == [[1], [0, 1, 2, 3, 4]]
        assert (model.at_once, model.calls) == ([1], [("serving_default", 5), ("serving_default", 2)])

    asyncio.run(scenario())


def test_while_an_update_goes_on_threads_wait_and_not_the_event_loop() -> None:
    async def scenario() -> None:
        model = QuickModel(is_updated=True)
        async with batching(model, make_pace=AlwaysQuick) as batcher:
            model.may_answer.clear()
            asking = asyncio.create_task(ask_together(batcher, ask(batcher, 1), ask(batcher, 2)))
            await until(model.is_asked.is_set)
            model.may_answer.set()

            assert scores(await asking) == [[1], [2]]
        assert model.at_once == []

    asyncio.run(scenario())


def test_a_bad_request_among_quick_ones_fails_alone() -> None:
    async def scenario() -> None:
        model = QuickModel()
        async with batching(model, make_pace=AlwaysQuick) as batcher:
            answers = await ask_together(batcher, ask(batcher, 2), ask(batcher, 100), ask(batcher, 5))

        assert scores(answers) == [[2], [5]]
        assert isinstance(answers[1], RequestError)

    asyncio.run(scenario())


@dataclass
class FailingSlowly(QuickModel):
    """As one whose call waits for something that is not there."""

    def predict_at_once(
        self, signature: str, feeds: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], Version] | None:
        super().predict_at_once(signature, feeds)
        time.sleep(0.02)
        raise PredictionError("the store of features does not answer")


def test_a_model_that_begins_to_fail_slowly_holds_up_the_event_loop_once() -> None:
    def known_as_quick() -> Pace:
        pace = Pace()
        pace.is_quick = True
        return pace

    async def scenario() -> None:
        model = FailingSlowly()
        async with batching(model, make_pace=known_as_quick) as batcher:
            answers = [await ask(batcher, number) for number in range(5)]

        assert scores([*answers]) == [[number] for number in range(5)]
        assert len(model.at_once) == 1

    asyncio.run(scenario())


def test_quick_answers_that_are_not_rows_are_asked_for_again_one_by_one() -> None:
    async def scenario() -> None:
        model = QuickModel()
        async with batching(model, make_pace=AlwaysQuick) as batcher:
            questions = [ask(batcher, number, signature="total") for number in (1, 2)]
            answers = await ask_together(batcher, *questions)

        assert [int(answer[0]["sum"]) for answer in answers if isinstance(answer, tuple)] == [1, 2]
        assert model.calls == [("total", 1), ("total", 1)]

    asyncio.run(scenario())


def test_who_gave_up_before_his_turn_costs_no_quick_call() -> None:
    async def scenario() -> None:
        model = QuickModel()
        async with batching(model, make_pace=AlwaysQuick) as batcher:
            gone, stays = asyncio.create_task(ask(batcher, 1)), asyncio.create_task(ask(batcher, 2))
            asyncio.get_running_loop().call_soon(gone.cancel)
            assert scores([await stays]) == [[2]]
            await asyncio.wait([gone])

        assert gone.cancelled()
        assert model.at_once == [1]

    asyncio.run(scenario())


def test_a_model_turns_out_to_be_quick_by_being_asked() -> None:
    async def scenario() -> None:
        model = QuickModel()
        async with batching(model) as batcher:
            assert scores([await ask(batcher, 1)]) == [[1]]
            assert model.at_once == []
            async with asyncio.timeout(LIMIT_SECONDS):
                while not model.at_once:
                    assert scores([await ask(batcher, 2)]) == [[2]]

    asyncio.run(scenario())


def test_a_server_that_stops_answers_what_was_gathered_and_refuses_what_comes() -> None:
    async def scenario() -> None:
        model = QuickModel()
        async with batching(model, make_pace=AlwaysQuick) as batcher:
            asking = asyncio.create_task(ask(batcher, 1))
            await asyncio.sleep(0)
            await asyncio.to_thread(batcher.stop)
            assert scores([await asking]) == [[1]]
            with pytest.raises(NotReadyError, match="stopping"):
                await ask(batcher, 2)

    asyncio.run(scenario())
