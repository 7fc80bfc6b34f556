"""What every row-wise optimizer shares: sparse gradients stay rows, and the rows written are recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras.optimizers.row_gradients import (
    Gradient,
    RowGradient,
    map_values,
    sum_duplicates,
    sum_duplicates_in_each,
)
from hotdelta.keras_internals import ClipsThroughMethod, key_in, value_of
from hotdelta.tensorflow_internals import is_compiled_by_xla
from hotdelta.train.model.optimizer_slots import count_every_step
from hotdelta.train.rows.outside_writes import graphs_around, tell_of_rows
from hotdelta.train.tables.growth import growth_of, reserved
from hotdelta.train.tables.replicas import is_primary, local
from hotdelta.train.tables.touched import AnyTouchedRows


class Recording:
    """Which touched sets the next traces of an optimizer record into, and the traces that exist.

    A plain object, because Keras and TensorFlow look for variables to save in every dictionary of an optimizer.
    """

    def __init__(self) -> None:
        self.touched: dict[str, AnyTouchedRows] = {}
        self.graphs: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
        self.trace_count = 0


class RowWise(ClipsThroughMethod, keras.optimizers.Optimizer):
    """Mixed in before a Keras optimizer: a step on a sparse gradient reads and writes only the rows that it names.

    Dense gradients behave as in the Keras class. Duplicate ids are summed first; clipping and loss scaling work on
    the summed rows. Subclasses give the formula for rows in `update_rows`.

    Recording is decided when a step is traced: after `record_rows` or `stop_recording` the caller must have the
    training function traced again. Not thread-safe, as Keras optimizers are not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        count_every_step(self)
        self._recording = Recording()

    def update_rows(
        self, gradient: RowGradient, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> list[tf.Operation]:
        """Updates the rows of `variable` and of its slots that `gradient` names; returns the writing operations."""
        raise NotImplementedError

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        """A slot of a table that grows gets its rows when the table does."""
        growth = growth_of(resource(reference_variable))
        if growth is None:
            return super().add_variable_from_reference(reference_variable, name, _filling(initializer))
        _refuse_dense_options(self, resource(reference_variable))
        width = tuple(int(size) for size in reference_variable.shape[1:])
        dtype = resource(reference_variable).dtype
        with tf.init_scope():
            first_row = keras.initializers.get(initializer)(width, dtype=dtype.name)
        slot = self.add_variable(
            shape=(growth.capacity, *width),
            initializer=lambda *_, **__: reserved(growth.capacity, width, dtype),
            dtype=dtype.name,
            name=f"{str(reference_variable.name).replace('/', '_').replace(':', '_')}_{name or 'var'}",
        )
        growth.add_slot(resource(slot), first_row)
        return slot

    def record_rows(self, variable: tf.Variable | keras.Variable, touched: AnyTouchedRows) -> None:
        """From the next trace on, every row of `variable` that a step writes is recorded in `touched` alone."""
        key = key_in(self, variable)
        if key in self._recording.touched:
            self._recording.touched[key].abandon()
        self._recording.touched[key] = touched

    def stop_recording(self) -> None:
        """From the next trace on, nothing is recorded."""
        for touched in self._recording.touched.values():
            touched.abandon()
        self._recording.touched.clear()

    @property
    def trace_count(self) -> int:
        """Grows with every trace of a step: there may be more traced graphs."""
        return self._recording.trace_count

    @property
    def traced_graphs(self) -> tuple[tf.Graph, ...]:
        """The outermost graphs, among those still alive, in which a step of this optimizer was traced."""
        return tuple(graph for graph in self._recording.graphs if graphs_around(graph)[-1] is graph)

    @property
    def known_graphs(self) -> tuple[tf.Graph, ...]:
        """Those with the ones inside of them: a tf.function may outlive the one in which it was traced."""
        return tuple(self._recording.graphs)

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Gradient], trainable_variables: Sequence[Any] | None = None) -> None:
        super().apply(sum_duplicates_in_each(grads), trainable_variables)

    def clip(
        self, stock: Callable[[list[Gradient]], Sequence[Gradient]], gradients: Sequence[Gradient]
    ) -> list[Gradient]:
        return map_values(stock, gradients)

    def update_step(self, gradient: Gradient, variable: Any, learning_rate: Any) -> None:
        if not tf.executing_eagerly():
            self._recording.graphs.update(graphs_around(tf.compat.v1.get_default_graph()))
            self._recording.trace_count += 1
        touched = self._recording.touched.get(key_in(self, variable))
        if growth_of(resource(variable)) is not None and not isinstance(gradient, tf.IndexedSlices):
            _refuse_dense_options(self, resource(variable), has_dense_gradient=True)
        if isinstance(gradient, tf.IndexedSlices):
            self._update_sparsely(gradient, resource(variable), learning_rate, touched)
        else:
            self._update_densely(gradient, variable, learning_rate, touched)

    def _update_sparsely(
        self,
        gradient: tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: Any,
        touched: AnyTouchedRows | None,
    ) -> None:
        _refuse_xla(self.name)
        rows = sum_duplicates(gradient)
        growth = growth_of(variable)
        if growth is not None:
            growth.fill_slots()
            rows = _of_known_keys(rows)
        rows = rows.with_values(tf.cast(rows.values, variable.dtype))
        written = [
            operation
            for operation in self.update_rows(rows, variable, tf.cast(learning_rate, variable.dtype))
            if operation is not None
        ]
        if touched is None:
            # Another model's optimizer may be recorded, and this one shares the table with it.
            tell_of_rows(variable, written, rows.indices)
        elif is_primary(variable):
            with tf.control_dependencies(written):
                touched.record(rows.indices)

    def _update_densely(
        self, gradient: tf.Tensor, variable: Any, learning_rate: Any, touched: AnyTouchedRows | None
    ) -> None:
        if touched is None or not is_primary(resource(variable)):
            super().update_step(gradient, variable, learning_rate)
            return
        before = _stateful_operations()
        super().update_step(gradient, variable, learning_rate)
        with tf.control_dependencies(
            [operation for operation in _stateful_operations() if operation not in before]
        ):
            touched.record_all()


