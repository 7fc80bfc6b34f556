"""`hotdelta doctor DIR|URL`: what keeps, or could keep, this machine, this directory, store or server from working.

Each check says what was found and what to do. Nothing is written unless --write asks for it (to a store a few small
objects beside the chain, which are deleted again), no lock is taken, and a trainer or server that runs does not notice.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from hotdelta.cli.doctor import machine, run_directory, server, store, versions
from hotdelta.cli.doctor.check import Check, Verdict
from hotdelta.cli.history.opened_chain import require_directory
from hotdelta.cli.output import Cell, print_json, print_table
from hotdelta.cli.servers.http import is_url
from hotdelta.remote.stores.address import is_address

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def run(options: argparse.Namespace) -> int:
    """1 when a check has failed; what is only warned of is 0."""
    checks = list(_checks(options))
    if options.is_json:
        print_json({"checks": [check.document() for check in checks]})
    else:
        _print(checks)
    return 1 if any(check.verdict is Verdict.FAIL for check in checks) else 0


def _checks(options: argparse.Namespace) -> Iterable[Check]:
    if is_url(options.place):
        yield from server.checks(options.place, options)
        return
    if is_address(options.place):
        yield from store.checks(options.place)
        return
    directory = require_directory(options.place)
    yield from versions.checks()
    yield from machine.checks(directory)
    yield from run_directory.checks(directory, is_writing=options.is_writing)


def _print(checks: list[Check]) -> None:
    rows = list[tuple[Cell | str, ...]]()
    for check in checks:
        rows.append((Cell(str(check.verdict), _STYLES[check.verdict]), Cell(check.name, "bold"), check.found))
        if check.advice:
            rows.append(("", "", Cell(f"→ {check.advice}", "dim")))
    print_table((), rows, align="lll")
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    print(f"\n{', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
