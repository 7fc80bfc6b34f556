"""`DeltaWriter`: incremental checkpoints for a custom training loop on tf.Module or tf.Variable."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hotdelta.chain.format.position import Position
from hotdelta.errors import ConfigurationError, HotdeltaError
from hotdelta.logs import counted, event
from hotdelta.remote.publish.resuming import bring_in
from hotdelta.remote.publish.spool import FOLD_DELTAS_ABOVE, SpoolOptions
from hotdelta.train.checkpoint_config import CheckpointConfig, settle
from hotdelta.train.jobs.job import Job
from hotdelta.train.loop_model import (
    built_optimizer_state,
    given_slots,
    id_rules_of,
    keyed_variables,
    refuse_other_kinds,
    serving_graph,
)
from hotdelta.train.model.assembly import assemble, choose_recorders, find_table_keys, growing_tables
from hotdelta.train.model.module_keys import name_unsaved_optimizers
from hotdelta.train.model.optimizer_slots import can_record_rows, count_every_step, innermost
from hotdelta.train.model.variables import ModelVariables, Table
from hotdelta.train.resume.loading import Resumed
from hotdelta.train.rows.trackers import warn_of_comparing
from hotdelta.train.save.chain_trainer import ChainTrainer
from hotdelta.train.save.options import Telling, WriterOptions, WriterStatus
from hotdelta.train.save.pauses import StepBrackets, TrainedBatch
from hotdelta.train.save.server_probe import tables_for_servers
from hotdelta.train.tables.server_rows import is_on_servers
from hotdelta.train.tables.sharded import ShardedTouchedRows
from hotdelta.train.tables.touched import AnyTouchedRows
from hotdelta.train.termination import TerminationSignal, in_flight

logger = logging.getLogger(__name__)


class DeltaWriter:
    """Saves the variables of a custom loop as a chain of deltas and fulls.

    Make it before the training function is traced, put every training step into `with writer.training_step():` (or call
    `step` after each), and `close` (or use `with`) at the end. All methods belong to the thread that trains.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path | CheckpointConfig,
        model: tf.Module | Mapping[str, tf.Variable],
        save_secs: float | None = 600,
        save_incremental_secs: float | None = 5,
        *,
        save_steps: int | None = None,
        save_incremental_steps: int | None = None,
        save_epochs: int | None = None,
        save_incremental_epochs: int | None = None,
        save_incremental_touched_rows: int | None = None,
        keep_fulls: int = 5,
        scrub_saves: int = 128,
        tables: Iterable[str | tf.Variable] = (),
        optimizer: Any = None,
        slots: Mapping[str, Mapping[str, tf.Variable]] | None = None,
        tracking: Mapping[str, str] | None = None,
        signatures: Mapping[str, Any] | None = None,
        serving_model: tf.Module | Mapping[str, tf.Variable] | None = None,
        state: Mapping[str, Callable[[], Any]] | None = None,
        resume: bool = True,
        job: Job | None = None,
        rows_written_by: str = "servers",
        metrics_port: int | str | None = None,
        metrics_registry: Any = None,
        tensorboard_dir: str | Path | None = None,
        spool_dir: str | Path | None = None,
        spool_bytes: int | None = None,
        when_spool_is_full: str = "postpone",
        publish_timeout_secs: float = 60,
        fold_deltas_above: int | None = FOLD_DELTAS_ABOVE,
    ) -> None:
        """Takes the directory and resumes at once; `resumed` says where.

        `checkpoint_dir`: a directory, or the address of a store (`s3://bucket/prefix`); or a CheckpointConfig, which
        says when to save and what to keep as well. Saves when any one of the given amounts has passed, as the callback
        for Keras does; None switches one off.
        `model`: its variables are keyed by attribute path, or by the given names. `tables`: those of which deltas
        carry rows. `optimizer`: a Keras optimizer, already built; one of hotdelta.keras records the rows it writes.
        Without one, give the `slots` of each table by table key, and tell the rows with `touch` (tracking "touched").
        `signatures`: tf.functions with an input_signature, for serving. `serving_model`: where those are of another
        model, with variables of the same keys and shapes: one that is served from one machine when `model` has
        tables that are sharded over parameter servers. Its values do not matter.
        `state`: functions by name, as `register_state` takes them, of which the first commit is to have the values too.
        `job`: this is trainer 0 of a job; the others have a TrainerProgress each.
        `rows_written_by`: rows on parameter servers are written to the directory by the "servers", which must see it,
        or by the "coordinator", which fetches them all.
        `metrics_port`: where Prometheus asks how saving goes, a port of loopback or "HOST:PORT"; `metrics_registry`: of
        prometheus_client, in place of a port; `tensorboard_dir`: where TensorBoard finds lag, rows and bytes.
        `spool_dir`, `spool_bytes`, `when_spool_is_full`, `publish_timeout_secs`, `fold_deltas_above`: for the
        address of a store in place of a directory (docs/remote.md).
        """
        refuse_other_kinds(tables=tables, slots=slots, tracking=tracking, signatures=signatures, state=state)
        options = WriterOptions.of(
            save_secs=save_secs,
            save_incremental_secs=save_incremental_secs,
            save_steps=save_steps,
            save_incremental_steps=save_incremental_steps,
            save_epochs=save_epochs,
            save_incremental_epochs=save_incremental_epochs,
            save_incremental_touched_rows=save_incremental_touched_rows,
            keep_fulls=keep_fulls,
            scrub_saves=scrub_saves,
            telling=Telling.of(metrics_port, metrics_registry, tensorboard_dir),
            spool=SpoolOptions.of(
                spool_dir, spool_bytes, when_spool_is_full, publish_timeout_secs, fold_deltas_above
            ),
        )
        run_dir, options = settle(checkpoint_dir, options)
        keyed = keyed_variables(model)
        if isinstance(model, tf.Module):
            name_unsaved_optimizers(model, optimizer)
        key_of = {id(item.variable): item.key for item in keyed}
        table_keys = find_table_keys(tables, key_of, given=growing_tables(keyed))
        found_slots, rest = built_optimizer_state(optimizer, keyed)
        if optimizer is not None:
            count_every_step(optimizer)
        found_slots.extend(given_slots(slots or {}, keyed))
        id_rules = id_rules_of(model)
        served = model if serving_model is None else serving_model
        served_rules = id_rules if served is model else id_rules_of(served)
        schema, publish = serving_graph(keyed, served, signatures, table_keys, served_rules)
        variables = assemble(
            keyed,
            table_keys=table_keys,
            slots=found_slots,
            training_only=rest,
            schema=schema,
            id_rules=id_rules,
        )
        recorders = choose_recorders(
            variables.tables,
            wanted=tracking or {},
            refusal=None if can_record_rows(optimizer) else "nothing records the rows that training writes",
            can_be_told=optimizer is None,
        )
        self._touched = recorders.touched
        self._signals = TerminationSignal()
        self._is_closed = False
        recording = innermost(optimizer) if can_record_rows(optimizer) else None
        if recording is not None:
            for table in variables.tables:
                if table.key in recorders.touched:
                    _record(recording, table, recorders.touched[table.key])
        self._trainer = ChainTrainer(run_dir, options=options, publish=publish, job=job)
        self._trainer.is_told_to_stop = lambda: self._signals.is_received
        on_servers = tables_for_servers(variables, rows_written_by)
        self._steps = LoopSteps(self._trainer, recording, has_workers=has_servers(variables))
        self._trainer.watch = self._steps
        for name, read in (state or {}).items():
            self._trainer.states.register(name, read)
        if resume:
            bring_in(run_dir)
        self.resumed: Resumed | None = self._trainer.start(
            variables,
            touched=recorders.touched,
            demanded=recorders.demanded,
            on_servers=on_servers,
            is_resuming=resume,
        )
        warn_of_comparing(recorders.why_compared(variables.tables))

    @property
    def status(self) -> WriterStatus:
        return self._trainer.status

    @property
    def position(self) -> Position | None:
        """The newest committed position."""
        return self._trainer.position

    def touch(self, table: str, ids: Any) -> None:
        """Tell, after the write, which rows of a table (and of its slots) a step wrote.

        Also inside a tf.function, as the workers of a ClusterCoordinator run it: the rows are recorded after
        everything that the function has written so far.
        Raises ConfigurationError for an id that the table does not have; from inside a tf.function TensorFlow's
        InvalidArgumentError with the same words.
        """
        self._require_open()
        if table not in self._touched:
            raise ConfigurationError(
                f"table {table!r} is not tracked as touched", hint=f'pass tracking={{"{table}": "touched"}}'
            )
        touched = self._touched[table]
        ids = _row_ids(table, ids)
        if tf.is_symbolic_tensor(ids):
            written = _stateful_operations(ids.graph)
            ids = tf.cast(ids, tf.int64)
            is_known = tf.reduce_all((ids >= 0) & (ids < touched.rows))
            known = tf.raw_ops.Assert(
                condition=is_known, data=[_not_a_row(table, touched.rows), ids], summarize=8
            )
            with tf.control_dependencies([*written, known]):
                touched.record(ids)
        else:
            _refuse_unknown(table, ids, touched.rows)
            touched.record(tf.constant(ids, tf.int64))

    @contextmanager
    def training_step(self, *, bookmark: Any = None, event_time: float | None = None) -> Iterator[None]:
        """Around all that writes in one step; saves when one is due, as `step` does, in whose place it stands.

        What is due while the loop waits for data is saved then: no save falls into the block.
        `bookmark`: where the reader goes on after this step; `event_time`: of the newest example in it.
        """
        with self._steps.around_step(self._open, TrainedBatch(bookmark, event_time)):
            yield
        self._stop_if_told()

    def step(self, steps: int = 1, *, bookmark: Any = None, event_time: float | None = None) -> None:
        """Tell that training steps were made; saves when one is due.

        What is due while the loop waits is saved with the next step: nobody knows when that begins. Use
        `training_step` where the loop may wait. `bookmark` and `event_time` as there, of the last of the steps.
        """
        self._steps.tell(self._open, steps, TrainedBatch(bookmark, event_time))
        self._stop_if_told()

    def _stop_if_told(self) -> None:
        """Not with the lock held: whoever handles the signal may close us."""
        if self._signals.is_received:
            try:
                self._open.finish(self._steps.prove_recording)
            except HotdeltaError as error:
                event(logger, logging.ERROR, "the last save failed", reason=error)
            self._signals.stop()
            # Whoever handled the signal before us may let training go on.
            self._signals.pass_on_received()

    def end_epoch(self, epoch: int) -> None:
        self._proved().end_epoch(epoch)

    def register_state(self, name: str, read: Callable[[], Any]) -> None:
        """Save what `read` returns (bytes, or JSON) with every later commit; `resumed.state` has what was saved."""
        self._open.states.register(name, read)

    def watermark(self, seconds: float) -> None:
        self._open.watermark(seconds)

    def save(self) -> Position | None:
        """Commit a delta of everything up to now, and wait for it. What fails is logged, and due again."""
        return self._proved().save()

    def save_full(self) -> Position | None:
        """Commit a full checkpoint of everything up to now, and wait for it."""
        return self._proved().save_full()

    def close(self) -> None:
        """Save what is left and give the directory back. To close twice is harmless.

        Raises UnsavedError when the last save is not on disk, UnpublishedError when it is not in the store.
        """
        if self._is_closed:
            return
        try:
            self._open.finish(self._steps.prove_recording)
        finally:
            self._is_closed = True
            self._trainer.close()

    def __enter__(self) -> Self:
        """Inside the block SIGTERM is kept until the step that it interrupts is saved."""
        self._require_open()
        self._signals.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with in_flight(error):
                self.close()
        finally:
            self._signals.stop()
        self._signals.pass_on_received()

    @property
    def _open(self) -> ChainTrainer:
        self._require_open()
        return self._trainer

    def _proved(self) -> ChainTrainer:
        """For a save that was asked for: after a look at what was traced."""
        self._require_open()
        self._steps.prove_recording()
        return self._trainer

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConfigurationError("the writer is closed", hint="make a new DeltaWriter to go on saving")


