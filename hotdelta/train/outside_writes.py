"""Sees writes to a tracked variable that training did not make: assign, set_weights, load_weights, other callbacks.

Each Python-level writing method of the variable object is wrapped, so that the write is recorded after it happened:
in-graph when it is traced, at once when it is eager. Raw operations on the handle pass by; the scrub finds those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

WHOLE_WRITES = ("assign", "assign_add", "assign_sub", "_restore_from_tensors", "load")
ROW_WRITES = (
    *(f"scatter_{kind}" for kind in ("update", "add", "sub", "mul", "div", "min", "max")),
    *(f"scatter_nd_{kind}" for kind in ("update", "add", "sub")),
    "batch_scatter_update",
)


class OutsideWrites:
    """Watches variables until `stop`. The callback runs after each write, with the whole variable in mind."""

    def __init__(self) -> None:
        self._watched: list[tuple[tf.Variable, str]] = []

    def watch(self, variable: tf.Variable, on_write: Callable[[], None]) -> None:
        self._replace((*WHOLE_WRITES, *ROW_WRITES), variable, lambda method: _recording(method, on_write))

    def watch_rows(
        self, variable: tf.Variable, on_write: Callable[[], None], on_rows: Callable[[tf.Tensor], None]
    ) -> None:
        """As `watch`; but of a write that names its rows (in an IndexedSlices) only those are recorded."""
        self._replace(WHOLE_WRITES, variable, lambda method: _recording(method, on_write))
        self._replace(ROW_WRITES, variable, lambda method: _recording_rows(method, on_write, on_rows))

    def _replace(
        self, names: Iterable[str], variable: tf.Variable, wrap: Callable[[Callable[..., Any]], Any]
    ) -> None:
        for name in names:
            method = getattr(variable, name, None)
            if method is not None:
                setattr(variable, name, wrap(method))
                self._watched.append((variable, name))

    def watch_all(self, variables: Iterable[tf.Variable], on_write: Callable[[], None]) -> None:
        for variable in variables:
            self.watch(variable, on_write)

    def stop(self) -> None:
        for variable, name in self._watched:
            variable.__dict__.pop(name, None)
        self._watched.clear()


def _recording(method: Callable[..., Any], on_write: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def write(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        with tf.control_dependencies(_operations(result)):
            on_write()
        return result

    return write


def _recording_rows(
    method: Callable[..., Any], on_write: Callable[[], None], on_rows: Callable[[tf.Tensor], None]
) -> Callable[..., Any]:
    @functools.wraps(method)
    def write(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        rows = [value for value in (*arguments, *options.values()) if isinstance(value, tf.IndexedSlices)]
        with tf.control_dependencies(_operations(result)):
            for slices in rows:
                on_rows(slices.indices)
            if not rows:
                on_write()
        return result

    return write


def _operations(result: Any) -> list[Any]:
    """What a traced write made, to record after it; an eager write has happened already."""
    if tf.executing_eagerly() or result is None:
        return []
    return [result.op if isinstance(result, tf.Variable) and result.op is not None else result]
