"""What a running server says of itself (GET /model/version), and `hotdelta log URL`, which shows it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from hotdelta.cli.output import Cell, Row, format_bytes, print_fields, print_json, print_table
from hotdelta.cli.servers.access import access_for_reading
from hotdelta.cli.servers.http import ServerHttp, path_of, require_ok
from hotdelta.cli.servers.served_commits import print_commits, read_commits
from hotdelta.logs import counted
from hotdelta.replicas import find_troubles

TIMEOUT_SECONDS = 10.0
_STYLES = {
    "following": "green",
    "static": "green",
    "waiting": "yellow",
    "pinned": "yellow",
    "degraded": "red",
}

Status = Mapping[str, Any]


def read_status(server: ServerHttp, model: str | None = None) -> Status:
    """Of the model or label, or of the default model.

    Raises RequestError when nobody answers, ConfigurationError when it is no server of hotdelta.
    """
    document = require_ok(server.get(path_of(model, "version")), server.url)
    if "update_state" not in document:
        raise server.foreign()
    return document


def open_server(url: str, options: argparse.Namespace) -> ServerHttp:
    """For questions. Raises ConfigurationError."""
    return ServerHttp(url, timeout_seconds=TIMEOUT_SECONDS, access=access_for_reading(options))


def read_models(server: ServerHttp) -> Sequence[Status]:
    """What the server says of each of its models. Raises as read_status does."""
    listed = require_ok(server.get("/models"), server.url).get("models")
    if not isinstance(listed, list):
        raise server.foreign()
    return listed


def log(options: argparse.Namespace) -> int:
    """0 when the server answers, also when it is stuck: its state says so."""
    with open_server(options.place, options) as server:
        models = read_models(server) if options.model is None else ()
        if len(models) > 1:
            _log_models(models, is_json=options.is_json)
            return 0
        status = read_status(server, options.model)
        commits = read_commits(server, status.get("model_name"))
    if options.is_json:
        print_json({**status, "commits": list(commits)[-options.limit :] if options.limit else list(commits)})
    else:
        _print(status)
        print_commits(commits, options.limit)
    return 0


def _log_models(models: Sequence[Status], *, is_json: bool) -> None:
    """One line for each; more is told of one that is named."""
    if is_json:
        print_json({"models": models})
        return
    rows = [
        (
            Cell(str(item["name"]), "bold"),
            Cell(item["position"] or "-", "yellow"),
            f"{item['updates']:,}",
            show_seconds(item["seconds_behind"]),
            ", ".join(item["labels"]) + (" (default)" if item["is_default"] else ""),
            state_of(item),
        )
        for item in models
    ]
    print_table(("model", "position", "updates", "behind", "labels", "state"), rows, align="llrrll")


def state_of(status: Status) -> Cell:
    state, troubles = status["update_state"], find_troubles(status)
    said = "; ".join(filter(None, (status.get("reason"), *troubles)))
    style = "red" if troubles else _STYLES.get(state, "")
    return Cell(f"{state}: {said}" if said else state, style)


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
