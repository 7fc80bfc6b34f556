"""Who is told how saving goes: Prometheus, at a port of its own or by a registry, and TensorBoard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.errors import ConfigurationError
from hotdelta.event_file import EventFile
from hotdelta.prometheus import counter, gauge, histogram
from hotdelta.remote.publish.figures import PublishFigures
from hotdelta.train.save.figures import SaveFigures
from hotdelta.train.save.options import Telling, WriterStatus

_LABELS = ("directory",)
_KIND = ("directory", "kind")


class SaveTelling:
    """Tells of one chain, from `open` to `close`, whoever its options name.

    `open` and `close` are for whoever begins and ends the saving, `tell` for the threads that commit.
    """

    def __init__(self, options: Telling, run_dir: Path, figures: SaveFigures, status: WriterStatus) -> None:
        self._options = options
        self._source = Source(str(run_dir), figures, status)
        self._is_open = False
        self._server: tuple[Any, threading.Thread] | None = None
        self._events = EventFile(options.tensorboard_dir) if options.tensorboard_dir is not None else None

    def open(self) -> None:
        """May be called again. Raises ConfigurationError when the port is taken."""
        if self._is_open:
            return
        if self._options.metrics_port is not None:
            self._server = _listen(self._options, SaveCollector(self._source))
        if self._options.metrics_registry is not None:
            _shared_collectors.add(self._options.metrics_registry, self._source)
        self._is_open = True

    def close(self) -> None:
        """May be called again."""
        if not self._is_open:
            return
        self._is_open = False
        if self._options.metrics_registry is not None:
            _shared_collectors.remove(self._options.metrics_registry, self._source)
        if self._server is not None:
            (server, thread), self._server = self._server, None
            server.shutdown()
            server.server_close()
            thread.join()
        if self._events is not None:
            self._events.close()

    def tell(self, manifest: Manifest, now: float) -> None:
        """A delta was committed, at this time of the wall clock."""
        if self._events is not None:
            values = {
                "hotdelta/lag_seconds": max(0.0, now - manifest.created_at),
                "hotdelta/rows": manifest.rows_changed,
                "hotdelta/bytes": manifest.total_bytes,
            }
            self._events.write(values, step=manifest.step, now=now)


def _listen(options: Telling, collector: Collector) -> tuple[Any, threading.Thread]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    for of_process in (ProcessCollector, PlatformCollector, GCCollector):
        of_process(registry=registry)
    host, port = options.address
    try:
        return start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigurationError(
            f"metrics_port {options.metrics_port}: {error.strerror}",
            hint="give another one, or several trainers of a process one metrics_registry",
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What one chain has counted."""

    directory: str
    figures: SaveFigures
    status: WriterStatus


class SaveCollector(Collector):
    """Reads what chains have counted, when somebody scrapes. For any thread."""

    def __init__(self, *sources: Source) -> None:
        self.sources: tuple[Source, ...] = sources

    def describe(self) -> Iterable[Metric]:
        """Nobody else has these names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        sources = self.sources
        yield from _commits(sources)
        yield from _times(sources)
        yield from _newest([source for source in sources if source.figures.newest is not None])
        published = [(one.directory, one.status.publishing) for one in sources]
        yield from _published([(here, figures) for here, figures in published if figures is not None])


class _SharedCollectors:
    """One collector for each registry, because a metric may be told once only, however many chains have it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._collectors: WeakKeyDictionary[Any, SaveCollector] = WeakKeyDictionary()

    def add(self, registry: Any, source: Source) -> None:
        with self._guard:
            collector = self._collectors.get(registry)
            if collector is None:
                collector = self._collectors[registry] = SaveCollector()
                registry.register(collector)
            collector.sources += (source,)

    def remove(self, registry: Any, source: Source) -> None:
        with self._guard:
            collector = self._collectors[registry]
            collector.sources = tuple(other for other in collector.sources if other is not source)
            if not collector.sources:
                registry.unregister(collector)
                del self._collectors[registry]


_shared_collectors = _SharedCollectors()


