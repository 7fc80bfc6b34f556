"""`hotdelta show DIR [POSITION]`: all that the manifests of one position say, and what became of it."""

from __future__ import annotations

import argparse
import time
from typing import Any

from hotdelta.chain import Manifest, TableRecord
from hotdelta.cli.history.commits import entry_document, iso_time
from hotdelta.cli.history.history import Entry, read_history
from hotdelta.cli.history.opened_chain import OpenedChain, opened_chain
from hotdelta.cli.output import Cell, format_age, format_bytes, print_fields, print_json, print_table

_TABLE_HEADER = ("table", "shape", "dtype", "tracking", "rows changed", "share", "keys")
_FILE_HEADER = ("file", "role", "bytes", "blake3")


def run(options: argparse.Namespace) -> int:
    with opened_chain(options.directory) as chain:
        return _show(chain, options)


def _show(chain: OpenedChain, options: argparse.Namespace) -> int:
    position = chain.position(options.position)
    chain.commits_at(position)
    entry = next(e for e in read_history(chain.listing).entries if e.position == position)
    if options.is_json:
        print_json(_document(entry))
    else:
        _print(entry)
    return 0


def _print(entry: Entry) -> None:
    manifest = entry.manifest
    created = iso_time(manifest.created_at) or str(manifest.created_at)
    fields: list[tuple[str, Cell | str]] = [
        ("position", Cell(str(entry.position), "yellow")),
        ("kind", entry.kind),
        ("state", str(entry.standing)),
        ("state id", entry.node.state_id),
        ("parent", str(entry.parent or "-")),
        ("children", ", ".join(map(str, entry.children)) or "-"),
        ("step", f"{manifest.step:,}"),
        ("created", f"{created} ({format_age(time.time() - manifest.created_at)})"),
        ("newest event", iso_time(manifest.watermark) or "-"),
        ("schema", manifest.schema),
        ("signed", "yes" if manifest.signature else "no"),
        ("bytes", f"{format_bytes(entry.total_bytes)}, of which a server reads {_serving_bytes(entry)}"),
    ]
    print_fields(fields)
    if manifest.tables:
        print()
        rows = [_table_row(key, table, manifest) for key, table in manifest.tables.items()]
        print_table(_TABLE_HEADER, rows, align="lrllrrl")
    print()
    rows = [
        (file.name, file.role, f"{file.bytes:,}", file.digest[:16])
        for found in _manifests(entry)
        for file in found.files
    ]
    print_table(_FILE_HEADER, rows, align="llrl")


def _manifests(entry: Entry) -> list[Manifest]:
    return [found for found in (entry.full, entry.delta) if found is not None]


def _serving_bytes(entry: Entry) -> str:
    return " or ".join(format_bytes(found.serving_bytes) for found in _manifests(entry))


def _table_row(key: str, table: TableRecord, manifest: Manifest) -> tuple[str, ...]:
    rows = table.stored_shape[0]
    reserved = "" if table.rows_in_use is None else f" of {table.shape[0]:,}"
    is_delta = manifest.kind == "delta"
    return (
        key,
        "x".join(f"{size:,}" for size in table.stored_shape) + reserved,
        table.dtype,
        str(table.tracking),
        f"{table.rows_changed:,}" if is_delta else "all",
        f"{table.rows_changed / rows:.2%}" if is_delta and rows else "",
        _keys(table),
    )


def _keys(table: TableRecord) -> str:
    if table.keys_live is None:
        return ""
    return f"{table.keys_live:,}, {table.keys_new or 0:,} new, {table.rows_deleted:,} deleted"


def _document(entry: Entry) -> dict[str, Any]:
    manifest = entry.manifest
    return {
        **entry_document(entry),
        "watermark": iso_time(manifest.watermark),
        "schema": manifest.schema,
        "is_signed": bool(manifest.signature),
        "tables": [_table_document(key, table) for key, table in manifest.tables.items()],
        "files": [
            {
                "kind": str(found.kind),
                "name": file.name,
                "role": file.role,
                "bytes": file.bytes,
                "blake3": file.digest,
            }
            for found in _manifests(entry)
            for file in found.files
        ],
    }


def _table_document(key: str, table: TableRecord) -> dict[str, Any]:
    return {
        "key": key,
        "shape": list(table.shape),
        "rows_in_use": table.stored_shape[0],
        "dtype": table.dtype,
        "tracking": str(table.tracking),
        "rows_changed": table.rows_changed,
        "rows_deleted": table.rows_deleted,
        "keys_live": table.keys_live,
        "keys_new": table.keys_new,
    }
