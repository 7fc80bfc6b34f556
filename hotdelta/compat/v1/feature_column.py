"""tf.feature_column, with what DeepRec says to look up many columns at once; here each is looked up by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as _tensorflow

from hotdelta.compat.v1.graph.session_config import say_without_effect

__all__ = ["embedding_column", "group_embedding_column_scope", "shared_embedding_columns"]

_v1 = _tensorflow.compat.v1


def _without_fusion(make_column: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make_column)
    def wrapped(*args: Any, do_fusion: Any = None, **kwargs: Any) -> Any:
        if do_fusion:
            say_without_effect("do_fusion")
        return make_column(*args, **kwargs)

    return wrapped


embedding_column = _without_fusion(_v1.feature_column.embedding_column)
shared_embedding_columns = _without_fusion(_v1.feature_column.shared_embedding_columns)


@contextmanager
def group_embedding_column_scope(name: str | None = None) -> Iterator[None]:  # noqa: ARG001 - groups are not here
    say_without_effect("tf.feature_column.group_embedding_column_scope")
    yield


def __getattr__(name: str) -> Any:
    return getattr(_v1.feature_column, name)


def __dir__() -> list[str]:
    return sorted({*dir(_v1.feature_column), *__all__})
