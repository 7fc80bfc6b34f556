"""What `fit` has no callback method for: its data, its very end, and whether we are in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from hotdelta.keras_internals import element_spec_of_fit, model_of_fit


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
