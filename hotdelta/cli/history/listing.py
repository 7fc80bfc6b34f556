"""`hotdelta chain` and `hotdelta describe`: every commit in the order in which it was made, and the variables."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from hotdelta.chain import Kind, Listing, Manifest, TableRecord
from hotdelta.cli.history.opened_chain import OpenedChain, open_chain, opened_chain
from hotdelta.cli.output import format_age, format_bytes, print_table
from hotdelta.errors import ChainError
from hotdelta.io.contents import describe_directory

_COLUMNS = ("kind", "position", "parent", "step", "rows", "bytes", "age")


def run(options: argparse.Namespace) -> int:
    """1 when a manifest is refused."""
    if options.command == "describe":
        return _describe(open_chain(options.directory))
    with opened_chain(options.directory) as chain:
        return _show_chain(chain)


def _describe(chain: OpenedChain) -> int:
    try:
        print(describe_directory(chain.directory, chain.listing))
    except ChainError as error:
        print(f"damaged: {error}", file=sys.stderr)
        return 1
    return _tell_refused(chain.listing)


def _tell_refused(listing: Listing) -> int:
    for refused in listing.refused:
        print(f"cannot be used: {refused.path}: {refused.reason}")
    return 1 if listing.refused else 0


def _show_chain(chain: OpenedChain) -> int:
    now, manifests = time.time(), chain.listing.manifests
    print_table(_COLUMNS, [_row(manifest, now) for manifest in manifests], align="lrrrrrr")
    fulls = sum(manifest.kind is Kind.FULL for manifest in manifests)
    total = sum(manifest.total_bytes for manifest in manifests)
    print(f"\nfulls: {fulls}, deltas: {len(manifests) - fulls}, together {format_bytes(total)}")
    print_growing(manifests)
    return _tell_refused(chain.listing)


def _row(manifest: Manifest, now: float) -> tuple[str, ...]:
    parent = manifest.parent if manifest.kind is Kind.DELTA else None
    return (
        str(manifest.kind),
        str(manifest.position),
        str(parent) if parent else "-",
        str(manifest.step),
        f"{_count_rows(manifest):,}",
        format_bytes(manifest.total_bytes),
        format_age(now - manifest.created_at),
    )


def _count_rows(manifest: Manifest) -> int:
    """Those that changed; a full holds all of them."""
    if manifest.kind is Kind.DELTA:
        return manifest.rows_changed
    return sum(table.stored_shape[0] for table in manifest.tables.values())


def print_growing(manifests: Sequence[Manifest]) -> None:
    """How full the tables are that reserve more rows than they have, at the newest position."""
    for key, table in manifests[-1].tables.items() if manifests else ():
        if table.rows_in_use is not None:
            print(f"{key}: {table.rows_in_use:,} of {table.shape[0]:,} rows in use{_tell_keys(table)}")


def _tell_keys(table: TableRecord) -> str:
    if table.keys_live is None:
        return ""
    return f"; {table.keys_live:,} keys, {table.keys_new or 0:,} new and {table.rows_deleted:,} deleted"
