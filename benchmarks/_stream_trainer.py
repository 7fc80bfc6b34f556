"""A Keras trainer in a process of its own that learns from a stream of events, saving as often as it is told.

For `freshness`. An event happens at a moment of the clock, whether the trainer keeps up or not; a batch is the events
of `BATCH_SECONDS`, and can be read when its last one has happened.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np

import hotdelta.keras as hk

ROWS, COLUMNS, IDS, BATCH = 1_000_000, 16, 8, 256
HIDDEN = (512, 256)
ZIPF_EXPONENT = 1.1
BATCH_SECONDS = 0.02
# Batches before the stream begins: Keras looks at two, the first step is traced, the first delta is slow.
WARM_UP_BATCHES = 20
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Burst:
    """Events without a break for `seconds`, then none for `silence`."""

    seconds: float
    silence: float = 0.0


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one batch: when the first and the last happened, and when the step that learnt them ended."""

    first: float
    last: float
    trained: float
    burst: int
    is_end_of_burst: bool


@dataclass(frozen=True, slots=True)
class Beginning:
    """The stream begins: what came before was warm-up."""

    at: float


class StreamTrainer:
    """The process. One call at a time; `stop` ends it in whatever it is."""

    def __init__(self, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._calls, others = context.Pipe()
        self._process = context.Process(
            target=_obey, args=(others, directory), name="stream-trainer", daemon=True
        )
        self._process.start()
        others.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._calls.close()
        self._process.terminate()
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def begin_chain(self) -> None:
        """A first full, so that there is something to export."""
        self._calls.send(("begin_chain", ()))
        self._receive()

    def begin_stream(self, interval: float, bursts: list[Burst]) -> Beginning:
        """Learn from a stream; `end_stream` tells what was learnt."""
        self._calls.send(("learn", (interval, bursts)))
        beginning: Beginning = self._receive()
        return beginning

    def end_stream(self) -> list[Batch]:
        batches: list[Batch] = self._receive()
        return batches

    def steps_per_second(self, interval: float | None, seconds: float) -> float:
        """Without waiting for events. None: without saving; each interval has a model of its own."""
        self._calls.send(("steps_per_second", (interval, seconds)))
        rate: float = self._receive()
        return rate

    def _receive(self) -> Any:
        try:
            return self._calls.recv()
        except EOFError:
            raise SystemExit("the trainer ended; its error is above") from None


def _obey(calls: Connection, directory: Path) -> None:
    # fit ends when the stream does, and Keras would call that running out of data.
    warnings.filterwarnings("ignore", "Your input ran out of data")
    try:
        trainer = _Trainer(directory, calls)
        while True:
            method, arguments = calls.recv()
            calls.send(getattr(trainer, method)(*arguments))
    except (EOFError, KeyboardInterrupt):
        return


class _Trainer:
    def __init__(self, directory: Path, calls: Connection) -> None:
        self._directory = directory
        self._calls = calls
        self._data = _examples(512)
        self._model = build()
        self._racers: dict[float | None, tuple[keras.Model, list[Any]]] = {}

    def begin_chain(self) -> None:
        with hk.DeltaCheckpoint(self._directory / "run", None, None) as checkpoint:
            checkpoint.resume(self._model)

    def learn(self, interval: float, bursts: list[Burst]) -> list[Batch]:
        with hk.DeltaCheckpoint(
            self._directory / "run", save_secs=None, save_incremental_secs=interval
        ) as checkpoint:
            stream = _Stream(self._data, bursts, self._calls)
            ends, warm_up = _StepEnds(), _WarmUp(checkpoint, stream.warm_up_over)
            self._model.fit(iter(stream), shuffle=False, verbose=0, callbacks=[ends, checkpoint, warm_up])
        times = ends.times[WARM_UP_BATCHES:]
        return [
            Batch(first, last, trained, burst, is_end)
            for (first, last, burst, is_end), trained in zip(stream.log, times, strict=True)
        ]

    def steps_per_second(self, interval: float | None, seconds: float) -> float:
        if interval not in self._racers:
            self._racers[interval] = self._racer(interval)
        model, callbacks = self._racers[interval]
        for checkpoint in callbacks:
            checkpoint.save()  # So that the clock of the next delta begins now.
        ends = _StepEnds()
        batches = self._until(time.monotonic() + seconds, is_plain=interval is None)
        model.fit(batches, shuffle=False, verbose=0, callbacks=[ends, *callbacks])
        return (len(ends.times) - 1) / (ends.times[-1] - ends.times[0])

    def _racer(self, interval: float | None) -> tuple[keras.Model, list[Any]]:
        model = build()
        callbacks = []
        if interval is not None:
            directory = self._directory / f"race-{interval:g}"
            callbacks = [hk.DeltaCheckpoint(directory, save_secs=None, save_incremental_secs=interval)]
        batches = self._until(time.monotonic() + 0.5, is_plain=interval is None)
        model.fit(batches, shuffle=False, verbose=0, callbacks=callbacks)
        return model, callbacks

    def _until(self, end: float, *, is_plain: bool) -> Iterator[Any]:
        for number, batch in enumerate(itertools.cycle(self._data)):
            if number >= WARM_UP_BATCHES and time.monotonic() > end:
                return
            yield batch if is_plain else hk.bookmarked(batch, number, time.time())


class _StepEnds(keras.callbacks.Callback):
    """When each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(time.time())


class _WarmUp(keras.callbacks.Callback):
    """Saves once after the warm-up, because a first delta is slow, and tells that it is over."""

    def __init__(self, checkpoint: hk.DeltaCheckpoint, is_over: threading.Event) -> None:
        super().__init__()
        self._checkpoint, self._is_over = checkpoint, is_over

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == WARM_UP_BATCHES - 1:
            self._checkpoint.save()
            self._is_over.set()


class _Stream:
    """Batches at their time, after some without: `warm_up_over` is set when those are trained."""

    def __init__(self, data: list[Any], bursts: list[Burst], calls: Connection) -> None:
        self.warm_up_over = threading.Event()
        self.log: list[tuple[float, float, int, bool]] = []
        self._data = itertools.cycle(data)
        self._bursts = bursts
        self._calls = calls

    def __iter__(self) -> Iterator[Any]:
        for number in range(WARM_UP_BATCHES):
            yield hk.bookmarked(next(self._data), number)
        self.warm_up_over.wait()
        begin = time.time()
        self._calls.send(Beginning(begin))
        for number, (first, last, burst, is_end) in enumerate(self._plan(begin), WARM_UP_BATCHES):
            _wait_until(last)
            self.log.append((first, last, burst, is_end))
            yield hk.bookmarked(next(self._data), number, last)
        _wait_until(begin + sum(burst.seconds + burst.silence for burst in self._bursts))

    def _plan(self, begin: float) -> Iterator[tuple[float, float, int, bool]]:
        for number, burst in enumerate(self._bursts):
            batches = max(1, round(burst.seconds / BATCH_SECONDS))
            for place in range(batches):
                first = begin + place * BATCH_SECONDS
                yield first, first + BATCH_SECONDS, number, place == batches - 1
            begin += burst.seconds + burst.silence


def _wait_until(moment: float) -> None:
    threading.Event().wait(max(0.0, moment - time.time()))


def build() -> keras.Model:
    ids = keras.Input((IDS,), dtype="int64", name="ids")
    layer = keras.layers.Flatten()(hk.Embedding(ROWS, COLUMNS, name="table")(ids))
    for units in HIDDEN:
        layer = keras.layers.Dense(units, "relu")(layer)
    model = keras.Model(ids, keras.layers.Dense(1, name="score")(layer))
    model.compile(hk.Adagrad(0.05), "mse")
    return model


def _examples(batches: int) -> list[Any]:
    """Ids with Zipf frequencies, spread over the table as hashing would."""
    random = np.random.default_rng(1)
    ids = (random.zipf(ZIPF_EXPONENT, (batches, BATCH, IDS)) % ROWS * 2_654_435_761) % ROWS
    labels = random.random((batches, BATCH, 1), np.float32)
    return list(zip(ids, labels, strict=True))
