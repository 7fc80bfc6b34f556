"""`hotdelta diff DIR A [B]`: which rows of which tables differ between two positions, and which keys came and went."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotdelta.chain import Manifest, Position, TableRecord
from hotdelta.chain.format import names
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.cli.history.history import read_history
from hotdelta.cli.history.opened_chain import OpenedChain, opened_chain
from hotdelta.cli.output import Cell, Row, byte_progress, print_json, print_table
from hotdelta.cli.rows.differences import Difference, RowChange, compare, compare_keys
from hotdelta.cli.rows.stored_tables import find_table, id_of_row, key_tables, roles_of, served_keys
from hotdelta.errors import ChainError
from hotdelta.logs import counted

_HEADER = ("table", "rows", "changed", "share", "new", "keys come", "keys gone", "largest change")
_SHOWN_KEYS = 10


@dataclass(frozen=True, slots=True)
class _Sides:
    """Two states, and by how many deltas the second follows the first (None: it does not)."""

    old: ChainState
    new: ChainState
    deltas: int | None

    @property
    def order(self) -> str:
        if self.old.node == self.new.node:
            return "both are the same state"
        if self.deltas is None:
            return f"{self.new.node} does not follow {self.old.node} by deltas"
        return f"{self.new.node} follows {self.old.node} by {counted(self.deltas, 'delta')}"


def run(options: argparse.Namespace) -> int:
    with opened_chain(options.directory) as chain:
        sides, found = _diff(chain, options)
    if options.is_json:
        print_json(_document(sides, found))
    else:
        _print(sides, found)
    return 0


def _diff(chain: OpenedChain, options: argparse.Namespace) -> tuple[_Sides, list[Difference]]:
    first, second = chain.position(options.first), chain.position(options.second)
    newest = chain.commits_at(second)[-1]
    schema_dir = chain.schema_of(newest)
    table: str | None = None
    # Without a schema it is not known what only a trainer needs, so all of it is compared.
    is_all = options.is_all or served_keys(schema_dir, newest) is None
    roles: Sequence[str] = names.ROLES if is_all else names.SERVING_ROLES
    if options.table is not None:
        table = find_table(_tables(schema_dir, newest), options.table)
        roles = roles_of(schema_dir, newest, table)
    with ExitStack() as stack:
        old, new = (stack.enter_context(_state_at(chain, at, roles)) for at in (first, second))
        sides = _Sides(old, new, _count_deltas(chain, old, new))
        return sides, _compare(sides, table=table, top=options.top, is_all=options.is_all)


def _tables(schema_dir: Path, newest: Manifest) -> tuple[str, ...]:
    """Those with rows of their own: an index belongs to its table."""
    indexes = {item.index for item in key_tables(schema_dir, newest)}
    return tuple(key for key in newest.tables if key not in indexes)


@contextmanager
def _state_at(chain: OpenedChain, position: Position, roles: Sequence[str]) -> Iterator[ChainState]:
    with chain.files_of(chain.way_to(position), roles=roles) as directory:
        state = find_state(directory, listing=chain.listing, position=position, roles=roles)
        if state is None:
            raise ChainError(f"{chain.place} holds nothing that can be read")
        yield state


def _count_deltas(chain: OpenedChain, old: ChainState, new: ChainState) -> int | None:
    parents = {entry.node: entry.parent for entry in read_history(chain.listing).entries}
    node, count = new.node, 0
    while node != old.node:
        parent = parents.get(node)
        if parent is None:
            return None
        node, count = parent, count + 1
    return count


def _compare(sides: _Sides, *, table: str | None, top: int, is_all: bool) -> list[Difference]:
    """The tables first, the one with the most changes on top."""
    old, new = StateReader(sides.old), StateReader(sides.new)
    tables = {**sides.old.newest.tables, **sides.new.newest.tables}
    keyed = {item.rows: item for item in key_tables(sides.new.run_dir, sides.new.newest)}
    indexes = {item.index for item in keyed.values()}
    keys = {table} if table is not None else old.newest_keys() | new.newest_keys()
    if table is None and not is_all:
        for side in (sides.old, sides.new):
            served = served_keys(side.run_dir, side.newest)
            keys = keys if served is None else keys & served
    found = list[Difference]()
    sizes = {key: sum(kind.size for side in (old, new) if (kind := side.type_of(key))) for key in keys}
    with byte_progress("compared", sum(sizes.values())) as progress:
        for key in sorted(keys - indexes):
            is_table = _has_rows(key, tables, new)
            shown = top if is_table else 1
            difference = compare(key, old, new, is_table=is_table, top=shown, on_read=progress.add)
            if key in keyed:
                difference = replace(difference, keys=compare_keys(keyed[key], old, new))
            found.append(difference)
    return sorted(found, key=lambda item: (not item.is_table, -item.rows_changed, item.key))


def _has_rows(key: str, tables: dict[str, TableRecord], reader: StateReader) -> bool:
    """Whether it is a table, or a slot of one, which has as many rows."""
    if key in tables:
        return True
    kind = reader.type_of(key)
    owners = [
        record for table, record in tables.items() if key.endswith(f"/{table}") or key.startswith(f"{table}/")
    ]
    return kind is not None and any(kind.shape[:1] == record.stored_shape[:1] for record in owners)


def _print(sides: _Sides, found: Sequence[Difference]) -> None:
    for name, side in (("from", sides.old), ("to", sides.new)):
        print(f"{name:4} {side.node}, step {side.newest.step:,}")
    print(f"{sides.order}\n")
    if tables := [item for item in found if item.is_table]:
        print_table(_HEADER, [_row(item, sides.new.newest) for item in tables], align="lrrrrrrl")
    others = [item for item in found if not item.is_table]
    changed = [item for item in others if not item.is_same]
    if others:
        print(f"\n{counted(len(others), 'other variable')}, {len(changed):,} changed")
        rows = [(f"  {item.key}", _change_of_one(item)) for item in changed]
        if rows:
            print_table((), rows, align="ll")
    for item in found:
        _print_details(item, sides.new.newest)


def _row(item: Difference, newest: Manifest) -> Row:
    if item.problem:
        return (item.key, "", "", "", "", "", "", Cell(item.problem, "yellow"))
    largest = item.largest[0] if item.largest else None
    return (
        item.key,
        f"{item.rows:,}",
        Cell(f"{item.rows_changed:,}", "bold" if item.rows_changed else "dim"),
        f"{item.rows_changed / item.rows:.2%}" if item.rows else "",
        f"{item.rows_new:,}" if not item.rows_gone else f"-{item.rows_gone:,}",
        Cell(f"{len(item.keys.come):,}", "green") if item.keys else "",
        Cell(f"{len(item.keys.gone):,}", "red") if item.keys else "",
        f"{_name_of(item, largest, newest)} by {largest.distance:.4g}" if largest else "",
    )


def _change_of_one(item: Difference) -> str:
    return item.problem or f"by {item.largest[0].distance:.4g}"


def _print_details(item: Difference, newest: Manifest) -> None:
    if item.is_table and len(item.largest) > 1:
        print(f"\n{item.key}: the largest changes")
        rows = [
            (
                f"  {_name_of(item, change, newest)}",
                f"by {change.distance:.4g}",
                f"to length {change.norm:.4g}",
            )
            for change in item.largest
        ]
        print_table((), rows, align="lll")
    for what, keys in (("come", item.keys.come), ("gone", item.keys.gone)) if item.keys else ():
        if len(keys):
            more = f" and {len(keys) - _SHOWN_KEYS:,} more" if len(keys) > _SHOWN_KEYS else ""
            print(f"{item.key}: keys {what}: {', '.join(map(str, keys[:_SHOWN_KEYS]))}{more}")


def _name_of(item: Difference, change: RowChange, newest: Manifest) -> str:
    if item.keys is not None:
        return (
            f"key {item.keys.key_of[change.row]}" if change.row in item.keys.key_of else f"row {change.row}"
        )
    record = newest.tables.get(item.key)
    return f"row {id_of_row(record, change.row) if record is not None else change.row}"


def _document(sides: _Sides, found: Sequence[Difference]) -> dict[str, Any]:
    return {
        "from": {"position": str(sides.old.node), "step": sides.old.newest.step},
        "to": {"position": str(sides.new.node), "step": sides.new.newest.step},
        "deltas": sides.deltas,
        "tables": [_difference_document(item, sides.new.newest) for item in found if item.is_table],
        "variables": [
            {
                "key": item.key,
                "is_changed": not item.is_same,
                "distance": _finite(item.largest[0].distance) if item.largest else 0.0,
                "problem": item.problem or None,
            }
            for item in found
            if not item.is_table
        ],
    }


def _difference_document(item: Difference, newest: Manifest) -> dict[str, Any]:
    record = newest.tables.get(item.key)
    key_of = item.keys.key_of if item.keys is not None else {}
    document: dict[str, Any] = {
        "key": item.key,
        "rows": item.rows,
        "rows_changed": item.rows_changed,
        "rows_new": item.rows_new,
        "rows_gone": item.rows_gone,
        "largest": [
            {
                "row": id_of_row(record, change.row) if record is not None else change.row,
                **({"key": key_of.get(change.row)} if item.keys is not None else {}),
                "distance": _finite(change.distance),
                "length": _finite(change.norm),
            }
            for change in item.largest
        ],
        "problem": item.problem or None,
    }
    if item.keys is not None:
        document["keys"] = item.keys.live
        document["keys_come"] = item.keys.come.tolist()
        document["keys_gone"] = item.keys.gone.tolist()
    return document


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
