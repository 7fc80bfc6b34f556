"""Sees writes to a tracked variable that training did not make: assign, set_weights, load_weights, other callbacks.

Each Python-level writing method of the variable object is wrapped, so that the write is recorded after it happened:
in-graph when it is traced, at once when it is eager. Raw operations on the handle pass by; the scrub finds those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

WRITES = (
    *("assign", "assign_add", "assign_sub", "_restore_from_tensors", "load"),
    *(f"scatter_{kind}" for kind in ("update", "add", "sub", "mul", "div", "min", "max")),
    *(f"scatter_nd_{kind}" for kind in ("update", "add", "sub", "min", "max")),
    "batch_scatter_update",
    # What `variable[1:3].assign(...)` comes to.
    "_strided_slice_assign",
)
_WATCHERS = "_hotdelta_watchers"


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """Whom to tell of a write: of the rows, where the write names them and somebody asked for that, or of all."""

    on_write: Callable[[], None]
    on_rows: Callable[[tf.Tensor], None] | None = None

    def tell(self, rows: Sequence[tf.Tensor]) -> None:
        if self.on_rows is None or not rows:
            self.on_write()
        else:
            for ids in rows:
                self.on_rows(ids)


class OutsideWrites:
    """Watches variables until `stop`, each after each write to it. Others may watch the same ones meanwhile."""

    def __init__(self) -> None:
        self._watched: list[tuple[tf.Variable, Watcher]] = []

    def watch(self, variable: tf.Variable, on_write: Callable[[], None]) -> None:
        """The callback runs with the whole variable in mind."""
        self._add(variable, Watcher(on_write))

    def watch_rows(
        self, variable: tf.Variable, on_write: Callable[[], None], on_rows: Callable[[tf.Tensor], None]
    ) -> None:
        """As `watch`; but of a write that names its rows (in an IndexedSlices) only those are recorded."""
        self._add(variable, Watcher(on_write, on_rows))

    def watch_all(self, variables: Iterable[tf.Variable], on_write: Callable[[], None]) -> None:
        for variable in variables:
            self.watch(variable, on_write)

    def stop(self) -> None:
        for variable, watcher in self._watched:
            watchers = _watchers(variable)
            watchers.remove(watcher)
            if not watchers:
                for name in (_WATCHERS, *WRITES):
                    vars(variable).pop(name, None)
        self._watched.clear()

    def _add(self, variable: tf.Variable, watcher: Watcher) -> None:
        if not _watchers(variable):
            vars(variable)[_WATCHERS] = []
            for name in WRITES:
                method = getattr(variable, name, None)
                if method is not None:
                    setattr(variable, name, _told(method, variable))
        _watchers(variable).append(watcher)
        self._watched.append((variable, watcher))


def tell_watchers(variable: tf.Variable, written: Sequence[Any], rows: Sequence[tf.Tensor] = ()) -> None:
    """After a write that is no method of the variable: `written` are its operations."""
    with tf.control_dependencies(written):
        for watcher in _watchers(variable):
            watcher.tell(rows)


def _watchers(variable: tf.Variable) -> list[Watcher]:
    found: list[Watcher] = vars(variable).get(_WATCHERS, [])
    return found


def _told(method: Callable[..., Any], variable: tf.Variable) -> Callable[..., Any]:
    @functools.wraps(method)
    def write(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        slices = [value for value in (*arguments, *options.values()) if isinstance(value, tf.IndexedSlices)]
        tell_watchers(variable, _operations(result), [value.indices for value in slices])
        return result

    return write


def _operations(result: Any) -> list[Any]:
    """What a traced write made, to record after it; an eager write has happened already."""
    if tf.executing_eagerly() or result is None:
        return []
    return [result.op if isinstance(result, tf.Variable) and result.op is not None else result]
