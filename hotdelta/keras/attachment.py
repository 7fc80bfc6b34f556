"""A Keras model and the chain that its training is saved in, held together while the model is compiled again."""

from __future__ import annotations

import gc
import inspect
import logging
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import keras

from hotdelta.chain.history.state import peek_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.errors import ChainError, ConfigurationError
from hotdelta.keras.binding import BindingOptions, ModelBinding, bind
from hotdelta.keras.constants import compute_again
from hotdelta.keras.fit_hooks import is_in_fit
from hotdelta.keras.model.id_rules import RuleWatch, model_id_rules
from hotdelta.keras.training_calls import TrainingCalls, watch_training
from hotdelta.keras_internals import training_function
from hotdelta.logs import event
from hotdelta.train.resume.loading import Resumed
from hotdelta.train.rows.trackers import warn_of_comparing
from hotdelta.train.save.chain_trainer import ChainTrainer
from hotdelta.train.save.pauses import Quiet, StepBrackets, TrainedBatch

logger = logging.getLogger(__name__)


def peek_keys(run_dir: Path) -> Collection[str] | None:
    """The keys of the newest position. None when there is none, or it cannot be read: resuming says so."""
    try:
        state = peek_state(run_dir)
        return StateReader(state.newest_alone()).newest_keys() if state is not None else None
    except ChainError:
        return None


def no_function() -> None:
    """In place of a reference to the training function of a model that has none."""