class LoopSteps(StepBrackets):
    """The steps of a loop, whose traces are checked once each. `optimizer`: what records; None: nothing does."""

    def __init__(self, trainer: ChainTrainer, optimizer: Any, *, has_workers: bool) -> None:
        super().__init__(has_workers=has_workers)
        self._trainer = trainer
        self._optimizer = optimizer
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._checked_count = -1

    def note_steps(self, steps: int) -> bool:  # noqa: ARG002 - a trace is as new after many
        return self._optimizer is not None and self._optimizer.trace_count != self._checked_count

    def prove_recording(self) -> None:
        if self._optimizer is None:
            return
        count = self._optimizer.trace_count
        graphs = [graph for graph in self._optimizer.traced_graphs if graph not in self._checked]
        self._trainer.check_traces(graphs)
        self._checked.update(graphs)
        self._checked_count = count


def has_servers(variables: ModelVariables) -> bool:
    return any(is_on_servers(item.variable) for table in variables.tables for item in table.row_variables)


def _record(optimizer: Any, table: Table, touched: AnyTouchedRows) -> None:
    if isinstance(touched, ShardedTouchedRows):
        for shard, part in zip(touched.shards, touched.parts, strict=True):
            optimizer.record_rows(shard.variable, part)
    else:
        optimizer.record_rows(table.values.variable, touched)


def _row_ids(table: str, given: Any) -> Any:
    """Not a mask of the rows, which would pass for the rows 0 and 1."""
    ids = given if tf.is_symbolic_tensor(given) else np.asarray(given)
    dtype = tf.as_dtype(ids.dtype)
    if not dtype.is_integer and not (isinstance(ids, np.ndarray) and not ids.size):
        raise ConfigurationError(
            f"rows of {table!r} are told as {dtype.name}", hint="give their ids, which are whole numbers"
        )
    return ids


def _refuse_unknown(table: str, ids: NDArray[Any], rows: int) -> None:
    for bad_id in (ids.min(), ids.max()) if ids.size else ():
        if not 0 <= bad_id < rows:
            raise ConfigurationError(
                f"{_not_a_row(table, rows)}: {bad_id}", hint=f"ids are from 0 to {rows - 1}"
            )


def _not_a_row(table: str, rows: int) -> str:
    # Without quotes: TensorFlow would print a backslash before each.
    return f"an id told for table {table}, which has {counted(rows, 'row')}, is not one of them"


def _stateful_operations(graph: tf.Graph) -> list[tf.Operation]:
    return [operation for operation in graph.get_operations() if operation.op_def.is_stateful]
