"""Sees writes to a tracked variable that training did not make: assign, set_weights, load_weights, other callbacks.

Each Python-level writing method of the variable object is wrapped, so that the write is recorded after it happened:
in-graph when it is traced, at once when it is eager. Raw operations on the handle pass by; the scrub finds those.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.tensorflow_internals import PRIVATE_WRITES, function_around, is_traced_function

# The first argument of these is an IndexedSlices, whose indices are the rows.
ROW_WRITES = tuple(f"scatter_{kind}" for kind in ("update", "add", "sub", "mul", "div", "min", "max"))
WHOLE_WRITES = (
    *("assign", "assign_add", "assign_sub", "load", *PRIVATE_WRITES),
    *(f"scatter_nd_{kind}" for kind in ("update", "add", "sub", "min", "max")),
    "batch_scatter_update",
)
_WATCHERS = "_hotdelta_watchers"
_TOLD_BY = "_hotdelta_told_by"
_TELL_BY = "_hotdelta_tell_by"


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """Who is told of a write: `on_rows` of its rows when the write names them, `on_write` of any other."""

    on_write: Callable[[], Any]
    on_rows: Callable[[tf.Tensor], Any]


class OutsideWrites:
    """Reports every write to the watched variables, after it was made, until `stop`. Others may watch the same ones."""

    def __init__(self) -> None:
        self._watched: list[tuple[tf.Variable, Watcher]] = []

    def watch(
        self, variable: tf.Variable, on_write: Callable[[], None], on_rows: Callable[[tf.Tensor], None]
    ) -> None:
        """`on_rows` gets the rows of a write that names them in an IndexedSlices; `on_write` is for all others."""
        if not _watchers(variable):
            _wrap_methods(variable)
        watcher = Watcher(on_write, on_rows)
        _watchers(variable).append(watcher)
        self._watched.append((variable, watcher))

    def stop(self) -> None:
        for variable, watcher in self._watched:
            watchers = _watchers(variable)
            watchers.remove(watcher)
            if not watchers:
                for name in (_WATCHERS, *ROW_WRITES, *WHOLE_WRITES):
                    vars(variable).pop(name, None)
        self._watched.clear()


def tell_also(
    variable: tf.Variable, on_write: Callable[[], Any], on_rows: Callable[[tf.Tensor], Any]
) -> None:
    """Report to these what `tell_of_rows` and `tell_of_all` are told, as long as the variable lives."""
    vars(variable).setdefault(_WATCHERS, []).append(Watcher(on_write, on_rows))


def tell_of_rows(variable: tf.Variable, written: Sequence[Any], rows: tf.Tensor) -> None:
    """Report a write of rows that need not be a call of a method of the variable. `written`: its operations."""
    with tf.control_dependencies(written):
        for watcher in _watchers(variable):
            watcher.on_rows(rows)
    _note_function(variable)


def tell_now(variable: tf.Variable, rows: npt.NDArray[np.int64]) -> None:
    """These rows are due at the next save. Between two steps, outside of every graph."""
    tell = vars(variable).get(_TELL_BY)
    if tell is None:
        tell_of_rows(variable, (), tf.constant(rows))
    else:
        tell(rows)


def tell_through(variable: tf.Variable, tell: Callable[[npt.NDArray[np.int64]], None]) -> None:
    """From now on `tell_now` calls this: where a Session runs the graph, nothing else can."""
    setattr(variable, _TELL_BY, tell)


def functions_that_told(variable: tf.Variable) -> list[tf.Graph]:
    """The traced functions still alive that write to it and report to those who watched it when they were traced."""
    return list(vars(variable).get(_TOLD_BY, ()))


def graphs_around(graph: tf.Graph) -> list[tf.Graph]:
    """The graph itself, and those of the functions around it that still exist, the outermost last."""
    found = [graph]
    while (outer := function_around(found[-1])) is not None:
        found.append(outer)
    return found


def tell_of_all(variable: tf.Variable, written: Sequence[Any]) -> None:
    """Report a write after which any row may be another one."""
    with tf.control_dependencies(written):
        for watcher in _watchers(variable):
            watcher.on_write()
    _note_function(variable)


def _note_function(variable: tf.Variable) -> None:
    if _watchers(variable) and not tf.executing_eagerly():
        around = graphs_around(tf.compat.v1.get_default_graph())
        told_by = vars(variable).setdefault(_TOLD_BY, weakref.WeakSet())
        told_by.update(graph for graph in around if is_traced_function(graph))


def _watchers(variable: tf.Variable) -> list[Watcher]:
    found: list[Watcher] = vars(variable).get(_WATCHERS, [])
    return found


def _wrap_methods(variable: tf.Variable) -> None:
    vars(variable)[_WATCHERS] = []
    for names, wrap in ((ROW_WRITES, _telling_of_rows), (WHOLE_WRITES, _telling_of_all)):
        for name in names:
            method = getattr(variable, name, None)
            if method is not None:
                setattr(variable, name, wrap(method, variable))


def _telling_of_rows(method: Callable[..., Any], variable: tf.Variable) -> Callable[..., Any]:
    @functools.wraps(method)
    def write(sparse_delta: Any, *arguments: Any, **options: Any) -> Any:
        result = method(sparse_delta, *arguments, **options)
        if isinstance(sparse_delta, tf.IndexedSlices):
            tell_of_rows(variable, _operations(result), tf.convert_to_tensor(sparse_delta.indices))
        else:  # one for each replica
            tell_of_all(variable, _operations(result))
        return result

    return write


def _telling_of_all(method: Callable[..., Any], variable: tf.Variable) -> Callable[..., Any]:
    @functools.wraps(method)
    def write(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        tell_of_all(variable, _operations(result))
        return result

    return write


def _operations(result: Any) -> list[Any]:
    """What a traced write made, to record after it; an eager write has happened already."""
    if tf.executing_eagerly() or result is None:
        return []
    return [result.op if isinstance(result, tf.Variable) and result.op is not None else result]