class Attachment:
    """The trainer of a chain, from `start` to `close`, and what it saves of a model, which is known afterwards too.

    It can be started again after it was closed. `is_in_fit`: Keras tells of every step that is made now. All methods
    belong to the thread that trains, but for those by which it is the trainer's `StepWatch`.
    """

    def __init__(self, options: BindingOptions) -> None:
        self.binding: ModelBinding | None = None
        self.is_in_fit = False
        self._options = options
        self._trainer: ChainTrainer | None = None
        self._rule_watch: RuleWatch | None = None
        self._old_functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._checked_count: int | None = None
        self._has_unproved_steps = False
        self._told = self._counted = 0
        self._calls: TrainingCalls | None = None
        self._told_batches = 0
        self.brackets = StepBrackets()
        self._when_it_raises: Callable[[], None] | None = None
        self._proved_function: Callable[[], Any] = no_function

    @property
    def is_open(self) -> bool:
        return self._trainer is not None

    @property
    def trainer(self) -> ChainTrainer:
        if self._trainer is None and self.binding is None:
            raise ConfigurationError(
                "the checkpoint callback is not attached to a model yet",
                hint="call resume(model), or fit, first",
            )
        if self._trainer is None:
            raise ConfigurationError(
                "the checkpoint callback is closed, by hand or by another one that took its directory",
                hint="call resume(model), or fit, again; give a second callback a directory of its own",
            )
        return self._trainer

    def start(
        self,
        model: keras.Model,
        new_trainer: Callable[[ModelBinding], ChainTrainer],
        *,
        run_dir: Path,
        is_resuming: bool,
    ) -> Resumed | None:
        """Load the newest position into the model, or write a first full of it.

        Raises what `bind` and `ChainTrainer.start` raise; then nothing is attached.
        """
        saved = peek_keys(run_dir) if is_resuming else None
        binding = bind(model, self._options, saved=saved)
        trainer = new_trainer(binding)
        resumed = trainer.start(
            binding.variables,
            touched=binding.recorders.touched,
            demanded=binding.recorders.demanded,
            is_resuming=is_resuming,
            first_step=binding.iterations(),
        )
        compute_again(model)
        self._hold(binding, trainer)
        for label in sorted(binding.left_out):
            event(logger, logging.WARNING, "the checkpoint has nothing of an optimizer", attribute=label)
        if binding.left_out:
            self._rebind(model)
        return resumed

    def watch_steps(self, action: Callable[[], None] | None = None) -> None:
        """When training begins, or has another function. `action`: what to do after a step that raises, from now on."""
        if self.binding is None:
            return
        self._calls = watch_training(self.binding.model)
        self._told_batches = self._calls.ended_steps()
        action = self._when_it_raises = action or self._when_it_raises
        if action is not None and action not in self._calls.when_it_raises:
            self._calls.when_it_raises.append(action)

    def batches_of_last_call(self, *, told: int) -> int:
        """How many batches were trained, where Keras tells of so many."""
        return told if self._calls is None else self._calls.batches_of_last_call(told=told)

    def note_steps(self, steps: int) -> bool:
        """Every step pays for this: True when `prove_recording` cannot wait until something is saved.

        That is when a step was traced, the model was compiled again, or ids mean other rows.
        """
        self._has_unproved_steps = True
        self._told_batches += steps
        return self._has_changed()

    def _has_changed(self) -> bool:
        binding, watch = self.binding, self._rule_watch
        if binding is None:
            return False
        model = binding.model
        return (
            binding.trace_count != self._checked_count
            or model.optimizer is not binding.optimizer
            or training_function(model) is not self._proved_function()
            or (watch is not None and watch.has_changed)
        )

    def prove_recording(self) -> None:
        """After steps: go on with what was compiled since, and check that every trace records what it writes."""
        if self.binding is None or not self.is_open:
            return
        self._has_unproved_steps = False
        self.follow(self.binding.model)
        self._follow_new_vocabulary()
        self.check_new_traces()
        function = training_function(self.binding.model)
        self._proved_function = no_function if function is None else weakref.ref(function)

    def examine(self) -> None:
        """Before a save: prove the steps since the last one."""
        if self.binding is None:
            return
        # Who compiled it after its last step may only want to evaluate it.
        is_compiled_since = self.binding.model.optimizer is not self.binding.optimizer
        if self._has_unproved_steps and not is_compiled_since:
            self.prove_recording()
        else:
            self._cover_recompiled_model()

    def refuse_other_model(self, model: keras.Model) -> None:
        """Its values would be saved as the newest of this chain, where they should be loaded from it."""
        if self.is_open and self.binding is not None and self.binding.model is not model:
            raise ConfigurationError(
                "the model is not the one that this chain was started with, which is not closed yet",
                hint="close() the callback first: resume(model) then loads what it saved",
            )

    def follow(self, model: keras.Model) -> bool:
        """When the model was compiled again, or it is another one: go on with its variables in the same chain."""
        is_other = self.binding is None or not self.binding.is_of(model)
        if is_other:
            self._rebind(model)
        return is_other

    def follow_closely(self, model: keras.Model) -> None:
        """When training begins: the same, and also when a layer holds another plain variable."""
        if not self.follow(model) and self.binding is not None and not self.binding.held.is_same_beside:
            self._rebind(model)

    def follow_id_rules(self) -> None:
        """When a layer got another vocabulary: go on with one that only grew. Raises ConfigurationError for others."""
        watch = self._rule_watch
        if self.binding is not None and watch is not None and (watch.is_blind or watch.has_changed):
            self.trainer.follow_id_rules(model_id_rules(self.binding.model))
            self._rule_watch = RuleWatch(self.binding.model)

    def _follow_new_vocabulary(self) -> None:
        """After a step: the same for the layers that show it. Words of the user's own layers are not read each time."""
        if self._rule_watch is not None and self._rule_watch.has_changed:
            self.follow_id_rules()

    def _rebind(self, model: keras.Model) -> None:
        binding = bind(model, self._options)
        trainer = self.trainer
        trainer.rebind(
            binding.variables,
            touched=binding.recorders.touched,
            demanded=binding.recorders.demanded,
        )
        self._hold(binding, trainer)

    def _hold(self, binding: ModelBinding, trainer: ChainTrainer) -> None:
        """Not before the trainer took the model: one that it refuses goes on being recorded as it was."""
        self.binding, self._trainer = binding, trainer
        self._told, self._counted = trainer.progress.step, binding.iterations()
        trainer.watch = self
        # Before the function is made again: who watches it has marks in it.
        self.watch_steps()
        binding.record()
        self._rule_watch = RuleWatch(binding.model)
        # Functions of the user's own go on without the recorder, unless he dropped them; other traces that are there
        # already belong to the training function that was just thrown away.
        self._old_functions = weakref.WeakSet(binding.functions_of_others)
        self._checked = weakref.WeakSet(binding.known_graphs - set(self._old_functions))
        self._checked_count = None
        if self._old_functions:
            gc.collect()
        warn_of_comparing(binding.recorders.why_compared(binding.variables.tables))

    def prepare_save(self) -> None:
        """Before a save that the user asks for. Raises ConfigurationError when layers were added or replaced."""
        self.examine()
        binding = self.binding
        if binding is not None and not (binding.held.is_same and binding.held.is_same_beside):
            self._rebind(binding.model)

    def _cover_recompiled_model(self) -> None:
        """Before a save that no step came with: a model may be compiled again only to be evaluated.

        So the chain keeps its optimizer; but who wrote to the tables meanwhile is not known.
        """
        if self.binding is None:
            return
        if not self.binding.is_of(self.binding.model):
            self.trainer.mark_all()
        self.check_new_traces()

    def check_new_traces(self) -> None:
        """Each trace of the training function once: does it record every row that it writes?"""
        if self.binding is None:
            return
        count = self.binding.trace_count
        traced = (
            set() if count == self._checked_count else self.binding.traced_graphs | set(self._old_functions)
        )
        graphs = [graph for graph in traced if graph not in self._checked]
        self.trainer.check_traces(graphs)
        self._checked.update(graphs)
        self._checked_count = count

    def quiet(self) -> Quiet | None:
        binding, calls = self.binding, self._calls
        if binding is None or calls is None or self._has_changed():
            return None
        if self.brackets.are_used and not self.is_in_fit:
            quiet = self.brackets.quiet()
        else:
            # Between the calls of fit callbacks run, and write what they like. In a loop nothing else may write.
            is_loop = not self.is_in_fit and not binding.functions_of_others
            quiet = calls.quiet(told=self._told_batches, is_idle_allowed=is_loop)
        return quiet if quiet is not None and binding.is_of(binding.model) else None

    def why_blind(self) -> str | None:
        return None if self._calls is None else self._calls.why_blind

    def trained_batch(self) -> TrainedBatch:
        if self.is_in_fit and self._calls is not None:
            return self._calls.trained_batch()
        return self.brackets.trained_batch()

    def count_untold(self) -> int:
        """Before a cut: how many steps a loop made since the last one, when it tells of none.

        The optimizer counted them. In fit Keras tells, and is right: there the optimizer also counts a step that
        raises, and one more at the end of a generator.
        """
        if self.binding is None:
            return 0
        before, self._told = self._told, self.trainer.progress.step
        counted_before, self._counted = self._counted, self.binding.iterations()
        if self._told != before or (self.is_in_fit and is_in_fit(inspect.currentframe())):
            return 0
        untold = max(0, self._counted - counted_before)
        self._told += untold
        return untold

    def close(self) -> None:
        """Save what is left and give the directory back."""
        trainer = self.trainer
        try:
            trainer.finish(self.examine)
        finally:
            self._trainer = None
            trainer.close()
