"""`hotdelta fleet URL...`: who of several servers serves what, who is behind, who differs, and who does not answer."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hotdelta.cli.output import Cell, Row, print_json, print_table, warn
from hotdelta.cli.servers.access import Access, access_for_reading
from hotdelta.cli.servers.http import ServerHttp
from hotdelta.cli.servers.status import TIMEOUT_SECONDS, read_status, show_seconds, state_of
from hotdelta.errors import RequestError
from hotdelta.logs import counted
from hotdelta.replicas import Replica, Standing, Verdict, is_in_order, judge

_MOST_AT_ONCE = 32


# Of what is in order; all else is red.
_STYLES = {Standing.NEWEST: "green", Standing.BEHIND: "yellow", Standing.PINNED: "yellow"}
_SHOWN_DIGITS = 12
_HEADER = ("host", "position", "state id", "behind", "standing", "state")


def run(options: argparse.Namespace) -> int:
    """0 when all answer, none differs, none is stuck, and none is late."""
    access = access_for_reading(options)
    urls = list(dict.fromkeys(url.rstrip("/") for url in options.urls))
    with ThreadPoolExecutor(min(len(urls), _MOST_AT_ONCE)) as pool:
        replicas = list(pool.map(lambda url: ask(url, access, options.model), urls))
    verdicts = judge(replicas, late_seconds=options.late_after)
    if options.is_json:
        print_json(_document(replicas, verdicts))
    else:
        rows = [_row(replica, verdict) for replica, verdict in zip(replicas, verdicts, strict=True)]
        print_table(_HEADER, rows, align="lllrll")
        _warn_of_odd(verdicts)
    return 0 if is_in_order(verdicts) else 1


def ask(url: str, access: Access, model: str | None) -> Replica:
    """Raises ConfigurationError when it is no server of hotdelta."""
    try:
        with ServerHttp(url, timeout_seconds=TIMEOUT_SECONDS, access=access) as server:
            return Replica(url, read_status(server, model))
    except RequestError as error:
        return Replica(url, problem=str(error))


def _row(replica: Replica, verdict: Verdict) -> Row:
    standing = Cell(verdict.standing, _STYLES.get(verdict.standing, "bold red"))
    if replica.status is None:
        return (replica.url, "-", "-", "-", standing, Cell(replica.problem, "red"))
    return (
        replica.url,
        Cell(str(replica.position or "-"), "yellow"),
        replica.state_id[:_SHOWN_DIGITS] if replica.position else "-",
        show_seconds(verdict.seconds_behind),
        standing,
        state_of(replica.status),
    )


def _document(replicas: Sequence[Replica], verdicts: Sequence[Verdict]) -> Mapping[str, Any]:
    return {
        "in_order": is_in_order(verdicts),
        "servers": [
            {
                "url": replica.url,
                "standing": str(verdict.standing),
                "seconds_behind": round(verdict.seconds_behind, 3),
                "problem": replica.problem or None,
                "status": replica.status,
            }
            for replica, verdict in zip(replicas, verdicts, strict=True)
        ],
    }


def _warn_of_odd(verdicts: Sequence[Verdict]) -> None:
    number = sum(verdict.standing is Standing.DIFFERS for verdict in verdicts)
    if number:
        warn(
            f"{counted(number, 'server')} with another state at the position of others, or with other values: two "
            "trainers wrote the same run, or memory is damaged. restart the odd ones"
        )
