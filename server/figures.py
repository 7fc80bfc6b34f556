"""What answering has come to. On the way of every prediction: a few additions for each, no locks, no objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotdelta.figures import ANSWER_SECONDS, BATCH_SIZES, Histogram


class PredictFigures:
    """Predictions of one model that were answered, by the protocol that asked. Belongs to the event loop."""

    def __init__(self) -> None:
        self.seconds: dict[str, Histogram] = {}

    def observe(self, protocol: str, seconds: float, *, times: int = 1) -> None:
        histogram = self.seconds.get(protocol)
        if histogram is None:
            histogram = self.seconds[protocol] = Histogram(ANSWER_SECONDS)
        histogram.observe(seconds, times)


class BatchFigures:
    """Calls of one model. Counted with the lock of the queue held."""

    def __init__(self) -> None:
        self.requests = Histogram(BATCH_SIZES)
        self.rows = Histogram(BATCH_SIZES)


class RequestFigures:
    """Requests of one protocol, from the first byte of the body that is read to the answer. Belongs to the event loop.

    What the connection itself refuses is not among them. Statuses are those of HTTP, or the names of gRPC's.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(ANSWER_SECONDS)
        self.statuses: dict[int | str, int] = {}

    def observe(self, status: int | str, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.seconds.observe(seconds)

    def take(self) -> dict[str, Any]:
        """What was counted since the last time, for `add` in another process."""
        counted, statuses = self.seconds.read(), self.statuses
        self.seconds, self.statuses = Histogram(ANSWER_SECONDS), {}
        return {"statuses": list(statuses.items()), "counts": counted.counts, "seconds": counted.sum}

    def add(self, taken: Mapping[str, Any]) -> None:
        for status, count in taken["statuses"]:
            self.statuses[status] = self.statuses.get(status, 0) + count
        self.seconds.add(taken["counts"], taken["seconds"])


class ClientFigures:
    """What the clients of front-ends have come to: bytes that are held now, and who was refused so far."""

    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.refused_connections = 0
        self.refused_bytes = 0
