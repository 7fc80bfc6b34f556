"""What a running server says of itself (GET /model/version), and `hotdelta log URL`, which shows it.

No redirect is followed and nothing is sent but the question; an order needs a token and is given elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotdelta.cli.output import Cell, Row, format_bytes, print_fields, print_json, print_table
from hotdelta.errors import ConfigurationError, RequestError

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


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def require_url(text: str) -> str:
    """Raises ConfigurationError."""
    if not is_url(text):
        raise ConfigurationError(
            f"{text!r} is no address", hint="write http://HOST:PORT, as the server prints it"
        )
    return text


def read_status(url: str) -> Status:
    """Raises RequestError when nobody answers, ConfigurationError when it is no server of hotdelta."""
    import httpx

    try:
        answer = httpx.get(f"{url.rstrip('/')}{_PATH}", timeout=TIMEOUT_SECONDS)
        document = answer.json() if answer.status_code == httpx.codes.OK else None
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigurationError(
            f"{url!r} is no address", hint="write http://HOST:PORT, as the server prints it"
        ) from error
    except httpx.TimeoutException as error:
        raise RequestError(
            f"{url} does not answer", hint="is the server overloaded, or the network?"
        ) from error
    except httpx.HTTPError as error:
        raise RequestError(f"{url} cannot be asked: {error}", hint="is a server running there?") from error
    except ValueError:
        document = None
    if not isinstance(document, dict) or "update_state" not in document:
        raise ConfigurationError(
            f"what answers at {url} is no server of hotdelta", hint="write http://HOST:PORT, without a path"
        )
    return document


def log(url: str, *, is_json: bool) -> int:
    """0 when the server answers, also when it is stuck: its state says so."""
    status = read_status(url)
    if is_json:
        print_json(status)
    else:
        _print(status)
    return 0


def state_of(status: Status) -> Cell:
    state, reason = status["update_state"], status.get("reason")
    return Cell(f"{state}: {reason}" if reason else state, _STYLES.get(state, ""))


def show_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _print(status: Status) -> None:
    newest, live = status.get("newest_on_disk"), status.get("position")
    fields: list[tuple[str, Cell | str]] = [
        ("serves", f"{status.get('model_name') or '-'}, version {status.get('export_version') or '-'}"),
        ("state", state_of(status)),
        ("position", Cell(live or "nothing yet", "yellow")),
        ("step", f"{status.get('step') or 0:,}"),
        (
            "behind",
            f"{status.get('commits_behind', 0)} commits, {show_seconds(status.get('seconds_behind'))}",
        ),
        ("newest on disk", newest or "-"),
        ("full", f"{status.get('base_full') or '-'}, {status.get('deltas_since_full', 0)} deltas since"),
    ]
    if status.get("pinned"):
        fields.append(("pinned", status["pinned"]))
    print_fields([*fields, *_last_update(status.get("last_update"))])
    rows = list[Row]()
    rows += [
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
