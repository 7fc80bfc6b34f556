"""What answering has come to. On the way of every prediction: a few additions for each, no locks, no objects."""

from __future__ import annotations

from hotdelta.figures import ANSWER_SECONDS, BATCH_SIZES, Histogram


class PredictFigures:
    """Predictions of one model that were answered, by the protocol that asked. Belongs to the event loop."""

    def __init__(self) -> None:
        self.seconds: dict[str, Histogram] = {}

    def observe(self, protocol: str, seconds: float) -> None:
        histogram = self.seconds.get(protocol)
        if histogram is None:
            histogram = self.seconds[protocol] = Histogram(ANSWER_SECONDS)
        histogram.observe(seconds)


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
