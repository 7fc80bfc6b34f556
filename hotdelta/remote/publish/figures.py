"""What publishing has come to: counted by the threads that send, and read by whoever watches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.figures import STAGE_SECONDS, Histogram
from hotdelta.remote.publish.outbox import Unpublished


class PublishFigures:
    """Counts of one store. Each kind of commit is counted by one thread, failures by any of them.

    `newest`: the newest position of each kind that is published by this trainer; `lag`: from the cut to that, by kind;
    `folded`: deltas that went there in one with others; `passed_over`: commits that cannot be published, because their
    files are damaged; `away_since`: on the wall clock.
    """

    def __init__(self, store: str) -> None:
        self.store = store
        self.commits: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.lag = {str(kind): Histogram(STAGE_SECONDS) for kind in Kind}
        self.newest: dict[str, Position] = {}
        self.failures = 0
        self.folded = 0
        self.passed_over = 0
        self.last_error = ""
        self.away_since: float | None = None
        self.count_unpublished: Callable[[], Unpublished] = Unpublished

    @property
    def unpublished(self) -> Unpublished:
        return self.count_unpublished()

    def count(self, manifest: Manifest) -> float:
        """A commit is published. Returns how long that took from its cut."""
        kind, lag = str(manifest.kind), max(0.0, time.time() - manifest.created_at)
        self.commits[kind] += 1
        self.bytes[kind] += manifest.total_bytes
        self.lag[kind].observe(lag)
        self.newest[kind] = manifest.position
        self.away_since = None
        return lag

    def count_failure(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = str(error)
        if self.away_since is None:
            self.away_since = time.time()
