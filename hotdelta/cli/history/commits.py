"""A commit as scripts get it: the members that `log --json` and `show --json` share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hotdelta.cli.history.history import Entry


def entry_document(entry: Entry) -> dict[str, Any]:
    return {
        "position": str(entry.position),
        "state_id": entry.node.state_id,
        "state": str(entry.standing),
        "kinds": entry.kind.split("+"),
        "parent": str(entry.parent) if entry.parent is not None else None,
        "children": [str(child) for child in entry.children],
        "step": entry.manifest.step,
        "created_at": iso_time(entry.manifest.created_at),
        "rows": entry.rows,
        "bytes": entry.total_bytes,
    }


def iso_time(seconds: float | None) -> str | None:
    """None for what is no time that a calendar has: a manifest may say anything."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None
