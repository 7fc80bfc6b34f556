"""What `fit` has no callback method for: its data, the batches of a call, its very end, a step that raises."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from hotdelta.keras_internals import (
    element_spec_of_fit,
    model_of_fit,
    remake_training_function,
    set_training_function,
    training_function,
)


def is_in_fit(frame: FrameType | None) -> bool:
    """When an exception of another callback ended fit, nothing told us that training is over."""
    return next(_frames_of_fit(frame), None) is not None


def spec_of_batches(model: keras.Model) -> Any:
    """What fit, in which we are, is going to train the model on. None outside of it."""
    for frame in _frames_of_fit(inspect.currentframe()):
        if model_of_fit(frame) is model:
            spec = element_spec_of_fit(frame)
            # Keras stands empty Optionals for the None of a generator.
            return keras.tree.map_structure(
                lambda leaf: None if isinstance(leaf, tf.OptionalSpec) else leaf, spec
            )
    return None


def _frames_of_fit(frame: FrameType | None) -> Iterator[FrameType]:
    fit = inspect.unwrap(keras.Model.fit).__code__
    while frame is not None:
        if frame.f_code is fit:
            yield frame
        frame = frame.f_back


def call_at_very_end(model: keras.Model, action: Callable[[], None]) -> bool:
    """Keras calls its own History after every callback of the user. False: there is none.

    Some of those still change weights when training ends (EarlyStopping with restored weights).
    """
    has_history = isinstance(getattr(model, "history", None), keras.callbacks.History)
    if has_history:
        _call_after(model.history, "on_train_end", action)
    return has_history


def _call_after(callback: keras.callbacks.Callback, method: str, action: Callable[[], None]) -> None:
    original = getattr(callback, method)

    def call(logs: Any = None) -> None:
        original(logs)
        action()

    setattr(callback, method, call)


def call_when_step_raises(model: keras.Model, action: Callable[[], None]) -> None:
    """Once for each action, however often it is asked for. The end of the data is no failure."""
    actions = _called_when_it_raises(training_function(model))
    if not actions:
        _guard(model, actions)
    if action not in actions:
        actions.append(action)


def batches_of_last_call(model: keras.Model, *, told: int) -> int:
    """How many batches the training function has just trained; `told`, by Keras, where nobody counted them.

    With several steps per execution Keras tells of whole calls, even of one that ran out of data.
    """
    count = getattr(training_function(model), "batches_of_call", None)
    made = 0 if count is None else int(count.numpy())
    return made if 0 < made < told else told


def remake_train_function(model: keras.Model) -> None:
    """Have it traced again. It goes on calling the same actions when a step raises."""
    actions = _called_when_it_raises(training_function(model))
    remake_training_function(model)
    if actions:
        _guard(model, actions)


def _guard(model: keras.Model, actions: list[Callable[[], None]]) -> None:
    count = _count_batches(model) if model.steps_per_execution > 1 else None
    train_function = training_function(model)

    def guarded(iterator: Any) -> Any:
        if count is not None:
            count.assign(0)
        try:
            return train_function(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except BaseException:
            for action in actions:
                action()
            raise

    guarded.called_when_it_raises = actions  # type: ignore[attr-defined]
    guarded.batches_of_call = count  # type: ignore[attr-defined]
    set_training_function(model, guarded)


def _count_batches(model: keras.Model) -> tf.Variable:
    """Make a training function that counts its batches, where the data is: optimizers do not count every batch."""
    with model.distribute_strategy.scope():
        count = tf.Variable(
            0, trainable=False, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
    train_step = model.train_step

    @functools.wraps(train_step)
    def counted(data: Any) -> Any:
        count.assign_add(1)
        return train_step(data)

    own = {name: step for name, step in vars(model).items() if name == "train_step"}
    vars(model)["train_step"] = counted
    try:
        remake_training_function(model)
    finally:
        del vars(model)["train_step"]
        vars(model).update(own)
    return count


def _called_when_it_raises(train_function: Any) -> list[Callable[[], None]]:
    found: list[Callable[[], None]] = getattr(train_function, "called_when_it_raises", [])
    return found
