"""tf.feature_column.categorical_column_with_embedding: a column whose values, of any number, are keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.embedding.lookups import safe_embedding_lookup_sparse
from hotdelta.compat.v1.embedding.making import get_embedding_variable
from hotdelta.compat.v1.embedding.options import EmbeddingVariableOption
from hotdelta.compat.v1.embedding.reserved import kept_in
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import OpenCategoricalColumn, OpenDenseColumn, sparse_input
from hotdelta.train.keys.user_words import as_keys

v1 = tf.compat.v1

_WEIGHTS = "embedding_weights"
_SHARED_SCOPES = "_hotdelta_shared_embeddings"


class EmbeddingKeys(OpenCategoricalColumn):
    """Its ids are the keys themselves; texts stand for their farmhash64. Only an embedding column can take it."""

    def __init__(
        self, key: str, dtype: tf.DType, option: EmbeddingVariableOption | None, parts: int | None
    ) -> None:
        self.key = key
        self.dtype = tf.as_dtype(dtype)
        self.option = option
        self.parts = parts

    @property
    def name(self) -> str:
        return self.key

    def parse_spec(self) -> Any:
        return {self.key: tf.io.VarLenFeature(self.dtype)}

    def transform(self, inputs: Any) -> tf.SparseTensor:
        given = sparse_input(inputs.get(self.key))
        return tf.SparseTensor(given.indices, as_keys(given.values), given.dense_shape)

    def refuse_numbers(self) -> int:
        raise ConfigurationError(
            f"column {self.key!r} has no fixed number of ids",
            hint="give it to tf.feature_column.embedding_column, or use categorical_column_with_hash_bucket",
        )


class EmbeddingKeysColumn(OpenDenseColumn):
    """The embedding of such a column, or of one that gives weights to it."""

    def __init__(
        self,
        column: Any,
        dimension: int,
        *,
        combiner: str,
        initializer: Any,
        max_norm: float | None,
        trainable: bool,
        shared_by: str | None = None,
    ) -> None:
        super().__init__(column, tf.TensorShape([dimension]))
        self.dimension = dimension
        self.combiner = combiner
        self._initializer = initializer
        self._max_norm = max_norm
        self._trainable = trainable
        self._shared_by = shared_by

    @property
    def name(self) -> str:
        kind = "embedding" if self._shared_by is None else "shared_embedding"
        return f"{self.categorical_column.name}_{kind}"

    def scope_name(self) -> str:
        return self._shared_by or self.name

    def dense(self, ids: Any, weights: Any, *, collections: Any, is_trainable: bool) -> tf.Tensor:
        keys = keys_of(self.categorical_column)
        if keys is None:
            raise ValueError(f"{self.name} is of a column without keys")
        variable = self._variable(keys, collections, is_trainable=is_trainable)
        return safe_embedding_lookup_sparse(
            variable, ids, weights, self.combiner, max_norm=self._max_norm, name=self.name
        )

    def _variable(self, keys: EmbeddingKeys, collections: Any, *, is_trainable: bool) -> Any:
        collections = list(dict.fromkeys([*(collections or ()), v1.GraphKeys.GLOBAL_VARIABLES]))
        # Of all columns that share it the first one makes it, in whichever scope.
        scope = v1.get_variable_scope() if self._shared_by is None else _scope_of_shared(self._shared_by)
        with v1.variable_scope(scope, reuse=v1.AUTO_REUSE, auxiliary_name_scope=False):
            return get_embedding_variable(
                _WEIGHTS,
                self.dimension,
                initializer=self._initializer,
                trainable=self._trainable and is_trainable,
                collections=collections,
                partitioner=None if keys.parts is None else v1.fixed_size_partitioner(keys.parts),
                ev_option=keys.option,
            )


def categorical_column_with_embedding(
    key: str,
    dtype: tf.DType = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> EmbeddingKeys:
    """As in DeepRec. `partition_num`: in how many parts its variable is."""
    dtype = tf.as_dtype(dtype)
    if not (dtype == tf.string or dtype.is_integer):
        raise ValueError(f"dtype must be string or integer. dtype: {dtype}, column_name: {key}")
    if partition_num is not None and (type(partition_num) is not int or partition_num < 1):
        raise ValueError(f"partition_num of column {key} is {partition_num!r}, and no whole number above 0")
    return EmbeddingKeys(key, dtype, ev_option, partition_num)


def keys_of(column: Any) -> EmbeddingKeys | None:
    """The column of keys that this is, or gives weights to."""
    if isinstance(column, EmbeddingKeys):
        return column
    below = getattr(column, "categorical_column", None)
    return below if isinstance(below, EmbeddingKeys) else None


def embedding_column_of(
    column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,  # noqa: ARG001 - it is always safe
    *,
    shared_by: str | None = None,
) -> EmbeddingKeysColumn:
    """As tf.feature_column.embedding_column, of a column of keys."""
    if dimension < 1:
        raise ValueError(f"Invalid dimension {dimension}.")
    if ckpt_to_load_from is not None or tensor_name_in_ckpt is not None:
        raise ConfigurationError(
            f"the embedding of {column.name!r} is to be loaded from {ckpt_to_load_from!r}",
            hint="restore a checkpoint of the same model; rows of keys are in no other",
        )
    return EmbeddingKeysColumn(
        column,
        dimension,
        combiner=combiner,
        initializer=initializer,
        max_norm=max_norm,
        trainable=trainable,
        shared_by=shared_by,
    )


def shared_embedding_columns_of(
    columns: Sequence[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: str | None = None,
    *args: Any,
    **kwargs: Any,
) -> list[EmbeddingKeysColumn]:
    """As tf.feature_column.shared_embedding_columns, of columns of keys: one variable for all of them."""
    first = keys_of(columns[0])
    if any(keys_of(column) is None for column in columns) or first is None:
        raise ValueError("all columns that share an embedding must be of the same kind")
    if any(keys.option != first.option for keys in map(keys_of, columns) if keys is not None):
        raise ValueError("all columns that share an embedding must have the same ev_option")
    if any(keys.parts != first.parts for keys in map(keys_of, columns) if keys is not None):
        raise ValueError("all columns that share an embedding must have the same partition_num")
    if any(keys.dtype != first.dtype for keys in map(keys_of, columns) if keys is not None):
        raise ValueError("all columns that share an embedding must have keys of one dtype")
    name = shared_embedding_collection_name or "_".join(sorted(column.name for column in columns))
    shared = name if shared_embedding_collection_name else f"{name}_shared_embedding"
    return [
        embedding_column_of(column, dimension, combiner, initializer, *args, shared_by=shared, **kwargs)
        for column in columns
    ]


def _scope_of_shared(name: str) -> Any:
    """Of a graph: the scope in which the variable was first asked for."""
    scopes = kept_in(v1.get_default_graph(), _SHARED_SCOPES)
    return scopes.setdefault(name, v1.get_variable_scope())
