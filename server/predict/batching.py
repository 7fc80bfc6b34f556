"""Lets requests that wait at the same time share one call of the model: most of a small call is its dispatch.

Nobody waits for a batch to fill: whatever has queued up while the last call ran is the next batch, so a lone request
costs nothing extra. Only requests for the same signature whose arrays differ in nothing but their number of rows are
put together, and one call is one position for all of them.

Calls run in threads, but for those that take no longer than handing them over (`pace`): the event loop gathers what it
reads in one turn, and calls the model itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hotdelta.errors import (
    DeadlineError,
    HotdeltaError,
    NotReadyError,
    OverloadedError,
    PredictionError,
    TooManyRowsError,
)
from server.figures import BatchFigures
from server.predict.pace import Pace
from server.served_model import Array, ServedVersion

logger = logging.getLogger(__name__)

Answer = tuple[Mapping[str, Array], ServedVersion]
Predict = Callable[[str, Mapping[str, Array]], Answer]
PredictAtOnce = Callable[[str, Mapping[str, Array]], Answer | None]

_JOIN_SECONDS = 5.0


class Waiting(Protocol):
    """Who waits for an answer: a future of asyncio, or something that costs less. Told in the event loop, once."""

    def done(self) -> bool:
        """Whether it has been told, or wants nothing any more."""

    def set_result(self, result: Answer, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


@dataclass(slots=True, eq=False)
class _Job:
    """One request on its way, or several that came as one (`requests`).

    `rows` is 0 when it shares no call, `deadline` None while it waits for no thread.
    """

    signature: str
    feeds: Mapping[str, Array]
    rows: int
    future: Waiting = field(repr=False)
    deadline: asyncio.TimerHandle | None = None
    requests: int = 1


@dataclass(slots=True)
class _Gathered:
    """Requests that the event loop has read in one turn, and that can share a call."""

    jobs: list[_Job]
    rows: int = 0


class Batcher:
    """A bounded queue in front of the model, and the threads that empty it.

    `predict` and `start` belong to the event loop; the threads own nothing but the batch that they took.
    """

    def __init__(
        self,
        predict: Predict,
        predict_at_once: PredictAtOnce,
        *,
        max_batch_size: int,
        max_rows: int,
        max_queue: int,
        workers: int,
        timeout_seconds: float,
        make_pace: Callable[[], Pace] = Pace,
    ) -> None:
        """`max_rows` is for one request, `max_batch_size` for those that share a call."""
        self._call_model = predict
        self._call_at_once = predict_at_once
        self._max_batch_size = max_batch_size
        self._max_rows = max_rows
        self.max_queue = max_queue
        self.figures = BatchFigures()
        self._timeout_seconds = timeout_seconds
        self._guard_queue = threading.Lock()
        self._has_work = threading.Condition(self._guard_queue)
        self._queues: OrderedDict[Hashable, deque[_Job]] = OrderedDict()
        self._waiting = 0
        self._is_stopping = False
        self._alone: set[str] = set()
        self._paces: defaultdict[tuple[str, int], Pace] = defaultdict(make_pace)
        self._gathered: dict[Hashable, _Gathered] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"predict-{number}", daemon=True)
            for number in range(workers)
        ]

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Answers what still waits, then ends the threads."""
        with self._guard_queue:
            self._is_stopping = True
            self._has_work.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    @property
    def waiting(self) -> int:
        """Requests that no thread has taken yet."""
        return self._waiting

    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    async def predict(self, signature: str, feeds: Mapping[str, Array]) -> Answer:
        """Raises what the model raises, DeadlineError when time is over, and before the model is asked
        TooManyRowsError, or OverloadedError when the queue is full.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        job = self._begin(signature, feeds, future)
        try:
            return await future
        finally:
            if job.deadline is not None:
                job.deadline.cancel()

    def begin(
        self, signature: str, feeds: Mapping[str, Array], waiting: Waiting, *, requests: int = 1
    ) -> None:
        """The same for who is told, without a task that waits: raises at once what is wrong at once.

        `requests`: as so many it counts.
        """
        self._begin(signature, feeds, waiting, requests)

    def _begin(self, signature: str, feeds: Mapping[str, Array], waiting: Waiting, requests: int = 1) -> _Job:
        loop = asyncio.get_running_loop()
        job = _Job(signature, feeds, self._shareable_rows(signature, feeds), waiting, requests=requests)
        if job.rows and self._pace(signature, job.rows).is_quick and not self._is_stopping:
            self._gather(job, loop)
        else:
            self._enqueue(job, loop)
        return job

    def _give_up(self, future: Waiting) -> None:
        if not future.done():
            problem = f"the model did not answer within {self._timeout_seconds:g} seconds"
            future.set_exception(DeadlineError(problem, hint="send fewer rows"))

    def _shareable_rows(self, signature: str, feeds: Mapping[str, Array]) -> int:
        sizes = {len(array) if array.ndim else 0 for array in feeds.values()}
        largest = max(sizes, default=0)
        if largest > self._max_rows:
            raise TooManyRowsError(
                f"the request has {largest} rows, and {self._max_rows} are allowed",
                max_rows=self._max_rows,
                hint="send several requests, or raise --max-rows",
            )
        return largest if len(sizes) == 1 and signature not in self._alone else 0

    def _pace(self, signature: str, rows: int) -> Pace:
        """Of calls with as many rows, or up to twice as many."""
        return self._paces[signature, rows.bit_length()]

    def _gather(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        key = _key_of(job)
        gathered = self._gathered.get(key)
        if gathered is not None and gathered.rows + job.rows > self._max_batch_size:
            self._answer_gathered(key, loop)
            gathered = None
        if gathered is None:
            gathered = self._gathered[key] = _Gathered([])
            # After all that was read in this turn.
            loop.call_soon(self._answer_gathered, key, loop)
        gathered.jobs.append(job)
        gathered.rows += job.rows

    def _answer_gathered(self, key: Hashable, loop: asyncio.AbstractEventLoop) -> None:
        """In the event loop. Whatever is in the way, threads find out, and who is at fault."""
        gathered = self._gathered.pop(key, None)
        batch = [] if gathered is None else [job for job in gathered.jobs if not job.future.done()]
        if not batch:
            return
        shared = None
        with contextlib.suppress(Exception):
            shared = self._answer_at_once(batch)
        if shared is not None:
            for job, answer in zip(batch, shared, strict=True):
                job.future.set_result(answer)
            return
        for job in batch:
            if job.signature in self._alone:
                job.rows = 0
            try:
                self._enqueue(job, loop)
            except HotdeltaError as error:
                job.future.set_exception(error)

    def _answer_at_once(self, batch: Sequence[_Job]) -> list[Answer] | None:
        """None when a call would have to wait, or is not for all of them."""
        signature = batch[0].signature
        pace, started = self._pace(signature, sum(job.rows for job in batch)), time.perf_counter()
        if not pace.is_quick:
            return None
        try:
            answer = self._call_at_once(signature, _joined(batch))
        except Exception:
            # Everybody waited for that, too.
            pace.observe_in_loop(time.perf_counter() - started)
            raise
        if answer is None:
            return None
        pace.observe_in_loop(time.perf_counter() - started)
        shared = self._shares(batch, answer)
        if shared is not None:
            with self._guard_queue:
                self._count(batch)
        return shared

    def _enqueue(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        key: Hashable = _key_of(job) if job.rows else job
        with self._guard_queue:
            if self._is_stopping:
                raise NotReadyError("the server is stopping", hint="ask another one")
            if self._waiting >= self.max_queue:
                raise OverloadedError(
                    f"{self._waiting} requests wait for the model", hint="try again, or ask another server"
                )
            self._queues.setdefault(key, deque()).append(job)
            self._waiting += job.requests
            self._has_work.notify()
        job.deadline = loop.call_later(self._timeout_seconds, self._give_up, job.future)

    def _run(self) -> None:
        while self._serve(self._take()):
            # Nothing is held on to here: a thread that waits would keep its last batch, and the model that answered.
            pass

    def _serve(self, batch: Sequence[_Job]) -> bool:
        """Whether there was anything to do."""
        # Who gave up meanwhile costs no call.
        wanted = [job for job in batch if not job.future.done()]
        if wanted:
            started = time.thread_time()
            answers = self._answer(wanted)
            self._deliver(answers, time.thread_time() - started)
        return bool(batch)

    def _take(self) -> list[_Job]:
        """The next batch; empty when it is time to stop."""
        with self._guard_queue:
            while not self._queues and not self._is_stopping:
                self._has_work.wait()
            if not self._queues:
                return []
            key, queue = self._queues.popitem(last=False)
            batch = [queue.popleft()]
            rows = batch[0].rows
            while queue and rows + queue[0].rows <= self._max_batch_size:
                rows += queue[0].rows
                batch.append(queue.popleft())
            if queue:
                # At the end: a crowd that asks one way must not starve those who ask another.
                self._queues[key] = queue
            self._waiting -= sum(job.requests for job in batch)
            self._count(batch)
            return batch

    def _count(self, batch: Sequence[_Job]) -> None:
        """With the lock of the queue held."""
        self.figures.requests.observe(sum(job.requests for job in batch))
        self.figures.rows.observe(sum(job.rows for job in batch) or _count_rows(batch[0].feeds))

    def _answer(self, batch: Sequence[_Job]) -> list[tuple[_Job, Answer | Exception]]:
        if len(batch) > 1:
            shared = self._answer_together(batch)
            if shared is not None:
                return list(zip(batch, shared, strict=True))
        return [(job, self._answer_alone(job)) for job in batch]

    def _answer_alone(self, job: _Job) -> Answer | Exception:
        try:
            return self._call_model(job.signature, job.feeds)
        except HotdeltaError as error:
            return error
        except Exception as error:
            # The edge of a prediction thread: whatever it is, the thread lives on and the request hears of it.
            logger.exception("unexpected failure of a prediction thread")
            return PredictionError(f"the prediction failed: {error!r}")

    def _answer_together(self, batch: Sequence[_Job]) -> list[Answer] | None:
        """None when it did not work: then each is asked alone, and only the one at fault fails."""
        first = batch[0]
        answer = self._answer_alone(_Job(first.signature, _joined(batch), 0, first.future))
        return None if isinstance(answer, Exception) else self._shares(batch, answer)

    def _shares(self, batch: Sequence[_Job], answer: Answer) -> list[Answer] | None:
        """To each its rows; None when there are others."""
        outputs, version = answer
        if len(batch) == 1:
            return [answer]
        ends = np.cumsum([job.rows for job in batch])
        if any(array.ndim == 0 or len(array) != ends[-1] for array in outputs.values()):
            # This model's outputs are not one row for each input row: never batch it again.
            self._alone.add(batch[0].signature)
            return None
        return [
            ({name: array[end - job.rows : end] for name, array in outputs.items()}, version)
            for job, end in zip(batch, ends, strict=True)
        ]

    def _deliver(self, answers: Sequence[tuple[_Job, Answer | Exception]], processor_seconds: float) -> None:
        if self._loop is not None:
            # Closed: a server that stops does not wait for ever for what a model is busy with.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._resolve, answers, processor_seconds)

    def _resolve(self, answers: Sequence[tuple[_Job, Answer | Exception]], processor_seconds: float) -> None:
        """In the event loop."""
        first, _ = answers[0]
        if first.rows:
            rows = sum(job.rows for job, _ in answers)
            self._pace(first.signature, rows).observe_in_thread(processor_seconds)
        for job, answer in answers:
            if job.deadline is not None:
                job.deadline.cancel()
            if job.future.done():
                continue
            if isinstance(answer, Exception):
                job.future.set_exception(answer)
            else:
                job.future.set_result(answer)


def _count_rows(feeds: Mapping[str, Array]) -> int:
    """Of a request that has a call of its own: as many as its first input has."""
    return next((len(array) for array in feeds.values() if array.ndim), 1)


def _key_of(job: _Job) -> Hashable:
    """What requests have in common that can share a call."""
    return (job.signature, *((name, array.shape[1:]) for name, array in job.feeds.items()))


def _joined(batch: Sequence[_Job]) -> Mapping[str, Array]:
    """The rows of all of them, one below the other."""
    first = batch[0].feeds
    if len(batch) == 1:
        return first
    return {name: np.concatenate([job.feeds[name] for job in batch]) for name in first}
