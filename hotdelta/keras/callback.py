"""`DeltaCheckpoint`: the Keras callback. A thin layer that tells `ChainTrainer` when steps and epochs end."""

from __future__ import annotations

import atexit
import inspect
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import keras
import tensorflow as tf

from hotdelta.chain.manifest import Tracking
from hotdelta.chain.position import Position
from hotdelta.errors import ConfigurationError, HotdeltaError
from hotdelta.keras.binding import BindingOptions, ModelBinding, bind
from hotdelta.logs import event
from hotdelta.train.checkpoint_config import CheckpointConfig, settle
from hotdelta.train.job import Job
from hotdelta.train.schedule import SaveEvery
from hotdelta.train.termination import TerminationSignal
from hotdelta.train.trackers import warn_of_comparing
from hotdelta.train.writer import ChainTrainer
from hotdelta.train.writer_options import Resumed, WriterOptions, WriterStatus

logger = logging.getLogger(__name__)

_open_callbacks: dict[Path, DeltaCheckpoint] = {}


class DeltaCheckpoint(keras.callbacks.Callback):
    """Writes full checkpoints and exact deltas of the model while it trains, and resumes from them.

    Give it to `fit`, or use it as a context manager around a loop of `train_on_batch` and call `step()` after each.
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
    ) -> None:
        """Saves when any one of the given amounts has passed; None switches one off.

        `checkpoint_dir`: a directory; or a CheckpointConfig, which says when to save and what to keep as well.
        `tables`: variables (or their keys) that deltas should carry row by row, beside the embedding layers.
        `tracking`: "touched" or "changed" by table key, where the choice of hotdelta is not wanted.
        `signatures`: what to serve, for a model whose inputs Keras does not know. `serving_graph=False`: leave none.
        `scrub_saves`: every row is checked once within so many deltas for writes that nothing recorded; 0 is never.
        `job`: this is trainer 0 of a job; the others have a hotdelta.train.TrainerProgress each.
        """
        super().__init__()
        self._job = job
        options = WriterOptions(
            full=SaveEvery(seconds=save_secs, steps=save_steps, epochs=save_epochs),
            delta=SaveEvery(
                seconds=save_incremental_secs,
                steps=save_incremental_steps,
                epochs=save_incremental_epochs,
                touched_rows=save_incremental_touched_rows,
            ),
            keep_fulls=keep_fulls,
            scrub_saves=scrub_saves,
        )
        self.checkpoint_dir, self._options = settle(checkpoint_dir, options)
        self._binding_options = BindingOptions(tuple(tables), tracking, signatures, serving_graph)
        self._is_resuming = resume
        self._registered: list[tuple[str, Callable[[], Any], Callable[[Any], None] | None]] = []
        self._binding: ModelBinding | None = None
        self._trainer: ChainTrainer | None = None
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last_batch = -1
        self._is_entered = False
        self._signals = TerminationSignal()
        self.resumed: Resumed | None = None

    @property
    def status(self) -> WriterStatus:
        return self._started.status

    @property
    def position(self) -> Position | None:
        """The newest committed position; None before the first."""
        return self._trainer.position if self._trainer else None

    @property
    def tracking(self) -> dict[str, Tracking]:
        """How each table is tracked; settled when the first training step has been traced."""
        return {key: tracker.mode for key, tracker in self._started.trackers.tables.items()}

    @property
    def _started(self) -> ChainTrainer:
        if self._trainer is None:
            raise ConfigurationError(
                "the checkpoint callback is not attached to a model yet",
                hint="call resume(model), or fit, first",
            )
        return self._trainer

    def resume(self, model: keras.Model) -> Resumed | None:
        """Attach to a compiled and built model and load the newest position into it.

        Returns where training goes on (use `epoch` as fit's initial_epoch), or None when the directory was empty;
        then a first full has been written. fit calls this itself when you did not.
        """
        self._attach(model)
        return self.resumed

    def register_state(
        self, name: str, read: Callable[[], Any], restore: Callable[[Any], None] | None = None
    ) -> None:
        """Save what `read` returns (bytes, or JSON) with every commit; `restore` is called with it on resume.

        Register before resume() or fit.
        """
        if self._trainer is not None:
            raise ConfigurationError(
                "state is registered too late", hint="register it before resume() or fit"
            )
        self._registered.append((name, read, restore))

    def watermark(self, seconds: float) -> None:
        """The event time of the newest example trained, in seconds since 1970; carried in the next manifest."""
        self._started.watermark(seconds)

    def save(self) -> Position | None:
        """Commit a delta of everything up to now, and wait for it."""
        self._cover_recompiled_model()
        return self._started.save()

    def save_full(self) -> Position | None:
        """Commit a full checkpoint of everything up to now, and wait for it."""
        self._cover_recompiled_model()
        return self._started.save_full()

    def step(self, steps: int = 1) -> None:
        """For loops of train_on_batch: tell that steps were made."""
        self._prove_recording()
        self._started.step(steps)
        self._stop_if_told()

    def close(self) -> None:
        """Save what is left and give the directory back."""
        try:
            if self._trainer is not None:
                self._close_trainer(self._trainer)
        finally:
            self._signals.stop()
        self._signals.pass_on_received()

    def _close_trainer(self, trainer: ChainTrainer) -> None:
        _open_callbacks.pop(self.checkpoint_dir.resolve(), None)
        try:
            self._cover_recompiled_model()
            trainer.finish()
        finally:
            self._trainer = None
            trainer.close()

    def __enter__(self) -> Self:
        self._is_entered = True
        self._signals.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        self.close()

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if hasattr(model, "history") and isinstance(model.history, keras.callbacks.History):
            # Keras calls its own History after every callback of the user, some of which still change weights when
            # training ends (EarlyStopping with restored weights).
            _call_after(model.history, "on_train_end", self._finish_fit)

    def on_train_begin(self, logs: Any = None) -> None:
        self._attach(self.model)
        self._signals.start(_is_in_fit)
        self.model.train_function = self._guarded(self.model.train_function)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._last_batch = -1
        self._started.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._prove_recording()
        steps, self._last_batch = batch - self._last_batch, batch
        self._started.step(steps)
        self._stop_if_told()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._stop_if_told()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._started.end_epoch(epoch)
        self._stop_if_told()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves here too: a callback list without History never comes to `_finish_fit`."""
        self._started.save()

    def _finish_fit(self) -> None:
        if self._trainer is not None:
            self._trainer.finish()
        self._stop_if_told()
        if not self._is_entered:
            self._signals.stop()

    def _attach(self, model: keras.Model) -> None:
        if self._trainer is None:
            self._start(model)
        elif self._binding is None or not self._binding.is_of(model):
            self._rebind(model)

    def _start(self, model: keras.Model) -> None:
        directory = self.checkpoint_dir.resolve()
        earlier = _open_callbacks.get(directory)
        if earlier is not None:
            earlier.close()
        binding = bind(model, self._binding_options)
        trainer = ChainTrainer(
            self.checkpoint_dir, options=self._options, publish=binding.publish, job=self._job
        )
        for name, read, restore in self._registered:
            trainer.states.register(name, read, restore)
        trainer.step_of = binding.step
        binding.record()
        self.resumed = trainer.start(
            binding.variables,
            touched=binding.recorders.touched,
            demanded=binding.recorders.demanded,
            is_resuming=self._is_resuming,
        )
        self._bound(binding, trainer)
        _open_callbacks[directory] = self

    def _rebind(self, model: keras.Model) -> None:
        """The model was compiled again, or it is another one: go on with its variables in the same chain."""
        before = self._binding.variables_by_key() if self._binding else {}
        binding = bind(model, self._binding_options)
        unsaved = frozenset(
            key for key, variable in binding.variables_by_key().items() if before.get(key) is not variable
        )
        binding.record()
        trainer = self._started
        trainer.rebind(
            binding.variables,
            touched=binding.recorders.touched,
            demanded=binding.recorders.demanded,
            unsaved=unsaved,
        )
        trainer.step_of = binding.step
        self._bound(binding, trainer)

    def _bound(self, binding: ModelBinding, trainer: ChainTrainer) -> None:
        self._binding, self._trainer = binding, trainer
        # Traces that are there already belong to the training function that was just thrown away.
        self._checked = weakref.WeakSet(binding.row_wise.traced_graphs if binding.row_wise else ())
        for table in binding.variables.tables:
            if table.key in binding.recorders.reasons:
                warn_of_comparing(table, binding.recorders.reasons[table.key])

    def _prove_recording(self) -> None:
        """After a step: go on with what was compiled since, and check that every trace records what it writes."""
        if self._binding is not None:
            self._attach(self._binding.model)
            self._check_new_traces()

    def _cover_recompiled_model(self) -> None:
        """Before a save that no step came with: a model may be compiled again only to be evaluated.

        So the chain keeps its optimizer; but who wrote to the tables meanwhile is not known.
        """
        if self._binding is None:
            return
        if not self._binding.is_of(self._binding.model):
            self._started.trackers.mark_all()
        self._check_new_traces()

    def _check_new_traces(self) -> None:
        """Each trace of the training function once: does it record every row that it writes?"""
        if self._binding is None or self._binding.row_wise is None:
            return
        graphs = [graph for graph in self._binding.row_wise.traced_graphs if graph not in self._checked]
        self._started.check_traces(graphs)
        self._checked.update(graphs)

    def _guarded(self, train_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Save when a training step raises: fit has no other hook for it."""
        if getattr(train_function, "is_guarded_by", None) is self:
            return train_function

        def guarded(iterator: Any) -> Any:
            try:
                return train_function(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise
            except BaseException:
                self._save_after_failure()
                if not self._is_entered:
                    self._signals.stop()
                raise

        guarded.is_guarded_by = self  # type: ignore[attr-defined]
        return guarded

    def _save_after_failure(self) -> None:
        if self._trainer is None:
            return
        try:
            self._trainer.save()
        except HotdeltaError as error:
            event(logger, logging.ERROR, "the last save failed", reason=error)

    def _stop_if_told(self) -> None:
        if self._signals.is_received:
            event(logger, logging.INFO, "terminated; saving and stopping")
            self._started.save()
            self._signals.stop()
            # Whoever handled the signal before us may let training go on.
            self._signals.pass_on_received()


def _is_in_fit(frame: FrameType | None) -> bool:
    """When an exception of another callback ended fit, nothing told us that training is over."""
    fit = inspect.unwrap(keras.Model.fit).__code__
    while frame is not None and frame.f_code is not fit:
        frame = frame.f_back
    return frame is not None


def _call_after(callback: keras.callbacks.Callback, method: str, action: Callable[[], None]) -> None:
    original = getattr(callback, method)

    def call(logs: Any = None) -> None:
        original(logs)
        action()

    setattr(callback, method, call)


def _close_all() -> None:
    for callback in list(_open_callbacks.values()):
        try:
            callback.close()
        except HotdeltaError as error:
            event(logger, logging.ERROR, "the last save failed", reason=error)


# An exception outside a training step ends fit without a word to its callbacks; at the end of the process the
# variables are still there to be saved.
atexit.register(_close_all)
