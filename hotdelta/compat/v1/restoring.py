"""Puts a Session to a saved state: the full through TensorFlow's own restore operations, then every delta after it.

Nothing is changed before everything is checked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain import names, state_file
from hotdelta.chain.bundle import BundleReader
from hotdelta.chain.delta_tensors import has_value, ids_tensor
from hotdelta.chain.disk import Disk
from hotdelta.chain.manifest import Kind, Manifest, TableRecord, Tracking
from hotdelta.chain.scan import Listing, Scanner
from hotdelta.chain.verification import directory_of
from hotdelta.compat.v1.lookup_strategy import moved_rows
from hotdelta.compat.v1.session_values import RowOperations
from hotdelta.compat.v1.training_graph import GraphTable, TrainingGraph
from hotdelta.errors import CommitError, ModelMismatchError
from hotdelta.logs import event
from hotdelta.train.resume import ResumePoint, ResumeReader, check_fits, find_resume_point
from hotdelta.train.row_values import Array, Ids

logger = logging.getLogger(__name__)


def find_point(save_path: str) -> ResumePoint | None:
    """What restoring `save_path` means: the newest full means everything that was committed after it, too.

    An older full means just that full. None: it is no checkpoint of a chain. Raises ChainError when all is damaged.
    """
    if _is_foreign(save_path):
        return None
    run_dir, prefix = Path(save_path).parent, Path(save_path).name
    listing = Scanner(run_dir).scan()
    fulls = [manifest for manifest in listing.manifests if manifest.kind is Kind.FULL]
    if fulls and fulls[-1].prefix == prefix:
        return find_resume_point(run_dir, listing)
    asked = [manifest for manifest in fulls if manifest.prefix == prefix]
    return ResumePoint(asked[0], (), ()) if asked else None


def find_full(save_path: str) -> ResumePoint | None:
    """This very full, whatever was committed after it. None: it is no checkpoint of a chain."""
    manifests = [] if _is_foreign(save_path) else Scanner(Path(save_path).parent).scan().manifests
    asked = [m for m in manifests if m.kind is Kind.FULL and m.prefix == Path(save_path).name]
    return ResumePoint(asked[0], (), ()) if asked else None


def highest_step(save_path: str) -> int | None:
    """What find_point cannot come beyond, by the manifests alone: no file is checked. None: they do not say."""
    manifests = [] if _is_foreign(save_path) else Scanner(Path(save_path).parent).scan().manifests
    is_known = any(manifest.prefix == Path(save_path).name for manifest in manifests)
    return max(manifest.step for manifest in manifests) if is_known else None


def warn_of_deltas(save_path: str | None) -> None:
    """For those who read this checkpoint alone, although it is the newest full of a chain and deltas follow it."""
    if not save_path or "://" in str(save_path) or _is_foreign(save_path):
        return
    manifests = Scanner(Path(save_path).parent).scan().manifests
    fulls = [manifest for manifest in manifests if manifest.kind is Kind.FULL]
    if fulls and fulls[-1].prefix == Path(save_path).name and manifests[-1].position > fulls[-1].position:
        event(
            logger,
            logging.WARNING,
            "an old state is read: deltas follow this checkpoint, and only a Saver with incremental_save_restore=True "
            "restores them",
            checkpoint=save_path,
            step=fulls[-1].step,
            newest_step=manifests[-1].step,
        )


def refresh_state_file(run_dir: Path) -> None:
    """A crash may have come between a commit and the file by which TensorFlow finds it.

    A checkpoint that somebody else wrote after the chain stays the newest: that is where training came to. One that was
    saved by hand while the chain went on does not.
    """
    newest = tf.train.latest_checkpoint(str(run_dir))
    if newest is None or not _is_foreign(newest) or not _is_chosen_last(newest, run_dir):
        state_file.refresh_fulls(run_dir, disk=Disk())


def _is_chosen_last(foreign: str, run_dir: Path) -> bool:
    """Whether the file that names a checkpoint of somebody else was written after everything that the chain has."""
    manifests = Scanner(run_dir).scan().manifests
    if not manifests:
        return True
    newest = manifests[-1]
    committed = directory_of(run_dir, newest.kind) / names.manifest_name(newest.prefix)
    # Not by the clocks of those who wrote them: one disk has both.
    if (run_dir / names.STATE_FILE).stat().st_mtime_ns < committed.stat().st_mtime_ns:
        return False
    event(
        logger,
        logging.WARNING,
        "a checkpoint of no chain was saved after the chain; training goes on from it",
        checkpoint=foreign,
        newest_of_chain=newest.position,
    )
    return True


def _is_foreign(save_path: str) -> bool:
    """Whether a stock Saver wrote what is there now, perhaps over a full of ours."""
    try:
        return not tf.train.load_checkpoint(save_path).has_tensor(names.IDENTITY_TENSOR)
    except (tf.errors.OpError, ValueError):
        return False


def restore_point(
    session: Any, graph: TrainingGraph, run_dir: Path, point: ResumePoint, restore_full: Callable[[str], None]
) -> None:
    """Raises ModelMismatchError, which names each tensor and both shapes; then nothing was changed."""
    with ResumeReader(run_dir, point) as reader:
        misfits = reader.misfits(graph.variables)
        if misfits:
            raise ModelMismatchError(
                "the model does not fit the checkpoint: " + "; ".join(misfits),
                problems=tuple(misfits),
                hint="build the model as it was saved, or use another directory; nothing was changed",
            )
        moved = {table.key: moved_in(table, point.newest) for table in graph.tables}
        graph.begin_recording(session)
        # Before the rows: a worker that trains meanwhile sets its flags after it has written.
        session.run(graph.flag_initializers)
        restore_full(str(run_dir / point.full.prefix))
        for table in graph.tables:
            rows = moved[table.key]
            if rows is None:
                _apply_deltas(session, table, run_dir, point)
            else:
                _write_moved(session, table, reader, rows)
        for other in graph.variables.others:
            graph.values.write(session, other.key, reader.other_value(other))
    session.run(graph.marker_initializers)
    graph.restored = point.node
    for problem in point.problems:
        event(logger, logging.ERROR, "resuming before a damaged link", reason=problem)
    event(
        logger, logging.INFO, "resumed", position=point.node, step=point.newest.step, deltas=len(point.deltas)
    )


def moved_in(table: GraphTable, manifest: Manifest) -> Ids | None:
    """For each row of the table the row of the checkpoint that has its id; None when rows are where they were."""
    saved = manifest.tables.get(table.key) or _whole(table)
    return moved_rows(
        table.key,
        saved=saved.part_rows or (table.table.rows,),
        saved_strategy=saved.strategy,
        live=table.saved.part_rows or (table.table.rows,),
        live_strategy=table.strategy,
    )


def restored_point(graph: TrainingGraph, run_dir: Path, listing: Listing) -> ResumePoint | None:
    """What the Session was restored to, to be gone on from.

    None when it has nothing to do with what is on disk, or its rows lie in other parts. Raises CommitError when
    somebody else went on from there meanwhile, ModelMismatchError.
    """
    node = graph.restored
    if node is None:
        return None
    point = find_resume_point(run_dir, listing)
    if point is None or point.node != node:
        found = [m for m in listing.manifests if m.kind is Kind.FULL and m.node == node]
        if not found:
            raise CommitError(
                f"the Session was restored to {node}, which is no longer the newest state in {run_dir}",
                hint="another trainer wrote here meanwhile: start again",
            )
        point = ResumePoint(found[0], (), ())
    with ResumeReader(run_dir, point) as reader:
        check_fits(reader, graph.variables)
    is_moved = any(moved_in(table, point.newest) is not None for table in graph.tables)
    is_same_schema = point.newest.schema == graph.variables.schema.digest
    return None if is_moved or not is_same_schema else point


def saved_values(graph: TrainingGraph, reader: ResumeReader) -> dict[str, Array]:
    """What is on disk of every variable that is saved whole."""
    return {other.key: reader.other_value(other) for other in graph.variables.others}


def saved_rows(graph: TrainingGraph, reader: ResumeReader) -> Iterator[tuple[str, Array]]:
    """What is on disk of every row variable of the tables that are compared, one at a time (they are large)."""
    for table in graph.tables:
        if table.flags is None:
            for item, values in reader.table_values(table.table):
                yield item.key, values


def _whole(table: GraphTable) -> TableRecord:
    values = table.table.values
    return TableRecord(values.shape, values.dtype, Tracking.CHANGED, 0)


def _apply_deltas(session: Any, table: GraphTable, run_dir: Path, point: ResumePoint) -> None:
    for manifest in point.deltas:
        with BundleReader(directory_of(run_dir, Kind.DELTA), manifest.prefix) as reader:
            for key, operations in table.rows.items():
                _apply_delta(session, operations, reader, key, owner=table.key)


def _apply_delta(
    session: Any, operations: RowOperations, reader: BundleReader, key: str, *, owner: str
) -> None:
    """A variable of which this graph looks up rows may have been saved whole by a graph that does not."""
    saved = operations.saved
    if key + names.ROWS_SUFFIX in reader.entries:
        ids = reader.read(ids_tensor(reader.entries, key, owner=owner))
        rows = reader.map_bytes(key + names.ROWS_SUFFIX).view(saved.numpy_dtype)
        operations.write(session, ids, np.array(rows.reshape(len(ids), *saved.shape[1:])))
    elif has_value(reader.entries, key):
        value = reader.map_bytes(key + names.VALUE_SUFFIX).view(saved.numpy_dtype).reshape(saved.shape)
        operations.write_whole(session, np.array(value))


def _write_moved(session: Any, table: GraphTable, reader: ResumeReader, rows: Ids) -> None:
    for item, values in reader.table_values(table.table):
        table.rows[item.key].write_whole(session, values[rows])
