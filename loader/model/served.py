"""What answers now, and the one place where predictions meet updates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from hotdelta.chain import Node, Position
from hotdelta.errors import NotReadyError
from loader.lag import Lag, Stopwatch
from loader.model.gate import Gate
from loader.model.live_model import KeyCounts, LiveModel
from loader.model.table_counts import SeenCounts

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Version:
    """What an answer was made with."""

    position: Position
    step: int
    export_version: int


@dataclass(frozen=True, slots=True)
class Origin:
    """How a state was reached: from which full, and by how many deltas."""

    base: Position | None
    deltas: int


@dataclass(slots=True)
class Served:
    """A model at one state. The first prediction sets `first_served_at`, the updater completes the other times."""

    model: LiveModel
    node: Node
    version: Version
    origin: Origin
    applied_at: float
    lag: Lag | None = None
    first_served_at: float | None = field(default=None)

    @property
    def digest(self) -> str | None:
        """Of this state, if it was counted already."""
        seen = self.model.digest.seen
        return str(seen) if seen is not None and seen.node == self.node else None

    def lag_now(self) -> Lag | None:
        if self.lag is None or self.lag.first_served_at is not None:
            return self.lag
        return replace(self.lag, first_served_at=self.first_served_at)


class Serving:
    """Answers predictions with one state each, and lets one updater change the state in between.

    `predict`, `wait_for` and `current` are for any thread, the rest for the updater.
    """

    def __init__(
        self, gate: Gate, *, wall_clock: Callable[[], float], on_first_served: Callable[[], None]
    ) -> None:
        self._gate = gate
        self._counts = SeenCounts(gate)
        self._wall_clock = wall_clock
        self._on_first_served = on_first_served
        self._served: Served | None = None
        self._published = threading.Condition()
        self._why_not_ready = "the loader has not been started"

    @property
    def current(self) -> Served | None:
        return self._served

    def predict(self, signature: str, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], Version]:
        """One hold of the gate: all of the answer comes from the state that the version names."""
        with self._gate:
            outputs, served = self._ask(signature, feeds)
        return outputs, self._version_of(served)

    def predict_at_once(
        self, signature: str, feeds: Mapping[str, Any]
    ) -> tuple[dict[str, Array], Version] | None:
        """The same for who must not wait: None, and nothing was asked, while an update is at the gate."""
        if not self._gate.try_enter():
            return None
        try:
            outputs, served = self._ask(signature, feeds)
        finally:
            self._gate.leave()
        return outputs, self._version_of(served)

    def _ask(self, signature: str, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], Served]:
        served = self._served
        if served is None:
            raise NotReadyError(f"no model is served yet: {self._why_not_ready}")
        return served.model.predict(signature, feeds), served

    def _version_of(self, served: Served) -> Version:
        """What an answer was made with, which is noted when it is the first."""
        if served.first_served_at is None:
            served.first_served_at = self._wall_clock()
            self._on_first_served()
        return served.version

    def key_counts(self) -> Mapping[str, KeyCounts]:
        """Of the model that is served. Waits for nobody."""
        return self._counts.read(lambda: self._served.model if self._served is not None else None)

    @contextmanager
    def exclusive(self, watch: Stopwatch) -> Iterator[None]:
        """Nobody predicts inside; what waits there is measured as `gate_wait`, what happens there as `apply`."""
        start = watch.clock()
        with self._gate.exclusive():
            watch.add("gate_wait", watch.clock() - start)
            with watch.measure("apply"):
                yield

    def publish(self, served: Served | None) -> None:
        """Call while holding the gate, with the change that it names: from now on answers carry this version."""
        self._served = served

    def announce(self) -> None:
        """Wake those who wait for a position. Call after the gate is open again."""
        with self._published:
            self._published.notify_all()

    def close(self) -> None:
        """Wait for the predictions in flight, answer no more, and free the model."""
        with self._gate.exclusive():
            served, self._served = self._served, None
            self._why_not_ready = "the loader has been stopped"
        if served is not None:
            served.model.close()

    def explain(self, why_not_ready: str) -> None:
        self._why_not_ready = why_not_ready

    def wait_for(self, position: Position, timeout: float) -> bool:
        """Whether `position` or a later one is served within so many seconds."""

        def is_there() -> bool:
            served = self._served
            return served is not None and served.version.position >= position

        with self._published:
            return self._published.wait_for(is_there, timeout)