def resource(variable: tf.Variable | keras.Variable) -> tf.Variable:
    """The TensorFlow variable itself, where a Keras variable may hand out a copy cast to another dtype."""
    return local(value_of(variable) if isinstance(variable, keras.Variable) else variable)


def read_rows(variable: tf.Variable | keras.Variable, ids: tf.Tensor) -> tf.Tensor:
    table = resource(variable)
    return tf.raw_ops.ResourceGather(resource=table.handle, indices=ids, dtype=table.dtype)


def write_rows(variable: tf.Variable | keras.Variable, ids: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
    """Overwrites rows; returns the operation, or None when it has already happened (eagerly)."""
    handle = resource(variable).handle
    return tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=ids, updates=rows)


def _filling(initializer: Any) -> Any:
    """The same constant without the table of ones that Keras multiplies by it."""
    if not isinstance(initializer, keras.initializers.Constant) or np.ndim(initializer.value):
        return initializer
    value = initializer.value
    return lambda shape, dtype: tf.fill(shape, tf.cast(value, dtype))


def _of_known_keys(rows: RowGradient) -> RowGradient:
    """Without row 0, which unknown keys read and nobody trains."""
    is_known = rows.indices > 0
    ids, values = tf.cond(
        tf.reduce_all(is_known),
        lambda: (rows.indices, rows.values),
        lambda: (tf.boolean_mask(rows.indices, is_known), tf.boolean_mask(rows.values, is_known)),
    )
    return RowGradient(values, ids, rows.dense_shape)


def _refuse_dense_options(optimizer: Any, variable: tf.Variable, *, has_dense_gradient: bool = False) -> None:
    """Of a table that grows most rows have no value, and whatever touches all of them would read those."""
    why = "its gradient is dense" if has_dense_gradient else ""
    if getattr(optimizer, "use_ema", False):
        why = "use_ema averages every row"
    elif getattr(optimizer, "gradient_accumulation_steps", None):
        why = "gradient_accumulation_steps keeps a gradient for every row"
    if why:
        raise ConfigurationError(
            f"{variable.name} has no fixed vocabulary and is updated row by row: {why}",
            hint="leave that option out, and look rows up with the layer alone",
        )


def _stateful_operations() -> set[tf.Operation]:
    if tf.executing_eagerly():
        return set()
    operations = tf.compat.v1.get_default_graph().get_operations()
    return {operation for operation in operations if operation.op_def.is_stateful}


def _refuse_xla(name: str) -> None:
    if not tf.executing_eagerly() and is_compiled_by_xla(tf.compat.v1.get_default_graph()):
        raise ConfigurationError(
            f"optimizer {name} updates rows, which XLA cannot compile", hint="compile with jit_compile=False"
        )
