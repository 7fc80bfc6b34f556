"""tf.feature_column, with columns of keys; what DeepRec says of many columns at once is taken, and changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as _tensorflow

from hotdelta.compat.v1.embedding.columns import (
    categorical_column_with_embedding,
    embedding_column_of,
    keys_of,
    shared_embedding_columns_of,
)
from hotdelta.compat.v1.graph.session_config import say_without_effect

__all__ = [
    "categorical_column_with_embedding",
    "embedding_column",
    "group_embedding_column_scope",
    "shared_embedding_columns",
]

_v1 = _tensorflow.compat.v1


def _with_keys(make_column: Callable[..., Any], of_keys: Callable[..., Any]) -> Callable[..., Any]:
    """Columns of keys are made by `of_keys`, all others by TensorFlow."""

    @functools.wraps(make_column)
    def wrapped(*args: Any, do_fusion: Any = None, **kwargs: Any) -> Any:
        if do_fusion:
            say_without_effect("do_fusion")
        given = args[0] if args else next(iter(kwargs.values()), None)
        columns = given if isinstance(given, list | tuple) else [given]
        has_keys = any(keys_of(column) is not None for column in columns)
        return (of_keys if has_keys else make_column)(*args, **kwargs)

    return wrapped


embedding_column = _with_keys(_v1.feature_column.embedding_column, embedding_column_of)
shared_embedding_columns = _with_keys(
    _v1.feature_column.shared_embedding_columns, shared_embedding_columns_of
)


@contextmanager
def group_embedding_column_scope(name: str | None = None) -> Iterator[None]:  # noqa: ARG001 - groups are not here
    say_without_effect("tf.feature_column.group_embedding_column_scope")
    yield


def __getattr__(name: str) -> Any:
    return getattr(_v1.feature_column, name)


def __dir__() -> list[str]:
    return sorted({*dir(_v1.feature_column), *__all__})
