"""The table without a fixed vocabulary, for custom loops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.train.keys.table import Array, KeyedTable
from hotdelta.train.keys.user_words import as_keys, settings_of


class DynamicTable(tf.Module):
    """Rows by keys: every int64 is one, and texts are hashed to one.

    Keep it as an attribute of the module that DeltaWriter saves, and give its `rows` to an optimizer of hotdelta.keras.
    See docs/open-vocabulary.md.
    """

    def __init__(
        self,
        dim: int,
        *,
        max_rows: int,
        initializer: Any = "uniform",
        default: Any = "zeros",
        seed: int = 0,
        admission: Any = None,
        eviction: Any = None,
        dtype: Any = "float32",
        name: str = "dynamic_table",
    ) -> None:
        """`max_rows`: the most keys that it may have at a time; it is address space until they come.

        `admission`: which keys get a row, a policy of hotdelta.train; None: all that are trained. `eviction`: which
        ones go, one policy or several; None: those that are removed by hand.
        """
        super().__init__(name=name)
        settings = settings_of(
            name,
            dim=dim,
            max_rows=max_rows,
            initializer=initializer,
            default=default,
            seed=seed,
            dtype=dtype,
            admission=admission,
            eviction=eviction,
        )
        self.counts = tf.Variable(settings.first_counts, trainable=False, name=f"{name}_counts")
        self.index = settings.make_index(self.counts, name=f"{name}_index")
        self.rows = settings.make_rows(self.counts, name=f"{name}_rows")
        self.usage = settings.make_usage(self.rows, name=f"{name}_usage") if settings.eviction else None
        layout, self.waiting, self.waiting_counts = settings.waiting, None, None
        if layout is not None:
            self.waiting = settings.make_waiting(layout, name=f"{name}_waiting")
            counts = f"{name}_waiting_counts"
            self.waiting_counts = tf.Variable(layout.first_counts, trainable=False, name=counts)
        self._keyed = KeyedTable(
            settings,
            rows=self.rows,
            index=self.index,
            counts=self.counts,
            usage=self.usage,
            waiting=self.waiting,
            waiting_counts=self.waiting_counts,
            name=name,
        )

    def look_up(self, keys: Any, *, training: bool = False) -> tf.Tensor:
        """A row for each key: [..., dim]. With `training` new keys get rows; without, they read the default."""
        keys = as_keys(tf.convert_to_tensor(keys))
        rows = self._keyed.look_up(tf.reshape(keys, [-1]), is_training=training)
        return tf.reshape(rows, tf.concat([tf.shape(keys), [self._keyed.settings.width]], axis=0))

    def remove(self, keys: Any) -> int:
        """Forget these keys (whole numbers, or texts); how many there were. Between steps, on the training thread."""
        return self._keyed.remove(as_keys(tf.convert_to_tensor(keys)).numpy())

    def rows_of(self, keys: Any) -> tf.Tensor:
        """The number of the row of each key, for whoever writes rows himself; 0 for unknown ones."""
        keys = as_keys(tf.convert_to_tensor(keys))
        return tf.reshape(self._keyed.index.find(tf.reshape(keys, [-1])), tf.shape(keys))

    def items(self) -> tuple[Array, Array]:
        """All keys, sorted, and their rows."""
        return self._keyed.items()

    def assign(self, keys: Any, rows: Any) -> None:
        """Hold these keys and rows, and no others. Raises ConfigurationError; then nothing was changed."""
        self._keyed.assign(keys, rows)
