"""`DeltaCheckpoint`: the Keras callback. A thin layer that tells `ChainTrainer` when steps and epochs end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import keras

from hotdelta.chain.format.manifest import Tracking
from hotdelta.chain.format.position import Position
from hotdelta.errors import ConfigurationError, HotdeltaError
from hotdelta.keras import first_batch, fit_hooks, held_directories
from hotdelta.keras.attachment import Attachment
from hotdelta.keras.binding import BindingOptions, ModelBinding
from hotdelta.logs import event
from hotdelta.remote.publish.resuming import bring_in
from hotdelta.remote.publish.spool import FOLD_DELTAS_ABOVE, SpoolOptions
from hotdelta.train.checkpoint_config import CheckpointConfig, settle
from hotdelta.train.jobs.job import Job
from hotdelta.train.model.assembly import as_tuple
from hotdelta.train.model.module_keys import refuse_keras_2
from hotdelta.train.resume.loading import Resumed
from hotdelta.train.save.chain_trainer import ChainTrainer
from hotdelta.train.save.options import Telling, WriterOptions, WriterStatus
from hotdelta.train.save.pauses import TrainedBatch
from hotdelta.train.termination import TerminationSignal, in_flight

logger = logging.getLogger(__name__)


class DeltaCheckpoint(keras.callbacks.Callback):
    """Writes full checkpoints and exact deltas of the model while it trains, and resumes from them.

    Give it to `fit`, or use it as a context manager around a loop of `train_on_batch` and call `step()` after each.
    What is due while training waits for data is saved then, too, between two steps.
    The directory stays taken from the first use to `close()` (the end of the `with` block, or of the process), so
    that a second `fit` goes on with the same chain.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path | CheckpointConfig,
        save_secs: float | None = 600,
        save_incremental_secs: float | None = 5,
        *,
        save_steps: int | None = None,
        save_incremental_steps: int | None = None,
        save_epochs: int | None = None,
        save_incremental_epochs: int | None = None,
        save_incremental_touched_rows: int | None = None,
        keep_fulls: int = 5,
        resume: bool = True,
        tables: Sequence[Any] = (),
        tracking: Mapping[str, str] | None = None,
        signatures: Any = None,
        serving_graph: bool = True,
        scrub_saves: int = 128,
        job: Job | None = None,
        metrics_port: int | str | None = None,
        metrics_registry: Any = None,
        tensorboard_dir: str | Path | None = None,
        spool_dir: str | Path | None = None,
        spool_bytes: int | None = None,
        when_spool_is_full: str = "postpone",
        publish_timeout_secs: float = 60,
        fold_deltas_above: int | None = FOLD_DELTAS_ABOVE,
    ) -> None:
        """Saves when any one of the given amounts has passed; None switches one off.

        `checkpoint_dir`: a directory, or the address of a store (`s3://bucket/prefix`); or a CheckpointConfig, which
        says when to save and what to keep as well.
        `tables`: variables (or their keys) that deltas should carry row by row, beside the embedding layers.
        `tracking`: "touched" or "changed" by table key, where the choice of hotdelta is not wanted.
        `signatures`: what to serve, for a model whose inputs Keras does not know. `serving_graph=False`: leave none.
        `scrub_saves`: every row is checked once within so many deltas for writes that nothing recorded; 0 is never.
        `job`: this is trainer 0 of a job; the others have a hotdelta.train.TrainerProgress each.
        `metrics_port`: where Prometheus asks how saving goes, a port of loopback or "HOST:PORT"; `metrics_registry`: of
        prometheus_client, in place of a port; `tensorboard_dir`: where TensorBoard finds lag, rows and bytes.
        `spool_dir`, `spool_bytes`, `when_spool_is_full`, `publish_timeout_secs`, `fold_deltas_above`: for the
        address of a store in place of a directory (docs/remote.md).
        """
        super().__init__()
        self._job = job
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
        self.checkpoint_dir, self._options = settle(checkpoint_dir, options)
        self._attachment = Attachment(BindingOptions(as_tuple(tables), tracking, signatures, serving_graph))
        self._is_resuming = resume
        self._registered: list[tuple[str, Callable[[], Any], Callable[[Any], None] | None]] = []
        self._last_batch = -1
        self._is_entered = self._has_very_end = False
        self._signals = TerminationSignal()
        self.resumed: Resumed | None = None

    @property
    def status(self) -> WriterStatus:
        return self._started.status

    @property
    def position(self) -> Position | None:
        """The newest committed position; None before the first."""
        return self._started.position if self._attachment.is_open else None

    @property
    def tracking(self) -> dict[str, Tracking]:
        """How each table is tracked; settled when the first training step has been traced."""
        return {key: tracker.mode for key, tracker in self._started.trackers.tables.items()}

    @property
    def _started(self) -> ChainTrainer:
        return self._attachment.trainer

    def resume(self, model: keras.Model, batch: Any = None) -> Resumed | None:
        """Attach to a compiled model and load the newest position into it.

        `batch`: for a model that its first batch builds, one such as it is trained on, `(x, y)` or whatever its
        train_step takes (arrays, tensors or specs), or the tf.data.Dataset of them. Nothing is trained on it.
        Returns where training goes on (use `epoch` as fit's initial_epoch), or None when the directory was empty;
        then a first full has been written. fit calls this itself when you did not. Not while another model is attached.
        """
        refuse_keras_2(model)
        self._attachment.refuse_other_model(model)
        first_batch.build_before_resume(model, batch)
        self._attach(model)
        self._attachment.follow_id_rules()
        return self.resumed

    def register_state(
        self, name: str, read: Callable[[], Any], restore: Callable[[Any], None] | None = None
    ) -> None:
        """Save what `read` returns (bytes, or JSON) with every commit; `restore` is called with it on resume.

        Register before resume() or fit.
        """
        if self._attachment.is_open:
            raise ConfigurationError(
                "state is registered too late", hint="register it before resume() or fit"
            )
        self._registered.append((name, read, restore))

    def watermark(self, seconds: float) -> None:
        """The event time of the newest example trained, in seconds since 1970; carried in the next manifest."""
        self._started.watermark(seconds)

    def save(self) -> Position | None:
        """Commit a delta of everything up to now, and wait for it. What fails is logged, and due again."""
        self._attachment.prepare_save()
        return self._started.save()

    def save_full(self) -> Position | None:
        """Commit a full checkpoint of everything up to now, and wait for it."""
        self._attachment.prepare_save()
        return self._started.save_full()

    def step(self, steps: int = 1, *, bookmark: Any = None, event_time: float | None = None) -> None:
        """For loops of train_on_batch: tell that steps were made.

        `bookmark`: where the reader goes on after the last of them; `event_time`: of its newest example.
        """
        self._attachment.brackets.tell(self._started, steps, TrainedBatch(bookmark, event_time))
        self._stop_if_told()

    @contextmanager
    def training_step(self, *, bookmark: Any = None, event_time: float | None = None) -> Iterator[None]:
        """For loops: around all that writes in one step, in place of `step`. No save falls into it."""
        with self._attachment.brackets.around_step(self._started, TrainedBatch(bookmark, event_time)):
            yield
        self._stop_if_told()

    def close(self) -> None:
        """Save what is left and give the directory back.

        Raises UnsavedError when that is not on disk, UnpublishedError when it is not in the store that was given.
        """
        try:
            if self._attachment.is_open:
                held_directories.let_go(self.checkpoint_dir)
                self._attachment.close()
        finally:
            self._signals.stop()
        self._signals.pass_on_received()

    def __enter__(self) -> Self:
        self._is_entered = True
        self._signals.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        with in_flight(error):
            self.close()

    def set_model(self, model: keras.Model) -> None:
        refuse_keras_2(model)
        super().set_model(model)
        self._has_very_end = fit_hooks.call_at_very_end(model, self._finish_fit)

    def on_train_begin(self, logs: Any = None) -> None:
        first_batch.build_before_fit(self.model)
        self._attach(self.model)
        self._attachment.follow_id_rules()
        self._started.settle_steps()
        self._attachment.is_in_fit = True
        self._signals.start(fit_hooks.is_in_fit)
        self._attachment.watch_steps(self._end_failed_fit)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._last_batch = -1
        self._started.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        told, self._last_batch = batch - self._last_batch, batch
        self._started.step(self._attachment.batches_of_last_call(told=told))
        self._stop_if_told()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._stop_if_told()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._attachment.examine()
        self._started.end_epoch(epoch)
        self._stop_if_told()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves here too: a callback list without History never comes to `_finish_fit`."""
        self._attachment.examine()
        self._started.save()
        if not self._has_very_end:
            self._attachment.is_in_fit = False
            self._started.require_saved()
            self._started.wait_until_published()

    def _finish_fit(self) -> None:
        """Raises as `close`: nobody may come to that."""
        try:
            if self._attachment.is_open:
                self._started.finish(self._attachment.examine)
        finally:
            self._attachment.is_in_fit = False
            self._stop_if_told()
            if not self._is_entered:
                self._signals.stop()

    def _end_failed_fit(self) -> None:
        if self._attachment.is_open:
            self._try_last_save()
        self._attachment.is_in_fit = False
        if not self._is_entered:
            self._signals.stop()

    def _try_last_save(self) -> None:
        """While something else ends training."""
        try:
            self._started.save_checked(self._attachment.examine)
            self._started.require_saved()
            self._started.wait_until_published()
        except HotdeltaError as error:
            event(logger, logging.ERROR, "the last save failed", reason=error)

    def _attach(self, model: keras.Model) -> None:
        if self._attachment.is_open:
            self._attachment.follow_closely(model)
        else:
            self._start(model)

    def _start(self, model: keras.Model) -> None:
        held_directories.close_holder(self.checkpoint_dir)
        if self._is_resuming:
            bring_in(self.checkpoint_dir)
        self.resumed = self._attachment.start(
            model, self._new_trainer, run_dir=self.checkpoint_dir, is_resuming=self._is_resuming
        )
        held_directories.hold(self.checkpoint_dir, self.close)

    def _new_trainer(self, binding: ModelBinding) -> ChainTrainer:
        trainer = ChainTrainer(
            self.checkpoint_dir, options=self._options, publish=binding.publish, job=self._job
        )
        trainer.is_told_to_stop = lambda: self._signals.is_received
        for name, read, restore in self._registered:
            trainer.states.register(name, read, restore)
        return trainer

    def _stop_if_told(self) -> None:
        if self._signals.is_received:
            event(logger, logging.INFO, "terminated; saving and stopping")
            self._try_last_save()
            self._signals.stop()
            # Whoever handled the signal before us may let training go on.
            self._signals.pass_on_received()
