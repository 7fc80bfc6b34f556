"""What GET /model/version says: the state of a loader as a JSON document, times in ISO 8601 and seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotdelta.remote.mirror.status import MirrorStatus
    from loader import Lag, LoaderStatus
    from loader.status import ServedTable


_ORDER = re.compile(r"hotdelta release URL \d+\.\d+")


def version_document(
    status: LoaderStatus, *, model: str | None = None, stores: Sequence[MirrorStatus] = ()
) -> dict[str, Any]:
    """`model`: what orders have to name, where there are several. `stores`: where it comes from, if not from here."""
    return {
        "model_name": status.model_name,
        "export_version": status.export_version,
        "takes_deltas": status.is_incremental,
        "position": _text(status.node),
        "state_id": status.node.state_id if status.node else None,
        "digest": status.digest,
        "step": status.step,
        "base_full": _text(status.base_full),
        "deltas_since_full": status.deltas_since_full,
        "applied_at": _time(status.applied_at),
        "newest_on_disk": _text(status.newest_on_disk),
        "seconds_behind": round(status.seconds_behind, 3),
        "update_state": str(status.state),
        "reason": _named(status.reason, model) or None,
        "pinned": _text(status.pinned),
        "orders_survive_restart": status.are_orders_kept,
        "commits_behind": status.commits_behind,
        "held_back": {"commits": status.held_back, "reason": status.silent_leader or None},
        "undo": {"deltas": status.undo_depth, "bytes": status.undo_bytes},
        "is_ready": status.is_ready,
        "updates": status.updates,
        "last_update": _last_update(status.last_lag) if status.last_lag else None,
        "signatures": list(status.signatures),
        "tables": [_table(table) for table in status.tables],
        "quarantined": [
            {
                "position": str(item.node),
                "state_id": item.node.state_id,
                "cause": item.cause,
                "reason": _named(item.reason, model),
            }
            for item in status.quarantined
        ],
        "refused": [{"file": item.name, "reason": item.reason} for item in status.refused],
        "stores": [_store(store) for store in stores],
    }


def _store(store: MirrorStatus) -> dict[str, Any]:
    silent = None if store.answered_at is None else round(max(0.0, time.time() - store.answered_at), 3)
    return {
        "address": store.address,
        "is_reached": store.is_reached,
        "answered_at": _time(store.answered_at),
        "seconds_since_answer": silent,
        "problem": store.problem or None,
        "newest": _text(store.newest),
        "fetched_bytes": store.fetched_bytes,
        "fetched_commits": store.fetched_commits,
        "fetched_exports": store.fetched_exports,
        "failures": store.failures,
        "damaged": list(store.damaged),
        "local_bytes": store.local_bytes,
    }


def _named(reason: str, model: str | None) -> str:
    """The loader does not know whether it is one of several."""
    return reason if model is None else _ORDER.sub(rf"\g<0> --model {model}", reason)


def _table(table: ServedTable) -> dict[str, Any]:
    document: dict[str, Any] = {
        "key": table.key,
        "rows": table.rows,
        "dimensions": list(table.dimensions),
        "dtype": table.dtype,
    }
    if table.max_rows is not None:
        document["max_rows"] = table.max_rows
    if table.unknown_keys is not None:
        document["unknown_keys"] = table.unknown_keys
    return document


def _last_update(lag: Lag) -> dict[str, Any]:
    return {
        "position": str(lag.position),
        "kind": lag.kind,
        "rows": lag.rows,
        "bytes": lag.bytes,
        "event_at": _time(lag.event_at),
        "trained_at": _time(lag.trained_at),
        "committed_at": _time(lag.committed_at),
        "seen_at": _time(lag.seen_at),
        "applied_at": _time(lag.applied_at),
        "first_served_at": _time(lag.first_served_at),
        "lag_ms": {
            "event_to_trained": _span_ms(lag.event_at, lag.trained_at),
            "trained_to_committed": _span_ms(lag.trained_at, lag.committed_at),
            "fetch": _span_ms(lag.committed_at, lag.arrived_at),
            "committed_to_seen": _span_ms(lag.arrived_at or lag.committed_at, lag.seen_at),
            "verify": round(lag.verify_ms, 3),
            "stage": round(lag.stage_ms, 3),
            "preimage": round(lag.preimage_ms, 3),
            "sanity": round(lag.sanity_ms, 3),
            "gate_wait": round(lag.gate_wait_ms, 3),
            "apply": round(lag.apply_ms, 3),
            "probe": None if lag.probe_ms is None else round(lag.probe_ms, 3),
            "applied_to_first_served": _span_ms(lag.applied_at, lag.first_served_at),
            "committed_to_applied": _span_ms(lag.committed_at, lag.applied_at),
            "committed_to_served": _span_ms(lag.committed_at, lag.first_served_at),
        },
    }


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        # A manifest may say any time, and a trainer may take milliseconds for seconds.
        return None


def _span_ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round((end - start) * 1000, 3)
