"""Tables with an open vocabulary, before an update of them is applied: does each key lead to a row that is in use?

An index that leads elsewhere would answer with another key's row, or with whatever lies in memory that nobody wrote. So
that is damage, which no operator can release, and not a matter of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hotdelta.chain import KeyTable, Manifest, Schema, TableRecord, directory_of
from hotdelta.chain.bundle.reader import BundleRows
from hotdelta.chain.bundle.row_memory import row_ranges, rows_within
from hotdelta.chain.format import names
from hotdelta.chain.format.key_index import (
    BUCKET_COLUMNS,
    Counts,
    KeyChanges,
    changes,
    mask_of,
    why_malformed,
)
from hotdelta.errors import DamagedError
from loader.files.fed_update import Array, FedUpdate

# Buckets of a full are looked at so many bytes at a time: numpy holds the GIL, and predictions go on beside it.
_CHUNK_BYTES = 1024 * 1024

# How much was in use before an update, by the key of a table's rows. Of a table that is not in it, as much as after it.
InUse = Mapping[str, Counts]
# Which keys came and went with an update, by the key of a table's rows.
Moves = Mapping[str, KeyChanges]


def in_use_before(schema: Schema, updates: Sequence[FedUpdate], preimage: FedUpdate) -> Sequence[InUse]:
    """Before each of the updates, which follow each other. `preimage` has the counts before all of them."""
    found: list[dict[str, Counts]] = [{} for _ in updates]
    for table in schema.key_tables:
        name = table.counts + names.VALUE_SUFFIX
        changing = [at for at, update in enumerate(updates) if len(update[name])]
        known = preimage[name] if changing else None
        for at in changing:
            if known is not None:
                found[at][table.rows] = Counts.of(known[0])
            known = updates[at][name]
    return found


def rows_in_use_before(schema: Schema, in_use: InUse) -> dict[str, int]:
    """Of each growing table that has more rows after an update: how many there were before it."""
    found: dict[str, int] = {}
    for table in schema.key_tables:
        if table.rows in in_use:
            found[table.rows], found[table.index] = in_use[table.rows].rows, in_use[table.rows].buckets
    return found


def changes_of_keys(schema: Schema, update: FedUpdate, preimage: FedUpdate, in_use: InUse) -> Moves:
    """`preimage`: what the update replaces; `in_use`: before it."""
    found: dict[str, KeyChanges] = {}
    for table in schema.key_tables:
        name = table.index + names.ROWS_SUFFIX
        ids = update[table.index + names.IDS_SUFFIX]
        found[table.rows] = changes_in_buckets(ids, preimage[name], update[name], in_use.get(table.rows))
    return found


def changes_in_buckets(ids: Array, old: Array, new: Array, before: Counts | None) -> KeyChanges:
    """`before`: how many buckets were in use; None: all of these."""
    if before is not None and len(ids) and ids[-1] >= before.buckets:
        # What lay in the others is no bucket.
        old = np.where((ids < before.buckets)[:, None], old, 0)
    return changes(old, new)


def find_new(ids: Array, first: int | None, moves: KeyChanges | None) -> npt.NDArray[np.bool_]:
    """Which rows begin with an update: those from the `first` that was not in use, and those that other keys had."""
    is_new = np.zeros(len(ids), np.bool_) if first is None else np.greater_equal(ids, first)
    return is_new if moves is None or not len(moves.dealt) else is_new | np.isin(ids, moves.dealt)


def require_sound_delta(
    run_dir: Path, manifest: Manifest, schema: Schema, update: FedUpdate, in_use: InUse, moves: Moves
) -> None:
    """`in_use`: before it; `moves`: what it does to keys. Raises DamagedError."""
    for table in schema.key_tables:
        complaint = _judge_delta(manifest, schema, table, update, in_use.get(table.rows))
        complaint = complaint or _judge_moves(manifest.tables[table.rows], moves[table.rows])
        if complaint:
            raise _damaged(directory_of(run_dir, manifest.kind), manifest, table, complaint)


def require_sound_full(bundle: BundleRows, manifest: Manifest, schema: Schema) -> None:
    """Its layout fits already. Raises DamagedError."""
    for table in schema.key_tables:
        complaint = _judge_full(bundle, manifest, schema, table)
        if complaint:
            raise _damaged(bundle.prefix.parent, manifest, table, complaint)


def _judge_delta(
    manifest: Manifest, schema: Schema, table: KeyTable, update: FedUpdate, before: Counts | None
) -> str:
    counts = _counts_of(manifest, table)
    told = update[table.counts + names.VALUE_SUFFIX]
    grown = {table.rows: (before or counts).rows, table.index: (before or counts).buckets}
    return (
        _judge_counts(schema, table, counts, Counts.of(told[0]) if len(told) else counts)
        or _judge_growth(table.rows, update, grown[table.rows], counts.rows)
        or _judge_growth(table.index, update, grown[table.index], counts.buckets)
        or why_malformed(
            update[table.index + names.IDS_SUFFIX], update[table.index + names.ROWS_SUFFIX], counts
        )
    )


def _judge_moves(record: TableRecord, moves: KeyChanges) -> str:
    """A manifest that says how many keys come and go is right."""
    if record.keys_new is None:
        return ""
    found, told = (len(moves.come), len(moves.gone)), (record.keys_new, record.rows_deleted)
    return "" if found == told else f"{found} keys come and go, and {told} by its manifest"


def _judge_full(bundle: BundleRows, manifest: Manifest, schema: Schema, table: KeyTable) -> str:
    counts = _counts_of(manifest, table)
    complaint = _judge_counts(schema, table, counts, Counts.of(bundle.read(table.counts)))
    if complaint:
        return complaint
    row_bytes = BUCKET_COLUMNS * np.dtype(np.int64).itemsize
    for first, end in row_ranges(counts.buckets, rows_within(_CHUNK_BYTES, row_bytes)):
        buckets = bundle.read_rows(table.index, first, end)
        complaint = why_malformed(np.arange(first, end), buckets, counts)
        if complaint:
            return complaint
    return ""


def _judge_counts(schema: Schema, table: KeyTable, counts: Counts, told: Counts) -> str:
    if told != counts:
        return f"its counts are {told}, and those of its manifest {counts}"
    reserved = {spec.key: spec.shape[0] for spec in schema.tables}
    return counts.why_wrong(max_rows=reserved[table.rows], max_buckets=reserved[table.index])


def _judge_growth(key: str, update: FedUpdate, before: int, after: int) -> str:
    """A row that comes into use and is not in the update would hold whatever lies in memory."""
    ids = update[key + names.IDS_SUFFIX]
    if before > after:
        return f"{key!r} has {after} rows in use, and had {before}"
    if len(ids) and not 0 <= ids.min() <= ids.max() < after:
        return f"it has rows of {key!r} outside the {after} in use"
    missing = after - before - int(np.count_nonzero(ids >= before))
    return f"{missing} rows of {key!r} come into use, and it does not have them" if missing else ""


def _counts_of(manifest: Manifest, table: KeyTable) -> Counts:
    rows, buckets = (manifest.tables[key].stored_shape[0] for key in (table.rows, table.index))
    return Counts(rows, buckets, mask_of(buckets))


def _damaged(directory: Path, manifest: Manifest, table: KeyTable, complaint: str) -> DamagedError:
    return DamagedError(
        f"{manifest.kind} {manifest.position} has keys of {table.rows!r} that lead nowhere: {complaint}",
        path=directory / manifest.prefix,
        position=str(manifest.position),
        hint="wait for the next full",
    )
