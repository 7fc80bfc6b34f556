"""`hotdelta key DIR TABLE KEY`: the life of one key of a table with keys, or of one row of any other."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

from hotdelta.chain.format.text_key import key_of_text
from hotdelta.cli.history.commits import iso_time
from hotdelta.cli.history.history import History, read_history
from hotdelta.cli.history.opened_chain import OpenedChain, opened_chain
from hotdelta.cli.output import Cell, Row, byte_progress, format_age, print_json, print_table, warn
from hotdelta.cli.rows.key_life import Event, KeyLife, RowLife, What, longest_line, read_life
from hotdelta.cli.rows.stored_tables import find_table, key_tables, roles_of, row_of_id
from hotdelta.errors import ChainError, ConfigurationError
from hotdelta.logs import counted

_HEADER = ("position", "age", "step", "event", "row", "change", "length", "value")
_STYLES = {What.HELD: "", What.CAME: "green", What.CHANGED: "", What.MOVED: "yellow", What.GONE: "red"}
_SHOWN_NUMBERS = 4
_KEY_LIMIT = 2**63


def run(options: argparse.Namespace) -> int:
    """1 when no commit has the key."""
    with opened_chain(options.directory) as chain:
        return _tell_life(chain, options)


def _tell_life(chain: OpenedChain, options: argparse.Namespace) -> int:
    history = read_history(chain.listing)
    if history.way.target is None:
        raise ChainError(f"nothing in {chain.place} can be read", hint="see: hotdelta verify")
    line = longest_line(history.entries, history.way.target)
    table, key, follower = _find_follower(chain, history, options)
    roles = roles_of(chain.schema_of(line.manifests[-1]), line.manifests[-1], table)
    total = sum(file.bytes for manifest in line.manifests for file in manifest.files if file.role in roles)
    with byte_progress("read", total) as progress:
        events = list(read_life(chain, line, follower, roles=roles, on_read=progress.add))
    if options.is_json:
        print_json(_document(table, key, options.key, events))
    elif events:
        _print(table, key, options.key, events, len(line.deltas))
    if not events:
        warn(
            f"{table} never had the key {options.key} in the {counted(len(line.manifests), 'commit')} that are here"
        )
    return 0 if events else 1


def _find_follower(
    chain: OpenedChain, history: History, options: argparse.Namespace
) -> tuple[str, int, RowLife | KeyLife]:
    """The table, the key as it is stored, and what follows it. Raises ConfigurationError."""
    newest = next(entry.manifest for entry in history.entries if entry.node == history.way.target)
    keyed = {table.rows: table for table in key_tables(chain.schema_of(newest), newest)}
    indexes = {table.index for table in keyed.values()}
    table = find_table(tuple(key for key in newest.tables if key not in indexes), options.table)
    record = newest.tables[table]
    number = None if options.is_text else _number(options.key)
    if table in keyed:
        key = key_of_text(options.key.encode()) if number is None else number
        return table, key, KeyLife(keyed[table], key, record.dtype)
    if number is None:
        raise ConfigurationError(
            f"{options.key!r} is no row", hint=f"{table} has rows by their numbers, and no keys"
        )
    return table, number, RowLife(table, row_of_id(record, number), record.dtype)


def _number(text: str) -> int | None:
    """None for what is a text."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -_KEY_LIMIT <= number < _KEY_LIMIT else None


def _print(table: str, key: int, given: str, events: Sequence[Event], deltas: int) -> None:
    stored = "" if given == str(key) else f" (stored as {key})"
    changes = sum(event.what is not What.HELD for event in events)
    print(f"{table}, key {given}{stored}: in {changes:,} of {counted(deltas, 'delta')}\n")
    now = time.time()
    print_table(_HEADER, [_row(event, now) for event in events], align="lrrlrrrl")


def _row(event: Event, now: float) -> Row:
    manifest = event.manifest
    return (
        Cell(str(manifest.position), "yellow"),
        format_age(now - manifest.created_at),
        f"{manifest.step:,}",
        Cell(str(event.what), _STYLES[event.what]),
        f"{event.row:,}",
        "" if event.distance is None else f"{event.distance:.4g}",
        f"{event.norm:.4g}" if event.value else "",
        _preview(event.value),
    )


def _preview(value: Sequence[float]) -> str:
    shown = ", ".join(f"{number:.4g}" for number in value[:_SHOWN_NUMBERS])
    return f"{shown}, ..." if len(value) > _SHOWN_NUMBERS else shown


def _document(table: str, key: int, given: str, events: Sequence[Event]) -> dict[str, Any]:
    return {
        "table": table,
        "key": key,
        "given": given,
        "events": [
            {
                "event": str(event.what),
                "position": str(event.manifest.position),
                "step": event.manifest.step,
                "created_at": iso_time(event.manifest.created_at),
                "row": event.row,
                "distance": _finite(event.distance),
                "value": [_finite(number) for number in event.value],
            }
            for event in events
        ],
    }


def _finite(number: float | None) -> float | None:
    """JSON has neither infinity nor NaN."""
    return number if number is not None and math.isfinite(number) else None
