"""All metrics of a server, by their names. docs/metrics.md describes each; a test compares the two."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import hotdelta
from hotdelta.figures import Histogram
from hotdelta.prometheus import Labels, counter, gauge, histogram
from server.figures import ClientFigures, RequestFigures
from server.http.connection_limits import ConnectionLimits
from server.models.mirrored import stores_of
from server.models.models import Models
from server.predict.data_plane import DataPlane

if TYPE_CHECKING:
    from loader import LoaderStatus

_MODEL = ("model",)
_TABLE = ("model", "table")
_CAUSE = ("model", "cause")
_STORE = ("model", "store")

# What `update_state` may be.
STATES = ("waiting", "following", "degraded", "pinned", "static")


class FrontEndFigures(Protocol):
    """What front-end processes have come to."""

    @property
    def running(self) -> int: ...

    @property
    def restarts(self) -> int: ...

    @property
    def clients(self) -> ClientFigures: ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """A model at one scrape. Without a name before there is one, which Prometheus takes for no label."""

    name: str
    plane: DataPlane
    status: LoaderStatus


class ServerCollector(Collector):
    """Reads everything when it is asked. For any thread."""

    def __init__(
        self,
        models: Models,
        requests: Mapping[str, RequestFigures],
        limits: ConnectionLimits,
        front_ends: FrontEndFigures | None = None,
    ) -> None:
        """`requests`: by protocol."""
        self._front_ends = front_ends
        self._models = models
        self._requests = requests
        self._limits = limits
        self._build = (hotdelta.__version__, platform.python_version(), _tensorflow_version())

    def describe(self) -> Iterable[Metric]:
        """Nobody else has these names, and nothing is known of a model before it is there."""
        return ()

    def collect(self) -> Iterator[Metric]:
        seen = [
            _Seen(entry.name or "", entry.plane, entry.plane.model.status())
            for entry in self._models.entries()
        ]
        yield gauge(
            "hotdelta_build_info",
            "Always 1; the labels say what runs.",
            ("version", "python", "tensorflow"),
            [(self._build, 1)],
        )
        yield from _position(seen)
        yield from _updates(seen)
        yield from _tables(seen)
        yield from _refused(seen)
        yield from self._stores()
        yield from _predictions(seen)
        yield from self._protocols()
        if self._front_ends is not None:
            yield from _front_ends(self._front_ends)

    def _stores(self) -> Iterator[Metric]:
        found = [
            ((entry.name or "", store.address), store)
            for entry in self._models.entries()
            for store in stores_of(entry.model)
        ]
        yield gauge(
            "hotdelta_store_reached",
            "1 when the last question to the store was answered.",
            _STORE,
            [(labels, store.is_reached) for labels, store in found],
        )
        yield gauge(
            "hotdelta_store_answered_timestamp_seconds",
            "When the store last answered.",
            _STORE,
            [(labels, store.answered_at) for labels, store in found if store.answered_at is not None],
        )
        yield counter(
            "hotdelta_store_failures_total",
            "Requests to the store that failed.",
            _STORE,
            [(labels, store.failures) for labels, store in found],
        )
        yield counter(
            "hotdelta_store_fetched_bytes_total",
            "Bytes of commits and exports that were fetched.",
            _STORE,
            [(labels, store.fetched_bytes) for labels, store in found],
        )
        yield counter(
            "hotdelta_store_fetched_total",
            "Commits and exports that were fetched.",
            _STORE,
            [(labels, store.fetched_commits + store.fetched_exports) for labels, store in found],
        )
        yield gauge(
            "hotdelta_store_damaged",
            "Commits in the store that are damaged and were not fetched.",
            _STORE,
            [(labels, len(store.damaged)) for labels, store in found],
        )
        yield gauge(
            "hotdelta_mirror_bytes",
            "Disk that takes what was fetched.",
            _STORE,
            [(labels, store.local_bytes) for labels, store in found],
        )

    def _protocols(self) -> Iterator[Metric]:
        found = self._requests.items()
        clients = ClientFigures() if self._front_ends is None else self._front_ends.clients
        yield counter(
            "hotdelta_requests_total",
            "Requests by the status of their answer.",
            ("protocol", "status"),
            [
                ((name, str(status)), count)
                for name, told in found
                for status, count in tuple(told.statuses.items())
            ],
        )
        yield histogram(
            "hotdelta_request_seconds",
            "From the first byte of the body that is read to the answer, errors included.",
            ("protocol",),
            [((name,), told.seconds) for name, told in found],
        )
        yield gauge(
            "hotdelta_buffered_bytes",
            "Request bodies and answers that are held, of all connections.",
            (),
            [((), self._limits.buffered.bytes + clients.buffered_bytes)],
        )
        yield counter(
            "hotdelta_refused_clients_total",
            "Clients that were refused because others have all that there is, by the limit.",
            ("limit",),
            [
                (("connections",), self._limits.refusals.count + clients.refused_connections),
                (("buffered_bytes",), self._limits.buffered.refusals.count + clients.refused_bytes),
            ],
        )


def _front_ends(front_ends: FrontEndFigures) -> Iterator[Metric]:
    yield gauge(
        "hotdelta_front_ends", "Front-end processes that take connections.", (), [((), front_ends.running)]
    )
    yield counter(
        "hotdelta_front_end_restarts_total",
        "Front-end processes that ended and were started again.",
        (),
        [((), front_ends.restarts)],
    )


def _of_models(
    seen: Iterable[_Seen], value_of: Callable[[LoaderStatus], float | None]
) -> list[tuple[Labels, float]]:
    """By model; those of which there is nothing to say are left out."""
    values = ((each.name, value_of(each.status)) for each in seen)
    return [((name,), value) for name, value in values if value is not None]


def _position(seen: list[_Seen]) -> Iterator[Metric]:
    def told(name: str, text: str, value_of: Callable[[LoaderStatus], float | None]) -> Metric:
        return gauge(name, text, _MODEL, _of_models(seen, value_of))

    yield told("hotdelta_ready", "1 when predictions can be answered.", lambda status: status.is_ready)
    yield gauge(
        "hotdelta_update_state",
        "1 for how the following goes, 0 for the other states.",
        ("model", "state"),
        [((each.name, state), each.status.state == state) for each in seen for state in STATES],
    )
    yield told("hotdelta_export_version", "The export that is served.", lambda status: status.export_version)
    yield told(
        "hotdelta_live_run",
        "The run of the position that is served: its first number.",
        lambda status: status.node.position.run if status.node else None,
    )
    yield told(
        "hotdelta_live_seq",
        "The commit of the position that is served: its second number.",
        lambda status: status.node.position.seq if status.node else None,
    )
    yield told("hotdelta_live_step", "The training step that is served.", lambda status: status.step)
    yield told(
        "hotdelta_newest_run",
        "The run of the newest commit on disk.",
        lambda status: status.newest_on_disk.run if status.newest_on_disk else None,
    )
    yield told(
        "hotdelta_newest_seq",
        "The newest commit on disk.",
        lambda status: status.newest_on_disk.seq if status.newest_on_disk else None,
    )
    yield told(
        "hotdelta_behind_seconds",
        "How old the oldest commit is that is not served yet; 0 when all are.",
        lambda status: status.seconds_behind if status.is_ready else None,
    )
    yield told(
        "hotdelta_behind_commits",
        "Commits that are newer than what is served.",
        lambda status: status.commits_behind if status.is_ready else None,
    )
    yield told(
        "hotdelta_held_back_commits",
        "Commits that are there and may not be taken yet (--behind-seconds, --behind-server).",
        lambda status: status.held_back if status.is_ready else None,
    )
    yield told(
        "hotdelta_leader_silent",
        "1 while the server of --behind-server is not heard of, so that nothing new is taken.",
        lambda status: bool(status.silent_leader) if status.is_ready else None,
    )
    yield told(
        "hotdelta_live_since_timestamp_seconds",
        "When the position that is served was applied.",
        lambda status: status.applied_at,
    )
    yield told(
        "hotdelta_pinned",
        "1 while an operator, or --pin, holds the model at a position.",
        lambda status: status.pinned is not None,
    )


def _updates(seen: list[_Seen]) -> Iterator[Metric]:
    figures = [(each.name, each.plane.model.figures) for each in seen]
    yield counter(
        "hotdelta_updates_total",
        "Updates that were applied to the live model.",
        ("model", "kind"),
        [((name, kind), told.updates[kind]) for name, told in figures for kind in ("delta", "full")],
    )
    yield counter(
        "hotdelta_update_bytes_total",
        "Bytes of the files of updates that were applied.",
        _MODEL,
        [((name,), told.bytes) for name, told in figures],
    )
    yield histogram(
        "hotdelta_update_stage_seconds",
        "What each stage of an update took.",
        ("model", "stage"),
        [((name, stage), found) for name, told in figures for stage, found in told.stages.items()],
    )
    yield histogram(
        "hotdelta_update_lag_seconds",
        "From the commit of an update to the first answer that used it.",
        _MODEL,
        [((name,), told.served) for name, told in figures],
    )
    yield counter(
        "hotdelta_update_failures_total",
        "Attempts to take an update that failed: nothing was changed by them.",
        _CAUSE,
        [((name, cause), count) for name, told in figures for cause, count in tuple(told.failures.items())],
    )
    yield gauge(
        "hotdelta_undo_updates",
        "Updates that can be undone from memory.",
        _MODEL,
        _of_models(seen, lambda status: status.undo_depth),
    )
    yield gauge(
        "hotdelta_undo_bytes",
        "Memory that undoing them takes.",
        _MODEL,
        _of_models(seen, lambda status: status.undo_bytes),
    )
    yield gauge(
        "hotdelta_undo_budget_bytes",
        "Memory that it may take: --undo-bytes.",
        _MODEL,
        _of_models(seen, lambda status: status.undo_budget_bytes),
    )


def _tables(seen: list[_Seen]) -> Iterator[Metric]:
    tables = [((each.name, table.key), table) for each in seen for table in each.status.tables]
    yield gauge(
        "hotdelta_table_rows", "Rows in use.", _TABLE, [(labels, table.rows) for labels, table in tables]
    )
    yield gauge(
        "hotdelta_table_max_rows",
        "Rows that a growing table has room for.",
        _TABLE,
        [(labels, table.max_rows) for labels, table in tables if table.max_rows is not None],
    )
    yield counter(
        "hotdelta_unknown_keys_total",
        "Keys that were asked for and that the table does not have; from 0 with each model that is loaded.",
        _TABLE,
        [(labels, table.unknown_keys) for labels, table in tables if table.unknown_keys is not None],
    )
    figures = [(each.name, each.plane.model.figures) for each in seen]
    for metric, text, counts_by_model in (
        (
            "hotdelta_update_rows_total",
            "Rows that updates have written.",
            [(name, told.rows) for name, told in figures],
        ),
        (
            "hotdelta_keys_new_total",
            "Keys that came with deltas.",
            [(name, told.keys_new) for name, told in figures],
        ),
        (
            "hotdelta_keys_deleted_total",
            "Keys that went with deltas.",
            [(name, told.keys_deleted) for name, told in figures],
        ),
    ):
        values = [
            ((name, table), count)
            for name, counts in counts_by_model
            for table, count in tuple(counts.items())
        ]
        yield counter(metric, text, _TABLE, values)


def _refused(seen: list[_Seen]) -> Iterator[Metric]:
    found: dict[tuple[str, str], int] = {}
    for each in seen:
        for item in each.status.quarantined:
            found[each.name, item.cause] = found.get((each.name, item.cause), 0) + 1
    yield gauge(
        "hotdelta_quarantined",
        "States and exports that are there and are not served.",
        _CAUSE,
        list(found.items()),
    )
    yield gauge(
        "hotdelta_refused_manifests",
        "Files that should be manifests and are none that can be used; counts no further than 20.",
        _MODEL,
        _of_models(seen, lambda status: len(status.refused)),
    )


def _predictions(seen: list[_Seen]) -> Iterator[Metric]:
    def batches(name: str, text: str, figures_of: Callable[[DataPlane], Histogram]) -> Metric:
        return histogram(name, text, _MODEL, [((each.name,), figures_of(each.plane)) for each in seen])

    yield histogram(
        "hotdelta_predict_seconds",
        "From a request that is read to its outputs: waiting for the model included, errors not.",
        ("model", "protocol"),
        [
            ((each.name, protocol), found)
            for each in seen
            for protocol, found in tuple(each.plane.figures.seconds.items())
        ],
    )
    yield batches(
        "hotdelta_batch_requests",
        "Requests that shared a call.",
        lambda plane: plane.batcher.figures.requests,
    )
    yield batches("hotdelta_batch_rows", "Rows of a call.", lambda plane: plane.batcher.figures.rows)
    yield gauge(
        "hotdelta_queue_requests",
        "Requests that wait for the model.",
        _MODEL,
        [((each.name,), each.plane.batcher.waiting) for each in seen],
    )
    yield gauge(
        "hotdelta_queue_max_requests",
        "Requests that may wait for it: --max-queue.",
        _MODEL,
        [((each.name,), each.plane.batcher.max_queue) for each in seen],
    )


def _tensorflow_version() -> str:
    """Without importing it."""
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""