def _commits(sources: Sequence[Source]) -> Iterator[Metric]:
    yield counter(
        "hotdelta_trainer_commits_total",
        "Fulls and deltas that were committed.",
        _KIND,
        [((one.directory, kind), one.figures.commits[kind]) for one in sources for kind in Kind],
    )
    yield counter(
        "hotdelta_trainer_bytes_total",
        "Bytes of their files.",
        _KIND,
        [((one.directory, kind), one.figures.bytes[kind]) for one in sources for kind in Kind],
    )
    yield counter(
        "hotdelta_trainer_rows_total",
        "Rows that deltas carried: those that were touched, or have changed.",
        ("directory", "table"),
        [
            ((one.directory, table), rows)
            for one in sources
            for table, rows in tuple(one.figures.rows.items())
        ],
    )
    yield counter(
        "hotdelta_trainer_failures_total",
        "Saves that failed, and are due again.",
        _LABELS,
        [((one.directory,), one.status.failures) for one in sources],
    )
    yield counter(
        "hotdelta_trainer_postponed_total",
        "Saves that were due and had to wait for another one.",
        _LABELS,
        [((one.directory,), one.status.postponed) for one in sources],
    )
    yield counter(
        "hotdelta_trainer_unrecorded_rows_total",
        "Rows that nothing recorded, and the scrub found.",
        _LABELS,
        [((one.directory,), one.status.rows_unrecorded) for one in sources],
    )


def _times(sources: Sequence[Source]) -> Iterator[Metric]:
    yield histogram(
        "hotdelta_trainer_stall_seconds",
        "How long training stood still for a cut.",
        _LABELS,
        [((one.directory,), one.figures.stall) for one in sources],
    )
    yield histogram(
        "hotdelta_trainer_write_seconds",
        "How long a commit was written, while training went on.",
        _KIND,
        [((one.directory, kind), found) for one in sources for kind, found in one.figures.write.items()],
    )
    yield histogram(
        "hotdelta_trainer_lag_seconds",
        "From the cut of a delta to its commit.",
        _LABELS,
        [((one.directory,), one.figures.lag) for one in sources],
    )


def _newest(sources: Sequence[Source]) -> Iterator[Metric]:
    """Of sources that have committed something."""
    newest = [((one.directory,), one.figures.newest) for one in sources]
    known = [(here, manifest) for here, manifest in newest if manifest is not None]
    yield gauge(
        "hotdelta_trainer_run",
        "The run of the newest commit: the first number of its position.",
        _LABELS,
        [(here, manifest.position.run) for here, manifest in known],
    )
    yield gauge(
        "hotdelta_trainer_seq",
        "The newest commit: the second number of its position.",
        _LABELS,
        [(here, manifest.position.seq) for here, manifest in known],
    )
    yield gauge(
        "hotdelta_trainer_step",
        "The training step of the newest commit.",
        _LABELS,
        [(here, manifest.step) for here, manifest in known],
    )
    yield gauge(
        "hotdelta_trainer_last_commit_timestamp_seconds",
        "When it was committed.",
        _LABELS,
        [((one.directory,), one.figures.committed_at or 0.0) for one in sources],
    )


def _published(sources: Sequence[tuple[str, PublishFigures]]) -> Iterator[Metric]:
    """Of chains whose directory was given as the address of a store."""
    kinds = [(here, figures, str(kind)) for here, figures in sources for kind in Kind]
    yield counter(
        "hotdelta_trainer_published_total",
        "Fulls and deltas that are in the store.",
        _KIND,
        [((here, kind), figures.commits[kind]) for here, figures, kind in kinds],
    )
    yield counter(
        "hotdelta_trainer_published_bytes_total",
        "Bytes of their files.",
        _KIND,
        [((here, kind), figures.bytes[kind]) for here, figures, kind in kinds],
    )
    yield histogram(
        "hotdelta_trainer_publish_lag_seconds",
        "From the cut of a commit until it was in the store.",
        _KIND,
        [((here, kind), figures.lag[kind]) for here, figures, kind in kinds],
    )
    yield counter(
        "hotdelta_trainer_publish_failures_total",
        "Requests to the store that failed, and are made again.",
        _LABELS,
        [((here,), figures.failures) for here, figures in sources],
    )
    yield counter(
        "hotdelta_trainer_folded_total",
        "Deltas that went to the store in one with others, while publishing lagged.",
        _LABELS,
        [((here,), figures.folded) for here, figures in sources],
    )
    yield counter(
        "hotdelta_trainer_passed_over_total",
        "Commits that cannot be published, because their files are damaged here.",
        _LABELS,
        [((here,), figures.passed_over) for here, figures in sources],
    )
    waiting = [(here, figures.unpublished) for here, figures in sources]
    yield gauge(
        "hotdelta_trainer_unpublished_commits",
        "Commits that are on disk and not yet in the store.",
        _KIND,
        [
            item
            for here, left in waiting
            for item in (((here, str(Kind.FULL)), left.fulls), ((here, str(Kind.DELTA)), left.deltas))
        ],
    )
    yield gauge(
        "hotdelta_trainer_unpublished_bytes",
        "Bytes of their files.",
        _LABELS,
        [((here,), left.bytes) for here, left in waiting],
    )
