"""`tf.get_embedding_variable`: embedding variables in scopes as tf.get_variable has them, whole or in parts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.slice_key import can_be_sliced
from hotdelta.compat.v1.embedding.options import EmbeddingVariableOption, GlobalStepEvict
from hotdelta.compat.v1.embedding.reserved import kept_in
from hotdelta.compat.v1.embedding.shards import ShardedEmbeddingVariable, part_name
from hotdelta.compat.v1.embedding.table import MatrixRows
from hotdelta.compat.v1.embedding.variable import EmbeddingVariable
from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.initial_rows import ConstantRows, InitialRows
from hotdelta.train.keys.table import TableSettings

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
) -> EmbeddingVariable | ShardedEmbeddingVariable:
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
    settings = _settings(full_name, embedding_dim, value_dtype, option)
    first = option.init_option.initializer or initializer or scope.initializer

    def make(name: str) -> EmbeddingVariable:
        return EmbeddingVariable(
            name=name,
            settings=settings,
            initial=lambda: _first_rows(name, settings, first, option),
            trainable=trainable,
            collections=_collections(collections, trainable=trainable),
        )

    count = _part_count(partitioner or scope.partitioner, settings)
    names = [part_name(full_name, number) for number in range(count)]
    made = (
        make(full_name) if count == 1 else ShardedEmbeddingVariable(full_name, [make(each) for each in names])
    )
    known[full_name] = made
    return made


def embedding_variables(graph: Any) -> list[EmbeddingVariable]:
    """All of a graph, and all parts of them, in the order in which they were made."""
    made = _known(graph).values()
    return [part for each in made for part in ([each] if isinstance(each, EmbeddingVariable) else each)]


def _known(graph: Any) -> dict[str, EmbeddingVariable | ShardedEmbeddingVariable]:
    return kept_in(graph, _VARIABLES)


def _part_count(partitioner: Any, settings: TableSettings) -> int:
    """A partitioner is asked as of a table with all the rows that there may be."""
    if partitioner is None:
        return 1
    shape = tf.TensorShape([settings.capacity, settings.width])
    parts = [int(number) for number in partitioner(shape=shape, dtype=settings.dtype)]
    if any(number > 1 for number in parts[1:]):
        raise ConfigurationError(
            f"the partitioner cuts rows: {parts} parts", hint="give one that deals out rows, along axis 0"
        )
    return max(1, *parts[:1])


def _reused(
    found: EmbeddingVariable | ShardedEmbeddingVariable, name: str, reuse: Any, width: Any
) -> EmbeddingVariable | ShardedEmbeddingVariable:
    if not reuse:
        raise ValueError(
            f"Embedding variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            "reuse=tf.AUTO_REUSE in VarScope?"
        )
    if found.width != width:
        raise ValueError(
            f"Trying to share embedding variable {name}, but specified dim {width} and found {found.width}."
        )
    return found


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError(
                f"get_embedding_variable({name}=...) is not here: {_REFUSED[name]}", hint="leave it out"
            )


def _settings(name: str, width: Any, dtype: Any, option: EmbeddingVariableOption) -> TableSettings:
    """All but what new keys begin with."""
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
        initial=ConstantRows(),
        default=None if admission is None else filtered,
        dtype=dtype,
        eviction=eviction,
        admission=admission,
        is_counting=admission is not None or bool(eviction),
    )


def _first_rows(
    name: str, settings: TableSettings, initializer: Any, option: EmbeddingVariableOption
) -> InitialRows:
    """A matrix, which is saved: any initializer makes one, and after a restart it is the same."""
    initializer = v1.truncated_normal_initializer() if initializer is None else initializer
    made = initializer() if isinstance(initializer, type) else initializer
    constant = _constant_of(made)
    if constant is not None:
        return ConstantRows(constant)
    shape, dtype = [option.init_option.default_value_dim, settings.width], settings.dtype
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
