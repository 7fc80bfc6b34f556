"""An embedding variable: a variable whose rows are found by keys, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from hotdelta.compat.v1.embedding.reserved import ReservedVariable
from hotdelta.compat.v1.embedding.table import EmbeddingTable
from hotdelta.compat.v1.graph.saved_variables import on_device_of
from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.initial_rows import InitialRows
from hotdelta.train.keys.table import TableSettings
from hotdelta.train.keys.user_words import as_keys

v1 = tf.compat.v1


class LookedUpByKeys:
    """What users call, whether the variable is one table or several. What it rests on takes vectors of int64 keys."""

    full_name: str
    width: int

    def look_up_keys(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The row of each different key, and for each key which of them it is."""
        raise NotImplementedError

    def key_count(self) -> tf.Tensor:
        """How many have a row."""
        raise NotImplementedError

    def frequencies(self, keys: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def last_steps(self, keys: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def export(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """All keys, their rows, their versions (-1: not known) and their frequencies (0: not counted)."""
        raise NotImplementedError

    def look_up_unique(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The row of each different id of a vector, and for each id which of them it is."""
        if not (ids.dtype.is_integer or ids.dtype == tf.string):
            raise ConfigurationError(
                f"{self.full_name} is looked up with ids of {ids.dtype.name}", hint="give int64, or strings"
            )
        return self.look_up_keys(as_keys(ids))

    def look_up(self, ids: Any) -> tf.Tensor:
        """A row for each id, of any shape: whole numbers, or texts, which stand for their farmhash64."""
        ids = tf.convert_to_tensor(ids)
        rows = tf.gather(*self.look_up_unique(tf.reshape(ids, [-1])))
        shape = tf.concat([tf.shape(ids), [self.width]], axis=0)
        found = tf.reshape(rows, shape)
        if ids.shape.rank is not None:
            found.set_shape([*ids.shape.as_list(), self.width])
        return found

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """What tf.gather and TensorFlow's own look-ups call: they find rows by keys, too."""
        with v1.name_scope(name, "Gather"):
            return self.look_up(indices)

    def total_count(self) -> tf.Tensor:
        """[keys that have a row, width]."""
        return tf.stack([self.key_count(), tf.constant(self.width, tf.int64)])

    def get_dynamic_shape(self) -> tf.Tensor:
        return self.total_count()

    def get_frequency(self, ids: Any) -> tf.Tensor:
        """How often each id was trained, or seen while a filter keeps it out; 0 for those that are not known.

        Raises ConfigurationError for a variable that neither has a filter nor forgets by steps.
        """
        return _of_ids(self.frequencies, ids)

    def get_version(self, ids: Any) -> tf.Tensor:
        """The step up to which each id was trained, as of the newest save; -1 for what is not known. As above."""
        return _of_ids(self.last_steps, ids)


def _of_ids(find: Callable[[tf.Tensor], tf.Tensor], ids: Any) -> tf.Tensor:
    ids = tf.convert_to_tensor(ids)
    return tf.reshape(find(tf.reshape(as_keys(ids), [-1])), tf.shape(ids))


class EmbeddingVariable(LookedUpByKeys, ReservedVariable):
    """The rows of a table. Optimizers and tf.nn.embedding_lookup take it as any variable; nothing else reads it."""

    def __init__(
        self,
        *,
        name: str,
        settings: TableSettings,
        initial: Callable[[], InitialRows],
        trainable: bool,
        collections: list[str],
    ) -> None:
        """`initial` makes what new keys begin with, which has to lie where the rows lie."""
        first = np.array(settings.default or (0.0,) * settings.width, settings.dtype.as_numpy_dtype)
        super().__init__(
            capacity=settings.capacity,
            first_row=first,
            name=name,
            collections=collections,
            trainable=trainable,
        )
        with on_device_of(self):
            settings = replace(settings, initial=initial())
        self.full_name = str(self.op.name)
        self.width = settings.width
        self.table = EmbeddingTable(self.full_name, settings, self)

    def look_up_keys(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.table.look_up(keys)

    def key_count(self) -> tf.Tensor:
        return self.table.key_count()

    def frequencies(self, keys: tf.Tensor) -> tf.Tensor:
        return self.table.frequencies(keys)

    def last_steps(self, keys: tf.Tensor) -> tf.Tensor:
        return self.table.last_steps(keys)

    def export(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        keys, rows = self.table.all_keys()
        with on_device_of(self):
            values = tf.raw_ops.ResourceGather(resource=self.handle, indices=rows, dtype=self.dtype)
        if not self.table.settings.counts_uses:
            return keys, values, tf.fill(tf.shape(keys), tf.constant(-1, tf.int64)), tf.zeros_like(keys)
        return keys, values, self.table.last_steps(keys), self.table.frequencies(keys)

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"{self.op.name} is an embedding variable, and {what}",
            hint="look its rows up by keys with tf.nn.embedding_lookup, or read all of them with export()",
        )

    def value(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("most of what it reserves has no value to be read")

    read_value = value

    def gather_nd(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("nobody knows the numbers of its rows")

    def write_rows_by_number(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("nobody knows the numbers of its rows")

    assign = assign_add = assign_sub = write_rows_by_number
    scatter_update = scatter_add = scatter_sub = scatter_mul = scatter_div = write_rows_by_number
    scatter_min = scatter_max = batch_scatter_update = write_rows_by_number
    scatter_nd_update = scatter_nd_add = scatter_nd_sub = scatter_nd_min = scatter_nd_max = (
        write_rows_by_number
    )
