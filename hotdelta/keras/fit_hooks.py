"""What `fit` has no callback method for: the end after all callbacks, a step that raises, being inside at all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FrameType
from typing import Any

import keras
import tensorflow as tf


def is_in_fit(frame: FrameType | None) -> bool:
    """When an exception of another callback ended fit, nothing told us that training is over."""
    fit = inspect.unwrap(keras.Model.fit).__code__
    while frame is not None and frame.f_code is not fit:
        frame = frame.f_back
    return frame is not None


def call_at_very_end(model: keras.Model, action: Callable[[], None]) -> None:
    """Keras calls its own History after every callback of the user.

    Some of those still change weights when training ends (EarlyStopping with restored weights).
    """
    if hasattr(model, "history") and isinstance(model.history, keras.callbacks.History):
        _call_after(model.history, "on_train_end", action)


def _call_after(callback: keras.callbacks.Callback, method: str, action: Callable[[], None]) -> None:
    original = getattr(callback, method)

    def call(logs: Any = None) -> None:
        original(logs)
        action()

    setattr(callback, method, call)


def call_when_step_raises(model: keras.Model, action: Callable[[], None]) -> None:
    """Once for each action, however often it is asked for. The end of the data is no failure."""
    actions = _called_when_it_raises(model.train_function)
    if not actions:
        model.train_function = _guarded(model.train_function, actions)
    if action not in actions:
        actions.append(action)


def remake_train_function(model: keras.Model) -> None:
    """Have it traced again. Whom a step that raises calls, it calls still."""
    actions = _called_when_it_raises(model.train_function)
    model.make_train_function(force=True)
    if actions:
        model.train_function = _guarded(model.train_function, actions)


def _guarded(train_function: Callable[[Any], Any], actions: list[Callable[[], None]]) -> Callable[[Any], Any]:
    def guarded(iterator: Any) -> Any:
        try:
            return train_function(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except BaseException:
            for action in actions:
                action()
            raise

    guarded.called_when_it_raises = actions  # type: ignore[attr-defined]
    return guarded


def _called_when_it_raises(train_function: Any) -> list[Callable[[], None]]:
    found: list[Callable[[], None]] = getattr(train_function, "called_when_it_raises", [])
    return found
