"""The embedding layer without a fixed vocabulary: new keys get rows while they are trained."""

from __future__ import annotations

from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras_internals import MakesItsVariable, value_of
from hotdelta.train.keys.policies import config_of
from hotdelta.train.keys.table import Array, KeyedTable
from hotdelta.train.keys.user_words import COMBINERS, as_keys, settings_of


class GrowingVariable(MakesItsVariable, keras.Variable):
    """A variable of Keras whose rows come into use one after the other. Nobody sets it as a whole."""

    def assign(self, value: Any) -> NoReturn:
        raise ConfigurationError(
            f"{self.path} belongs to a DynamicEmbedding, which is not set as a whole",
            hint="call assign(keys, rows) of the layer, or load a checkpoint of hotdelta",
        )


@keras.saving.register_keras_serializable(package="hotdelta")
class DynamicEmbedding(keras.layers.Layer):
    """Rows by keys: every int64 is a key, and texts are hashed to one. See docs/open-vocabulary.md.

    A call with `training=True` deals rows to keys that it sees for the first time; any other reads `default` for them.
    With a `combiner` the rows of the last axis, weighted by `weights` if they are given, become one.
    """

    def __init__(
        self,
        dim: int,
        *,
        max_rows: int,
        initializer: Any = "uniform",
        default: Any = "zeros",
        combiner: str | None = None,
        seed: int = 0,
        admission: Any = None,
        eviction: Any = None,
        **kwargs: Any,
    ) -> None:
        """`max_rows`: the most keys that it may have at a time; it is address space until they come.

        `admission`: which keys get a row, a policy of hotdelta.train; None: all that are trained. `eviction`: which
        ones go, one policy or several; None: those that are removed by hand.
        """
        super().__init__(**kwargs)
        if combiner is not None and combiner not in COMBINERS:
            raise ConfigurationError(f"combiner is {combiner!r}", hint=f"say one of {', '.join(COMBINERS)}")
        self.dim = dim
        self.max_rows = max_rows
        self.initializer = keras.initializers.get(initializer)
        self.default = default
        self.combiner = combiner
        self.seed = seed
        self.admission = admission
        self.eviction = eviction
        self._settings = settings_of(
            self.name,
            dim=dim,
            max_rows=max_rows,
            initializer=self.initializer,
            default=default,
            seed=seed,
            dtype=self.variable_dtype,
            admission=admission,
            eviction=eviction,
        )
        self._keyed: KeyedTable | None = None
        self.supports_jit = False

    def build(self, *_shapes: Any, **_more: Any) -> None:
        self.counts = self._add_counts("counts", self._settings.first_counts)
        settings = self._settings
        width = settings.width
        self.index = GrowingVariable(
            lambda: settings.make_index(value_of(self.counts), name="index"),
            shape=(settings.max_buckets, settings.bucket_columns),
            dtype="int64",
            trainable=False,
            name="index",
        )
        self.rows = GrowingVariable(
            lambda: settings.make_rows(value_of(self.counts), name="rows"),
            shape=(settings.capacity, width),
            dtype=self.variable_dtype,
            name="rows",
        )
        self.usage = None
        if settings.eviction:
            self.usage = GrowingVariable(
                lambda: settings.make_usage(value_of(self.rows), name="usage"),
                shape=(settings.capacity, settings.usage_columns),
                dtype="int64",
                trainable=False,
                name="usage",
            )
        self.waiting, self.waiting_counts = None, None
        layout = settings.waiting
        if layout is not None:
            self.waiting_counts = self._add_counts("waiting_counts", layout.first_counts)
        if layout is not None and layout.shape is not None:
            self.waiting = GrowingVariable(
                lambda: settings.make_waiting(layout, name="waiting"),
                shape=layout.shape,
                dtype=layout.dtype.name,
                trainable=False,
                name="waiting",
            )
        self.built = True

    def _add_counts(self, name: str, first: Array) -> Any:
        return self.add_weight(
            name=name,
            shape=first.shape,
            dtype="int64",
            initializer=lambda *_, **__: tf.constant(first),
            trainable=False,
        )

    @property
    def table(self) -> KeyedTable | None:
        """None while Keras is still inferring shapes."""
        if self._keyed is None and self.built and value_of(self.rows) is not None:
            names = ("rows", "index", "counts", "usage", "waiting", "waiting_counts")
            parts = {name: getattr(self, name) for name in names}
            values = {name: value_of(part) for name, part in parts.items() if part is not None}
            self._keyed = KeyedTable(self._settings, **values, name=self.name)
        return self._keyed

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        if isinstance(inputs, tf.SparseTensor):
            return self._of_sparse(inputs, weights, bool(training))
        if isinstance(inputs, tf.RaggedTensor):
            return self._of_ragged(inputs, weights, bool(training))
        rows = self._rows(inputs, bool(training))
        if self.combiner is None:
            _refuse_weights(self, weights)
            return rows
        return _combine_dense(rows, _factors(weights, rows), self.combiner)

    def compute_output_spec(self, inputs: Any, *_args: Any, **_kwargs: Any) -> keras.KerasTensor:
        shape = tuple(inputs.shape) if self.combiner is None else tuple(inputs.shape)[:-1]
        is_ragged = self.combiner is None and getattr(inputs, "ragged", False)
        return keras.KerasTensor((*shape, self.dim), dtype=self.compute_dtype, ragged=is_ragged)

    def items(self) -> tuple[Array, Array]:
        """All keys, sorted, and their rows. A layer that was not called yet has none."""
        table = self.table
        if table is None:
            return np.empty(0, np.int64), np.empty((0, self.dim), self._settings.dtype.as_numpy_dtype)
        return table.items()

    def assign(self, keys: Any, rows: Any) -> None:
        """Hold these keys and rows, and no others. Raises ConfigurationError; then nothing was changed."""
        if not self.built:
            self.build()
        if self.table is None:
            raise ConfigurationError(f"layer {self.name} is not built yet", hint="call the model once before")
        self.table.assign(keys, rows)

    def remove(self, keys: Any) -> int:
        """Forget these keys (whole numbers, or texts); how many there were. Between steps, on the training thread."""
        if self.table is None:
            return 0
        return self.table.remove(as_keys(tf.convert_to_tensor(keys)).numpy())

    def save_own_variables(self, store: Any) -> None:
        store["keys"], store["rows"] = self.items()

    def load_own_variables(self, store: Any) -> None:
        self.assign(np.asarray(store["keys"]), np.asarray(store["rows"]))

    def get_config(self) -> dict[str, Any]:
        admission = self._settings.admission
        default = self.default if isinstance(self.default, str) else np.asarray(self.default).tolist()
        return {
            **super().get_config(),
            "dim": self.dim,
            "max_rows": self.max_rows,
            "initializer": keras.initializers.serialize(self.initializer),
            "default": default,
            "combiner": self.combiner,
            "seed": self.seed,
            "admission": None if admission is None else config_of(admission),
            "eviction": self._settings.eviction.as_config(),
        }

    def _rows(self, keys: tf.Tensor, is_training: bool) -> tf.Tensor:
        """[..., dim] for keys of any shape."""
        if is_training and not (keys.dtype.is_integer or keys.dtype == tf.string):
            raise ConfigurationError(
                f"layer {self.name} is trained with keys of {keys.dtype.name}", hint="give int64, or strings"
            )
        shape = tf.concat([tf.shape(keys), [self.dim]], axis=0)
        if self.table is None:
            return tf.zeros(shape, self.compute_dtype)
        rows = self.table.look_up(tf.reshape(as_keys(keys), [-1]), is_training=is_training)
        found = tf.cast(tf.reshape(rows, shape), self.compute_dtype)
        return tf.ensure_shape(found, [*keys.shape, self.dim]) if keys.shape.rank is not None else found

    def _of_ragged(self, inputs: tf.RaggedTensor, weights: Any, is_training: bool) -> Any:
        if self.combiner is None:
            _refuse_weights(self, weights)
            return inputs.with_flat_values(self._rows(inputs.flat_values, is_training))
        if inputs.ragged_rank > 1:
            inner = None if weights is None else weights.values
            return inputs.with_values(self._of_ragged(inputs.values, inner, is_training))
        rows = self._rows(inputs.values, is_training)
        factors = _factors(None if weights is None else weights.values, rows)
        return _combine_bags(rows, factors, inputs.value_rowids(), inputs.nrows(), self.combiner)

    def _of_sparse(self, inputs: tf.SparseTensor, weights: Any, is_training: bool) -> tf.Tensor:
        if self.combiner is None or len(inputs.shape) != 2:
            raise ConfigurationError(
                f"layer {self.name} is given a sparse tensor of {len(inputs.shape)} axes",
                hint="give one of two axes, and a combiner: sum, mean or sqrtn",
            )
        rows = self._rows(inputs.values, is_training)
        given = None if weights is None else weights.values
        return _combine_bags(
            rows, _factors(given, rows), inputs.indices[:, 0], inputs.dense_shape[0], self.combiner
        )


