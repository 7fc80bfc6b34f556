"""Puts a Session to a saved state: the full through TensorFlow's own restore operations, then every delta after it.

Nothing is changed before everything is checked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest, TableRecord, Tracking
from hotdelta.chain.history.scan import Listing, Scanner
from hotdelta.chain.history.signing import SigningKey, refuse_unsigned, trusted_listing
from hotdelta.chain.history.state import ChainState, find_full, find_full_state, find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store import checkpoint_file
from hotdelta.compat.v1.embedding.shards import other_parts
from hotdelta.compat.v1.graph.lookup_strategy import moved_rows
from hotdelta.compat.v1.graph.saved_variables import is_own_record, key_of
from hotdelta.compat.v1.recording.training_graph import GraphTable, TrainingGraph
from hotdelta.errors import CommitError, ModelMismatchError
from hotdelta.logs import event
from hotdelta.train.resume.fitting import (
    begins_anew,
    check_fits,
    find_misfits,
    read_slices,
    read_table,
    read_value,
)
from hotdelta.train.tables.key_upkeep import Moment
from hotdelta.train.tables.row_values import Array, Ids

logger = logging.getLogger(__name__)

# A step that has found its rows in tables with keys has so long to write to them before they are restored.
STEP_SECONDS = 0.3


class _InvalidArgument(tf.errors.InvalidArgumentError):
    """Takes a message alone, as every other exception does. `message` is a property of tf.errors.OpError."""

    message = ""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


class GraphMismatchError(ModelMismatchError, _InvalidArgument):
    """A ModelMismatchError that is a tf.errors.InvalidArgumentError, too: that is what tf.train.Saver raises."""


@contextmanager
def as_invalid_argument() -> Iterator[None]:
    """Whatever does not fit is raised as GraphMismatchError."""
    try:
        yield
    except ModelMismatchError as error:
        raise GraphMismatchError(error.message, problems=error.problems, hint=error.hint) from error


v1 = tf.compat.v1


def find_meant(save_path: str) -> ChainState | None:
    """What restoring `save_path` means: the newest full means everything that was committed after it, too.

    An older full means just that full; a delta means what it led to. None: it is no checkpoint of a chain. Raises
    ChainError when all is damaged, or when it has no manifest that the signing key signed and there is such a key.
    """
    run_dir, prefix = _split(save_path)
    if run_dir.name == names.DELTA_DIRECTORY:
        return _find_at_delta(run_dir.parent, prefix)
    listing = _scan(save_path)
    newest = {_newest_full(listing), _newest_full(trusted_listing(run_dir, listing))}
    return find_state(run_dir, listing=listing) if prefix in newest else find_meant_full(save_path)


def _find_at_delta(run_dir: Path, prefix: str) -> ChainState | None:
    listing = Scanner(run_dir).scan()
    deltas = (m for m in listing.manifests if m.kind is Kind.DELTA and m.prefix == prefix)
    asked = next(deltas, None)
    return None if asked is None else find_state(run_dir, listing=listing, position=asked.position)


def find_meant_full(save_path: str) -> ChainState | None:
    """This very full, whatever was committed after it, verified. None, and ChainError: as `find_meant`.

    Whoever reads a checkpoint alone calls this before: there is no other check of what tf.train reads.
    """
    run_dir, prefix = _split(save_path)
    state = find_full_state(run_dir, prefix, listing=_scan(save_path))
    if state is None and v1.train.checkpoint_exists(save_path):
        refuse_unsigned(save_path)
    return state


def find_asked_full(save_path: str) -> Manifest | None:
    """As `find_meant_full`, for those who have the files checked by somebody else."""
    run_dir, prefix = _split(save_path)
    return find_full(run_dir, prefix, listing=_scan(save_path))


def _newest_full(listing: Listing) -> str | None:
    return next((m.prefix for m in reversed(listing.manifests) if m.kind is Kind.FULL), None)


def _split(save_path: str) -> tuple[Path, str]:
    return Path(save_path).parent, Path(save_path).name


def _scan(save_path: str) -> Listing:
    """What was committed beside a checkpoint; nothing counts when stock TensorFlow wrote over it, or it is a URL."""
    is_of_chain = "://" not in str(save_path) and not _is_foreign(save_path)
    return Scanner(Path(save_path).parent).scan() if is_of_chain else Listing()


def highest_step(save_path: str) -> int | None:
    """What find_meant cannot come beyond, by the manifests alone: no file is checked. None: they do not say."""
    manifests = _scan(save_path).manifests
    is_known = any(manifest.prefix == Path(save_path).name for manifest in manifests)
    return max(manifest.step for manifest in manifests) if is_known else None


def warn_of_deltas(save_path: str | None) -> None:
    """For those who read this checkpoint alone, although it is the newest full of a chain and deltas follow it."""
    if not save_path:
        return
    manifests = _scan(save_path).manifests
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
        checkpoint_file.refresh_fulls(run_dir, disk=Disk())


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
    is_trusted = SigningKey.from_environment() is None
    outcome = "training goes on from it" if is_trusted else "nobody signed it, so the chain is gone on with"
    event(
        logger,
        logging.WARNING,
        f"a checkpoint of no chain was saved after the chain; {outcome}",
        checkpoint=foreign,
        newest_of_chain=newest.position,
    )
    return is_trusted


def _is_foreign(save_path: str) -> bool:
    """Whether a stock Saver wrote what is there now, perhaps over a full of ours."""
    try:
        return not tf.train.load_checkpoint(save_path).has_tensor(names.IDENTITY_TENSOR)
    except (tf.errors.OpError, ValueError):
        return False


def restore_state(
    session: Any, graph: TrainingGraph, saved: ChainState, restore_full: Callable[[str], None]
) -> None:
    """Raises ModelMismatchError, which names each tensor and both shapes; then nothing was changed."""
    reader = StateReader(saved)
    saved_keys = reader.newest_keys()
    with_keys = (key for key in saved_keys if f"{key}_index" in saved_keys)
    parts = other_parts((table.name for table in graph.keyed), with_keys)
    misfits = parts or find_misfits(reader, graph.variables)
    if misfits:
        raise ModelMismatchError(
            "the model does not fit the checkpoint: " + "; ".join(misfits),
            problems=tuple(misfits),
            hint="build the model as it was saved, or use another directory; nothing was changed",
        )
    moved = {table.key: moved_in(table, saved.newest) for table in graph.tables}
    graph.reach_in(session)
    with graph.alone():
        _restore(session, graph, reader, moved, restore_full)
    graph.restored = saved.node
    for problem in saved.problems:
        event(logger, logging.ERROR, "resuming before a damaged link", reason=problem)
    event(
        logger, logging.INFO, "resumed", position=saved.node, step=saved.newest.step, deltas=len(saved.deltas)
    )


def _restore(
    session: Any,
    graph: TrainingGraph,
    reader: StateReader,
    moved: Mapping[str, Ids | None],
    restore_full: Callable[[str], None],
) -> None:
    saved = reader.state
    if graph.has_values_on_servers(session):
        # What workers have found rows for until now they write now.
        threading.Event().wait(STEP_SECONDS)
    graph.begin_recording(session)
    # Before the rows: a worker that trains meanwhile sets its flags after it has written.
    session.run(graph.flag_initializers)
    restore_full(saved.path(saved.full))
    begun = _begin_own_records(session, graph, reader)
    for table in graph.tables:
        rows = moved[table.key]
        if rows is None:
            _apply_deltas(session, table, reader, begun)
        else:
            _write_moved(session, table, reader, rows)
    for other in graph.variables.others:
        if other.key not in begun:
            graph.values.write(session, other.key, read_value(reader, other))
    _note_loaded(session, graph, begun, Moment.of(saved.newest.step, saved.newest.watermark))
    session.run(graph.marker_initializers)


def moved_in(table: GraphTable, manifest: Manifest) -> Ids | None:
    """For each row of the table the row of the checkpoint that has its id; None when rows are where they were."""
    if table.saved.growth is not None:
        return None
    saved = manifest.tables.get(table.key) or _whole(table)
    return moved_rows(
        table.key,
        saved=saved.part_rows or (table.table.rows,),
        saved_strategy=saved.strategy,
        live=table.saved.part_rows or (table.table.rows,),
        live_strategy=table.strategy,
    )


def restored_state(graph: TrainingGraph, run_dir: Path, listing: Listing) -> ChainState | None:
    """What the Session was restored to. None when it has nothing to do with what is on disk.

    Raises CommitError when somebody else went on from there meanwhile, ModelMismatchError.
    """
    node = graph.restored
    if node is None:
        return None
    state = find_state(run_dir, listing=listing)
    if state is None or state.node != node:
        found = [m for m in listing.manifests if m.kind is Kind.FULL and m.node == node]
        state = find_full_state(run_dir, found[0].prefix, listing=listing) if found else None
        if state is None:
            raise CommitError(
                f"the Session was restored to {node}, which is no longer the newest state in {run_dir}",
                hint="another trainer wrote here meanwhile: start again",
            )
    check_fits(StateReader(state), graph.variables)
    return state


def lies_as_saved(graph: TrainingGraph, newest: Manifest) -> bool:
    """Whether deltas of this graph can follow: not when its rows lie in other parts, or its schema is another."""
    is_moved = any(moved_in(table, newest) is not None for table in graph.tables)
    return not is_moved and newest.schema == graph.variables.schema.digest


def saved_values(graph: TrainingGraph, reader: StateReader) -> dict[str, Array]:
    """What is on disk of every variable that is saved whole."""
    return {other.key: read_value(reader, other) for other in graph.variables.others}


def saved_rows(graph: TrainingGraph, reader: StateReader) -> Iterator[tuple[str, Array]]:
    """What is on disk of every row variable of the tables that are compared, one at a time (they are large)."""
    for table in graph.tables:
        if table.flags is None:
            for item, values in read_table(reader, table.table):
                yield item.key, values


def _whole(table: GraphTable) -> TableRecord:
    values = table.table.values
    return TableRecord(values.shape, values.dtype, Tracking.CHANGED, 0)


def _apply_deltas(session: Any, table: GraphTable, reader: StateReader, begun: Collection[str]) -> None:
    """A variable of which this graph looks up rows may have been saved whole by a graph that does not."""
    for item in table.table.row_variables:
        operations = table.rows[item.key]
        if item.key in begun:
            continue
        if is_own_record(item.key):
            for first, rows in read_slices(reader, item, owner=table.key):
                operations.write(session, np.arange(first, first + len(rows), dtype=np.int64), rows)
            continue
        for ids, rows in reader.changes(item.key, owner=table.key, dtype=operations.saved.array_dtype):
            if ids is None:
                operations.write_whole(session, rows)
            else:
                operations.write(session, ids, rows)


def _begin_own_records(session: Any, graph: TrainingGraph, reader: StateReader) -> frozenset[str]:
    """What tables with keys know of their keys: no Saver restores it. Returns what the checkpoint does not have."""
    session.run([variable.initializer for table in graph.keyed for variable in table.own_record])
    return frozenset(item.key for item in begins_anew(reader, graph.variables))


def _note_loaded(session: Any, graph: TrainingGraph, begun: Collection[str], now: Moment) -> None:
    for table in graph.keyed:
        anew = {id(variable) for variable in table.own_record if key_of(variable) in begun}
        table.growth.note_loaded(except_for=anew)
        table.note_begun()
        if table.is_on_server:
            # Now, and not when the chain goes on: other workers may have trained by then.
            table.growth.fill_now()
            table.upkeep.begin(now)
    session.run(graph.resets_of_keyed)


def _write_moved(session: Any, table: GraphTable, reader: StateReader, rows: Ids) -> None:
    for item, values in read_table(reader, table.table):
        table.rows[item.key].write_whole(session, values[rows])
