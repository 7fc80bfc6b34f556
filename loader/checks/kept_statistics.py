"""Keeps the statistics of updates over a restart, so that a restarted server knows an outlier from its first update on.

One small file in the state directory, written in a thread of its own. What cannot be read or written is logged, and
costs no more than the statistics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hotdelta.chain import Disk
from hotdelta.chain.store.small_file import replace_file
from hotdelta.logs import event
from loader.checks.sanity import Usual
from loader.checks.sanity_statistics import KnownUpdates, SanityStatistics, Summary
from loader.files.state_documents import (
    MALFORMED,
    decode,
    encode,
    nodes_from_json,
    nodes_to_json,
    position_from_json,
    position_to_json,
)

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
STATISTICS_FILE = "statistics.json"
KEEP_SECONDS = 10.0
MAX_BYTES = 64 * 2**20


def read_statistics(state_dir: Path | None) -> KnownUpdates:
    """What an earlier process knew; nothing when there was none, or when what it left cannot be used."""
    if state_dir is None:
        return KnownUpdates()
    path = state_dir / STATISTICS_FILE
    try:
        with path.open("rb") as file:
            return _decode(file.read(MAX_BYTES))
    except FileNotFoundError:
        return KnownUpdates()
    except (OSError, *MALFORMED) as error:
        event(logger, logging.WARNING, "statistics are begun afresh", path=path, reason=repr(error))
        return KnownUpdates()


class KeptStatistics:
    """Writes what changed, now and then. `keep` and `close` are for the thread that owns the statistics."""

    def __init__(
        self,
        state_dir: Path,
        statistics: SanityStatistics,
        *,
        clock: Callable[[], float],
        disk: Disk | None = None,
    ) -> None:
        self._path = state_dir / STATISTICS_FILE
        self._statistics = statistics
        self._clock = clock
        self._disk = disk or Disk()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="hotdelta-statistics")
        self._writing: Future[None] | None = None
        self._kept = statistics.known()
        self._next = clock() + KEEP_SECONDS

    def keep(self) -> None:
        """Call between updates: begins to write when something is new and the last time was long enough ago."""
        is_writing = self._writing is not None and not self._writing.done()
        if not is_writing and self._clock() >= self._next:
            self._begin()

    def close(self) -> None:
        """Writes what is new, and waits for it."""
        self._begin()
        self._writer.shutdown(wait=True)

    def _begin(self) -> None:
        known = self._statistics.known()
        self._next = self._clock() + KEEP_SECONDS
        if known != self._kept:
            self._kept = known
            self._writing = self._writer.submit(self._write, known)

    def _write(self, known: KnownUpdates) -> None:
        try:
            replace_file(self._disk, self._path, _encode(known))
        except OSError as error:
            event(
                logger,
                logging.WARNING,
                "statistics cannot be kept",
                path=self._path,
                reason=error.strerror,
            )


def _encode(known: KnownUpdates) -> bytes:
    document = {
        "until": position_to_json(known.until),
        "variables": {
            key: {
                "updates": summary.updates,
                "max_norm": summary.usual.max_norm,
                "max_change": summary.usual.max_change,
                "touched_share": summary.usual.touched_share,
            }
            for key, summary in known.variables.items()
        },
        "refused": nodes_to_json(known.refused),
    }
    return encode(document, version=FORMAT_VERSION)


def _decode(content: bytes) -> KnownUpdates:
    """Raises what is in MALFORMED."""
    document = decode(content, version=FORMAT_VERSION)
    variables = {key: _decode_summary(item) for key, item in document["variables"].items()}
    until, refused = position_from_json(document["until"]), nodes_from_json(document["refused"])
    return KnownUpdates(until, variables, refused)


def _decode_summary(item: Any) -> Summary:
    figures = [float(item[name]) for name in ("max_norm", "max_change", "touched_share")]
    updates = int(item["updates"])
    if updates < 0 or any(not math.isfinite(figure) or figure < 0 for figure in figures):
        raise ValueError(f"{item} are no statistics")
    return Summary(updates, Usual(*figures))
