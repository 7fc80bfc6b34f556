"""The calls of a model's training function: how many steps are in them, and whether one is under way.

`fit` waits for its data inside of such a call, in the graph. So steps are counted there: when their batch has come, and
when everything is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hotdelta import keras_internals
from hotdelta.errors import ConfigurationError
from hotdelta.keras_internals import set_training_function, training_function
from hotdelta.tensorflow_internals import run_before
from hotdelta.train.bookmarks import Bookmarked
from hotdelta.train.save.pauses import Quiet, TrainedBatch

_CALLS = "hotdelta_calls"


class TrainingCalls:
    """Watches the training function of one model, over all functions that Keras makes for it.

    The training thread makes the calls; any thread may ask. `when_it_raises` is called after a step that raised.
    """

    def __init__(self, model: keras.Model) -> None:
        self.when_it_raises: list[Callable[[], None]] = []
        self._model = model
        self._entered = self._left = 0
        self._ended_before = 0
        self._unfinished = 0
        self._bookmark: tf.Variable | None = None
        self._event_time: tf.Variable | None = None
        self._is_marked = False
        self._replicas = int(model.distribute_strategy.num_replicas_in_sync)
        with model.distribute_strategy.scope():
            self._begun, self._ended = _counter(), _counter()

    def remake_function(self) -> None:
        """Have the training function traced again, with marks where its steps begin and end."""
        model = self._model
        own = {name: step for name, step in vars(model).items() if name == "train_step"}
        # XLA runs a step as one operation, and puts both marks behind it.
        self._is_marked = not model.jit_compile
        if self._is_marked:
            vars(model)["train_step"] = self._marked(model.train_step)
        try:
            keras_internals.remake_training_function(model)
        finally:
            vars(model).pop("train_step", None)
            vars(model).update(own)
        set_training_function(model, self._guarded(training_function(model)))

    def _guarded(self, train_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        has_many_steps = self._is_marked and self._model.steps_per_execution > 1

        def guarded(iterator: Any) -> Any:
            if has_many_steps:
                self._ended_before = self.ended_steps()
            self._entered += 1
            try:
                return train_function(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise
            except BaseException:
                self._unfinished = self._begun_steps() - self.ended_steps()
                for action in self.when_it_raises:
                    action()
                raise
            finally:
                self._left += 1

        setattr(guarded, _CALLS, self)
        return guarded

    def _marked(self, train_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(train_step)
        def marked(data: Any) -> Any:
            data, extra = self._opened(data)
            leaves = tf.nest.flatten((data, extra), expand_composites=True)
            with tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)]):
                begin = self._begun.assign_add(1, read_value=False)
            before = _operations()
            logs = train_step(data)
            # Keras would count the step, and draw its random numbers, before the data. What has no state does not wait:
            # a constant that did would be computed, with all that is made of it, again in every step.
            for operation in _stateful_since(before):
                run_before(operation, begin)
            with tf.control_dependencies(_stateful_since(before)):
                if extra is not None:
                    self._keep(extra)
            with tf.control_dependencies(_stateful_since(before)):
                self._ended.assign_add(1, read_value=False)
            return logs

        return marked

    def _opened(self, data: Any) -> tuple[Any, tuple[Any, Any] | None]:
        if not isinstance(data, Bookmarked):
            return data, None
        if tf.distribute.has_strategy():
            raise ConfigurationError(
                "bookmarks cannot travel with batches that a strategy splits",
                hint="take them out, and register_state a function that says where the reader is",
            )
        return data.batch, (data.bookmark[0], tf.cast(data.event_time[0], tf.float64))

    def _keep(self, extra: tuple[tf.Tensor, tf.Tensor]) -> None:
        bookmark, event_time = extra
        if self._bookmark is None or self._bookmark.dtype != bookmark.dtype:
            with tf.init_scope():
                self._bookmark = tf.Variable(
                    tf.zeros([], bookmark.dtype) if bookmark.dtype != tf.string else "",
                    trainable=False,
                    shape=tf.TensorShape(None),
                )
        if self._event_time is None:
            with tf.init_scope():
                self._event_time = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        self._bookmark.assign(bookmark, read_value=False)
        newest = tf.maximum(self._event_time.read_value(), tf.reduce_max(event_time))
        self._event_time.assign(newest, read_value=False)

    def trained_batch(self) -> TrainedBatch:
        """What came with the last batch that was trained; nothing before the first."""
        if self._bookmark is None or self._event_time is None or not self.ended_steps():
            return TrainedBatch()
        seconds = float(self._event_time.numpy())
        return TrainedBatch(self._bookmark.numpy(), seconds if seconds > 0 else None)

    def ended_steps(self) -> int:
        """How many batches were trained, whatever the optimizer counts."""
        return int(self._ended.numpy()) // self._replicas

    def _begun_steps(self) -> int:
        return int(self._begun.numpy()) // self._replicas

    def batches_of_last_call(self, *, told: int) -> int:
        """With several steps per execution Keras tells of whole calls, even of one that ran out of data."""
        if not self._is_marked or self._model.steps_per_execution == 1:
            return told
        made = self.ended_steps() - self._ended_before
        return made if 0 < made < told else told

    @property
    def why_blind(self) -> str | None:
        return None if self._is_marked else "jit_compile=True hides where steps begin and end"

    def quiet(self, *, told: int, is_idle_allowed: bool) -> Quiet | None:
        """None while a step is under way. `told`: of how many steps whoever asks knows.

        `is_idle_allowed`: also between two calls, where all steps must have been told.
        """
        if not self._is_marked or calls_of(self._model) is not self:
            return None
        is_in_call = self._entered != self._left
        if not is_in_call and not (is_idle_allowed and self._entered):
            return None
        # In this order: a step that begins in between makes them differ.
        ended = int(self._ended.numpy())
        begun = int(self._begun.numpy())
        untold = ended // self._replicas - told
        most = self._model.steps_per_execution - 1 if is_in_call else 0
        if begun - ended != self._unfinished * self._replicas or not 0 <= untold <= most:
            return None
        return Quiet(begun + self._entered, untold)


def watch_training(model: keras.Model) -> TrainingCalls:
    """What watches its training function, which is made again if nothing does."""
    calls = calls_of(model)
    if calls is None:
        calls = TrainingCalls(model)
        calls.remake_function()
    return calls


def calls_of(model: keras.Model) -> TrainingCalls | None:
    found: TrainingCalls | None = getattr(training_function(model), _CALLS, None)
    return found


def remake_training_function(model: keras.Model) -> None:
    """Have it traced again. Who watches it goes on."""
    calls = calls_of(model)
    if calls is None:
        keras_internals.remake_training_function(model)
    else:
        calls.remake_function()


def _counter() -> tf.Variable:
    """Each replica counts its own steps; to read it adds them up."""
    return tf.Variable(
        0,
        trainable=False,
        dtype=tf.int64,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def _stateful_since(before: set[tf.Operation] | None) -> list[tf.Operation]:
    """The operations that may write, of those that were traced since."""
    if before is None:
        return []
    return [op for op in _operations() or () if op not in before and op.op_def.is_stateful]


def _operations() -> set[tf.Operation] | None:
    """Of the graph that is being traced; None when the step runs eagerly."""
    return None if tf.executing_eagerly() else set(tf.compat.v1.get_default_graph().get_operations())
