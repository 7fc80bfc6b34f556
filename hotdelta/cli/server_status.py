"""What a running server says of itself (GET /model/version), and `hotdelta log URL`, which shows it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from hotdelta.cli.access import access_for_reading
from hotdelta.cli.output import Cell, Row, format_bytes, print_fields, print_json, print_table
from hotdelta.cli.server_http import ServerHttp, require_ok
from hotdelta.logs import counted

TIMEOUT_SECONDS = 10.0
_PATH = "/model/version"
_STYLES = {
    "following": "green",
    "static": "green",
    "waiting": "yellow",
    "pinned": "yellow",
    "degraded": "red",
}

Status = Mapping[str, Any]


def read_status(server: ServerHttp) -> Status:
    """Raises RequestError when nobody answers, ConfigurationError when it is no server of hotdelta."""
    document = require_ok(server.get(_PATH), server.url)
    if "update_state" not in document:
        raise server.foreign()
    return document


def open_server(url: str, options: argparse.Namespace) -> ServerHttp:
    """For questions. Raises ConfigurationError."""
    return ServerHttp(url, timeout_seconds=TIMEOUT_SECONDS, access=access_for_reading(options))


def log(options: argparse.Namespace) -> int:
    """0 when the server answers, also when it is stuck: its state says so."""
    with open_server(options.place, options) as server:
        status = read_status(server)
    if options.is_json:
        print_json(status)
    else:
        _print(status)
    return 0


def state_of(status: Status) -> Cell:
    state, reason = status["update_state"], status.get("reason")
    return Cell(f"{state}: {reason}" if reason else state, _STYLES.get(state, ""))


def show_behind(status: Status) -> str:
    behind = counted(status.get("commits_behind") or 0, "commit")
    return f"{behind}, {show_seconds(status.get('seconds_behind'))}"


def show_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def show_ms(milliseconds: float | None) -> str:
    return (
        "-"
        if milliseconds is None
        else f"{milliseconds:,.0f}"
        if milliseconds >= 100
        else f"{milliseconds:.2g}"
    )


def _print(status: Status) -> None:
    newest, live = status.get("newest_on_disk"), status.get("position")
    full = status.get("base_full")
    fields: list[tuple[str, Cell | str]] = [
        ("serves", f"{status.get('model_name') or '-'}, version {status.get('export_version') or '-'}"),
        ("state", state_of(status)),
        ("position", Cell(live or "nothing yet", "yellow")),
        ("step", f"{status.get('step') or 0:,}"),
        ("newest on disk", newest or "-"),
        ("behind", show_behind(status)),
        ("full", f"{full}, {counted(status.get('deltas_since_full') or 0, 'delta')} since" if full else "-"),
    ]
    if status.get("pinned"):
        fields.append(("pinned", status["pinned"]))
    print_fields([*fields, *_last_update(status.get("last_update"))])
    rows: list[Row] = [
        (Cell(item["position"], "red"), "quarantined", item["reason"])
        for item in status.get("quarantined", ())
    ]
    rows += [(Cell(item["file"], "red"), "refused", item["reason"]) for item in status.get("refused", ())]
    if rows:
        print()
        print_table(("commit", "state", "reason"), rows, align="lll")


def _last_update(update: Mapping[str, Any] | None) -> list[tuple[str, Cell | str]]:
    if update is None:
        return []
    lag = update["lag_ms"]["committed_to_applied"]
    took = "" if lag is None else f", {show_seconds(lag / 1000)} after its commit"
    what = f"{update['kind']} {update['position']}: {update['rows']:,} rows, {format_bytes(update['bytes'])}"
    return [("last update", what), ("applied", f"{update['applied_at']}{took}")]