def _refuse_weights(layer: DynamicEmbedding, weights: Any) -> None:
    if weights is not None:
        raise ConfigurationError(
            f"layer {layer.name} is given weights and has no combiner",
            hint="say combiner: sum, mean or sqrtn",
        )


def _factors(weights: Any, rows: tf.Tensor) -> tf.Tensor | None:
    """The weights with an axis that runs along the rows."""
    return None if weights is None else tf.cast(weights, rows.dtype)[..., tf.newaxis]


def _combine_dense(rows: tf.Tensor, factors: tf.Tensor | None, combiner: str) -> tf.Tensor:
    total = tf.reduce_sum(rows if factors is None else rows * factors, axis=-2)
    if combiner == "sum":
        return total
    if factors is None:
        factors = tf.ones_like(rows[..., :1])
    return tf.math.divide_no_nan(total, _norm(tf.reduce_sum, factors, combiner, axis=-2))


def _combine_bags(
    rows: tf.Tensor, factors: tf.Tensor | None, bags: tf.Tensor, num_bags: tf.Tensor, combiner: str
) -> tf.Tensor:
    def add(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, bags, num_bags)

    total = add(rows if factors is None else rows * factors)
    if combiner == "sum":
        return total
    return tf.math.divide_no_nan(
        total, _norm(add, tf.ones_like(rows[:, :1]) if factors is None else factors, combiner)
    )


def _norm(add: Any, factors: tf.Tensor, combiner: str, **options: Any) -> tf.Tensor:
    """As tf.nn.embedding_lookup_sparse: the sum of the weights, or the root of the sum of their squares."""
    if combiner == "mean":
        return add(factors, **options)
    return tf.sqrt(add(tf.square(factors), **options))
