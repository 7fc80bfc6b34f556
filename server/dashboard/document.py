"""What the page is told: all of it once, and then what is new."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hotdelta
from hotdelta.chain import Manifest, Node
from server.dashboard.samples import Sample, Samples
from server.figures import RequestFigures
from server.models.entry import Entry
from server.models.mirrored import stores_of
from server.models.models import Models
from server.status.version_document import version_document

if TYPE_CHECKING:
    from loader import Lag, LoaderStatus
    from server.dashboard.fleet import Fleet

NEWEST_COMMITS = 80


class Told:
    """What somebody who looks has been told already, of one model."""

    def __init__(self) -> None:
        # Kept, so that none of them can have the identity of another.
        self.updates: Sequence[Lag] = ()
        self.sampled_at = 0.0
        self.commits: tuple[Manifest, ...] = ()
        self.states: list[str] = []


class Documents:
    """Makes documents for whoever looks. Belongs to the event loop."""

    def __init__(
        self,
        models: Models,
        requests: Mapping[str, RequestFigures],
        samples: Samples,
        *,
        takes_orders: bool,
        fleet: Fleet | None = None,
    ) -> None:
        self._models = models
        self._requests = requests
        self._samples = samples
        self._takes_orders = takes_orders
        self._fleet = fleet

    def model_names(self) -> list[str | None]:
        """As other servers have to be asked for them: None where there is only one."""
        return [None if self._models.is_one_model else entry.name for entry in self._models.entries()]

    def make(self, told: dict[str, Told]) -> dict[str, Any]:
        """What is not in `told`, which is brought up to date. The state of each model is always there."""
        entries = self._models.entries()
        for gone in told.keys() - {entry.name or "" for entry in entries}:
            del told[gone]
        return {
            "version": hotdelta.__version__,
            "now": time.time(),
            "takes_orders": self._takes_orders,
            "requests": {
                protocol: {str(status): count for status, count in sorted(figures.statuses.items())}
                for protocol, figures in self._requests.items()
                if figures.statuses
            },
            "models": [self._model(entry, told) for entry in entries],
        }

    def _model(self, entry: Entry, told: dict[str, Told]) -> dict[str, Any]:
        name = entry.name or ""
        known = told.setdefault(name, Told())
        model = entry.plane.model
        status, recent = model.status(), tuple(model.figures.recent)
        before = set(map(id, known.updates))
        updates = [lag for lag in recent if id(lag) not in before]
        known.updates = recent
        samples = [sample for sample in self._samples.of(name) if sample.at > known.sampled_at]
        if samples:
            known.sampled_at = samples[-1].at
        told_name = None if self._models.is_one_model else name
        state = version_document(status, model=told_name, stores=stores_of(entry.model))
        document: dict[str, Any] = {
            "name": name,
            "orders": "/model" if told_name is None else f"/models/{told_name}",
            "state": state,
            "fleet": [] if self._fleet is None else self._fleet.standings(told_name, state),
            "undo_budget": status.undo_budget_bytes,
            "updates": [_update(lag) for lag in updates],
            "samples": [_sample(sample) for sample in samples],
            "tables": _tables(status, recent, model.figures.keys_new, model.figures.keys_deleted),
        }
        commits = tuple(model.commits(NEWEST_COMMITS))
        states = _states(commits, status)
        if commits != known.commits or states != known.states:
            known.commits, known.states = commits, states
            document["commits"] = [_commit(*each) for each in zip(commits, states, strict=True)]
        return document


def _update(lag: Lag) -> dict[str, Any]:
    return {
        "position": str(lag.position),
        "step": lag.step,
        "kind": lag.kind,
        "rows": lag.rows,
        "bytes": lag.bytes,
        "at": lag.applied_at,
        "served_ms": lag.commit_to_served_ms,
        "stages_ms": lag.stages_ms(),
    }


def _sample(sample: Sample) -> list[float | None]:
    return [sample.at, sample.per_second, *sample.percentiles, sample.waiting]


def _tables(
    status: LoaderStatus,
    recent: Sequence[Lag],
    keys_new: Mapping[str, int],
    keys_deleted: Mapping[str, int],
) -> list[dict[str, Any]]:
    touched = {change.table: change.rows for change in recent[-1].changes} if recent else {}
    return [
        {
            "key": table.key,
            "rows": table.rows,
            "max_rows": table.max_rows,
            "unknown_keys": table.unknown_keys,
            "touched": touched.get(table.key),
            "keys_new": keys_new.get(table.key),
            "keys_deleted": keys_deleted.get(table.key),
        }
        for table in status.tables
    ]


def _commit(manifest: Manifest, state: str) -> dict[str, Any]:
    return {
        "id": manifest.state_id,
        "parent": manifest.parent.state_id if manifest.parent else None,
        "position": str(manifest.position),
        "kind": str(manifest.kind),
        "step": manifest.step,
        "at": manifest.created_at,
        "rows": manifest.rows_changed,
        "bytes": manifest.total_bytes,
        "state": state,
    }


def _states(commits: Iterable[Manifest], status: LoaderStatus) -> list[str]:
    """Of each commit: `live`, `served` on the way there, `skipped`, `waiting`, or why it is not used."""
    commits = tuple(commits)
    live = status.node
    refused = {item.node: item.cause for item in status.quarantined}
    history = _ancestors(commits, live)
    return [_state(manifest, live, refused, history) for manifest in commits]


def _state(
    manifest: Manifest, live: Node | None, refused: Mapping[Node, str], history: Collection[Node]
) -> str:
    if manifest.node == live:
        return "live"
    if manifest.node in refused:
        return refused[manifest.node]
    if manifest.node in history:
        return "served"
    return "waiting" if live is None or manifest.position > live.position else "skipped"


def _ancestors(commits: Iterable[Manifest], live: Node | None) -> set[Node]:
    parents = {manifest.node: manifest.parent for manifest in commits if manifest.parent is not None}
    found: set[Node] = set()
    while live is not None and live not in found:
        found.add(live)
        live = parents.get(live)
    return found
