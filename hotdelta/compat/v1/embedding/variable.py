"""`tf.get_embedding_variable`: a variable whose rows are found by keys, in scopes as tf.get_variable has them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.slice_key import can_be_sliced
from hotdelta.compat.v1.embedding.options import EmbeddingVariableOption, GlobalStepEvict
from hotdelta.compat.v1.embedding.reserved import ReservedVariable, kept_in
from hotdelta.compat.v1.embedding.table import EmbeddingTable, MatrixRows
from hotdelta.compat.v1.graph.saved_variables import is_remote
from hotdelta.compat.v1.graph.session_config import say_without_effect
from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.initial_rows import ConstantRows, InitialRows
from hotdelta.train.keys.table import TableSettings
from hotdelta.train.keys.user_words import as_keys

v1 = tf.compat.v1

_VARIABLES = "_hotdelta_embedding_variables"
_KEY_DTYPES = (tf.int64, tf.int32, tf.string)
_REFUSED = {
    "regularizer": "all rows would be read in each step; add a loss of the rows that were looked up",
    "caching_device": "rows are read where they are",
    "custom_getter": "call it around tf.get_embedding_variable",
    "constraint": "all rows would be read in each step; project what was looked up",
    "init_data_source": "write a checkpoint, and restore it",
}


class EmbeddingVariable(ReservedVariable):
    """The rows of a table. Optimizers and tf.nn.embedding_lookup take it as any variable; nothing else reads it."""

    def __init__(
        self, *, name: str, settings: TableSettings, trainable: bool, collections: list[str]
    ) -> None:
        first = np.array(settings.default or (0.0,) * settings.width, settings.dtype.as_numpy_dtype)
        super().__init__(
            capacity=settings.capacity,
            first_row=first,
            name=name,
            collections=collections,
            trainable=trainable,
        )
        if is_remote(self.device):
            raise ConfigurationError(
                f"embedding variable {name} would be on {self.device}: its keys have to be in the process that trains",
                hint="train in one process, or give the keys a fixed number of buckets",
            )
        self.table = EmbeddingTable(str(self.op.name), settings, self)

    def look_up_unique(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The row of each different id of a vector, and for each id which of them it is."""
        if not (ids.dtype.is_integer or ids.dtype == tf.string):
            raise ConfigurationError(
                f"{self.op.name} is looked up with ids of {ids.dtype.name}", hint="give int64, or strings"
            )
        return self.table.look_up(as_keys(ids))

    def look_up(self, ids: Any) -> tf.Tensor:
        """A row for each id, of any shape: whole numbers, or texts, which stand for their farmhash64."""
        ids = tf.convert_to_tensor(ids)
        rows = tf.gather(*self.look_up_unique(tf.reshape(ids, [-1])))
        shape = tf.concat([tf.shape(ids), [self.table.settings.width]], axis=0)
        found = tf.reshape(rows, shape)
        if ids.shape.rank is not None:
            found.set_shape([*ids.shape.as_list(), self.table.settings.width])
        return found

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

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """What tf.gather and TensorFlow's own look-ups call: they find rows by keys, too."""
        with v1.name_scope(name, "Gather"):
            return self.look_up(indices)

    def total_count(self) -> tf.Tensor:
        """[keys that have a row, width]."""
        width = tf.constant(self.table.settings.width, tf.int64)
        return tf.stack([self.table.key_count(), width])

    def get_dynamic_shape(self) -> tf.Tensor:
        return self.total_count()

    def get_frequency(self, ids: Any) -> tf.Tensor:
        """How often each id was trained, or seen while a filter keeps it out; 0 for those that are not known.

        Raises ConfigurationError for a variable that neither has a filter nor forgets by steps.
        """
        return self._of_keys(self.table.frequencies, ids)

    def get_version(self, ids: Any) -> tf.Tensor:
        """The step up to which each id was trained, as of the newest save; -1 for what is not known. As above."""
        return self._of_keys(self.table.last_steps, ids)

    def export(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """All keys, their rows, their versions (-1: not known) and their frequencies (0: not counted)."""
        keys, rows = self.table.all_keys()
        values = tf.raw_ops.ResourceGather(resource=self.handle, indices=rows, dtype=self.dtype)
        if not self.table.settings.counts_uses:
            return keys, values, tf.fill(tf.shape(keys), tf.constant(-1, tf.int64)), tf.zeros_like(keys)
        return keys, values, self.table.last_steps(keys), self.table.frequencies(keys)

    def _of_keys(self, find: Any, ids: Any) -> tf.Tensor:
        ids = tf.convert_to_tensor(ids)
        return tf.reshape(find(tf.reshape(as_keys(ids), [-1])), tf.shape(ids))


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: Any = tf.int64,
    value_dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,  # noqa: ARG001 - shapes of rows are always checked
    custom_getter: Any = None,
    constraint: Any = None,
    steps_to_live: int | None = None,
    init_data_source: Any = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> EmbeddingVariable:
    """As in DeepRec. Raises ConfigurationError for what is not here, ValueError where tf.get_variable does."""
    _refuse(
        regularizer=regularizer,
        caching_device=caching_device,
        custom_getter=custom_getter,
        constraint=constraint,
        init_data_source=init_data_source,
    )
    scope = v1.get_variable_scope()
    full_name = f"{scope.name}/{name}" if scope.name else name
    known = _known(v1.get_default_graph())
    found = known.get(full_name)
    if found is not None:
        return _reused(found, full_name, scope.reuse, embedding_dim)
    if scope.reuse is True:
        raise ValueError(
            f"Embedding variable {full_name} does not exist, or was not created with tf.get_embedding_variable(). Did "
            "you mean to set reuse=None or reuse=tf.AUTO_REUSE in VarScope?"
        )
    if tf.as_dtype(key_dtype) not in _KEY_DTYPES:
        raise ConfigurationError(f"key_dtype is {key_dtype!r}", hint="give tf.int64, tf.int32 or tf.string")
    option = ev_option or EmbeddingVariableOption()
    if steps_to_live is not None:
        option = replace(option, evict_option=option.evict_option or GlobalStepEvict(steps_to_live))
    if partitioner is not None or scope.partitioner is not None:
        say_without_effect("a partitioner of an embedding variable")
    settings = _settings(full_name, embedding_dim, value_dtype, initializer or scope.initializer, option)
    made = EmbeddingVariable(
        name=full_name,
        settings=settings,
        trainable=trainable,
        collections=_collections(collections, trainable=trainable),
    )
    known[full_name] = made
    return made


def embedding_variables(graph: Any) -> list[EmbeddingVariable]:
    """All of a graph, in the order in which they were made."""
    return list(_known(graph).values())


def _known(graph: Any) -> dict[str, EmbeddingVariable]:
    return kept_in(graph, _VARIABLES)


def _reused(found: EmbeddingVariable, name: str, reuse: Any, width: Any) -> EmbeddingVariable:
    if not reuse:
        raise ValueError(
            f"Embedding variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            "reuse=tf.AUTO_REUSE in VarScope?"
        )
    if found.table.settings.width != width:
        raise ValueError(
            f"Trying to share embedding variable {name}, but specified dim {width} and found "
            f"{found.table.settings.width}."
        )
    return found


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError(
                f"get_embedding_variable({name}=...) is not here: {_REFUSED[name]}", hint="leave it out"
            )


def _settings(
    name: str, width: Any, dtype: Any, initializer: Any, option: EmbeddingVariableOption
) -> TableSettings:
    if type(width) is not int or not 1 <= width <= 1 << 20:
        raise ConfigurationError(
            f"embedding_dim of {name} is {width!r}", hint="give a whole number from 1 to 1048576"
        )
    dtype = tf.as_dtype(dtype or tf.float32)
    if not dtype.is_floating or not can_be_sliced(dtype.name):
        raise ConfigurationError(f"{name} is to hold {dtype.name}", hint="take float32, bfloat16 or float64")
    admission, eviction = option.admission(), option.eviction()
    filtered = (float(option.init_option.default_value_no_permission),) * width
    return TableSettings(
        width=width,
        max_rows=option.max_rows,
        initial=_first_rows(name, width, dtype, option.init_option.initializer or initializer, option),
        default=None if admission is None else filtered,
        dtype=dtype,
        eviction=eviction,
        admission=admission,
        is_counting=admission is not None or bool(eviction),
    )


def _first_rows(
    name: str, width: int, dtype: tf.DType, initializer: Any, option: EmbeddingVariableOption
) -> InitialRows:
    """A matrix, which is saved: any initializer makes one, and after a restart it is the same."""
    initializer = v1.truncated_normal_initializer() if initializer is None else initializer
    made = initializer() if isinstance(initializer, type) else initializer
    constant = _constant_of(made)
    if constant is not None:
        return ConstantRows(constant)
    shape = [option.init_option.default_value_dim, width]
    with v1.name_scope(None), tf.control_dependencies(None):
        if callable(made):
            first: Any = lambda: made(shape, dtype=dtype)  # noqa: E731 - as tf.Variable takes it
        else:
            first = np.broadcast_to(np.asarray(made, dtype.as_numpy_dtype), shape)
        return MatrixRows(v1.Variable(first, trainable=False, use_resource=True, name=f"{name}_first_rows"))


def _constant_of(initializer: Any) -> float | None:
    """What all values are, where an initializer says so; None: they differ."""
    kind = type(initializer).__name__
    if kind in ("Zeros", "Ones"):
        return float(kind == "Ones")
    value = getattr(initializer, "value", initializer)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _collections(given: Any, *, trainable: bool) -> list[str]:
    names = list(given or [v1.GraphKeys.GLOBAL_VARIABLES])
    if v1.GraphKeys.GLOBAL_VARIABLES not in names:
        raise ConfigurationError(
            "an embedding variable outside of tf.global_variables() is in no checkpoint",
            hint="leave collections out, or add tf.GraphKeys.GLOBAL_VARIABLES",
        )
    return [*names, v1.GraphKeys.TRAINABLE_VARIABLES] if trainable else names
