"""The embedding layer that gathers rows from its table and never reads the table whole."""

from __future__ import annotations

from typing import Any, NoReturn

import keras
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras.sliced_variable import SlicedVariable, slice_maker
from hotdelta.keras_internals import low_rank_of, table_of, value_of
from hotdelta.train.tables.replicas import local


@keras.saving.register_keras_serializable(package="hotdelta")
class Embedding(keras.layers.Embedding):
    """keras.layers.Embedding, except that a call costs the rows it looks up, in whatever state the table is.

    The layer of Keras reads its variable and gathers from what it read; after the first sparse update every such read
    copies the table. Ids outside the table raise, negative ones too, where Keras counts them from the end.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.quantization_mode:
            self._refuse_to_quantize()
        # XLA cannot compile updates of rows. Keras resolves jit_compile="auto" to False for such a layer, and
        # warns and goes on without XLA when jit_compile=True.
        self.supports_jit = False

    def add_weight(self, shape: Any = None, initializer: Any = None, **options: Any) -> Any:
        """A large table is filled slice by slice, with the values that Keras would give it."""
        make = slice_maker(initializer, tuple(shape or ()), self.variable_dtype)
        if make is None:
            return super().add_weight(shape=shape, initializer=initializer, **options)
        table = SlicedVariable(
            make,
            shape=shape,
            dtype=self.variable_dtype,
            trainable=options.get("trainable", True),
            name=options.get("name"),
        )
        table.regularizer, table.constraint = options.get("regularizer"), options.get("constraint")
        return table

    def call(self, inputs: Any) -> Any:
        if value_of(table_of(self)) is None:
            # Keras is still inferring shapes: there is no variable yet, only a stand-in for its value.
            return super().call(inputs)
        if inputs.dtype not in ("int32", "int64"):
            inputs = tf.cast(inputs, tf.int32)
        if isinstance(inputs, tf.SparseTensor):
            return self._rows_of_sparse(inputs)
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self._rows(inputs.flat_values))
        return self._rows(inputs)

    def quantize(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Always raises ConfigurationError: Keras trains no quantized table, so there would be nothing to save."""
        self._refuse_to_quantize()

    def _refuse_to_quantize(self) -> NoReturn:
        raise ConfigurationError(
            f"layer {self.name} cannot be quantized: a quantized table is not trained, row by row or otherwise",
            hint="quantize a copy of the model that uses keras.layers.Embedding",
        )

    def _rows(self, ids: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(local(value_of(table_of(self))), ids)
        if (low_rank := low_rank_of(self)) is not None:
            table, matrix, factor = low_rank
            product = tf.gather(local(value_of(table)), ids) @ value_of(matrix)
            rows = tf.cast(rows, tf.float32) + factor * product
        return tf.cast(rows, self.compute_dtype)

    def _rows_of_sparse(self, ids: tf.SparseTensor) -> tf.Tensor:
        """As Keras: dense, and row 0 where the sparse tensor has no id."""
        return self._rows(tf.sparse.to_dense(ids))
