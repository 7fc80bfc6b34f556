"""What saving has come to: counted when something is committed, and read by whoever watches."""

from __future__ import annotations

from collections import Counter

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.figures import STAGE_SECONDS, Histogram


class SaveFigures:
    """Counts of one chain. Written by the threads that save, each kind of commit by one of them; read by any.

    `stall`: how long training stood still for each delta; `write`: how long a commit took after that, by kind; `lag`:
    from the cut to its commit.
    """

    def __init__(self) -> None:
        self.commits: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.stall = Histogram(STAGE_SECONDS)
        self.write = {str(kind): Histogram(STAGE_SECONDS) for kind in Kind}
        self.lag = Histogram(STAGE_SECONDS)
        self.newest: Manifest | None = None
        self.committed_at: float | None = None

    def count(self, manifest: Manifest, *, write_seconds: float, now: float) -> None:
        """A commit, at this time of the wall clock."""
        kind = str(manifest.kind)
        self.commits[kind] += 1
        self.bytes[kind] += manifest.total_bytes
        self.write[kind].observe(write_seconds)
        if manifest.kind is Kind.DELTA:
            self.lag.observe(max(0.0, now - manifest.created_at))
            for table, record in manifest.tables.items():
                self.rows[table] += record.rows_changed
        self.newest, self.committed_at = manifest, now
