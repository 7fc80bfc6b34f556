"""What an input function returns, as features and labels: a dataset, a pair, or features alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_DATASETS = (tf.data.Dataset, v1.data.Dataset)


def read_input(input_fn: Any, **known: Any) -> tuple[Any, Any]:
    """Calls the function with those of `known` (mode, params, config) that it takes."""
    given = call_with_known(input_fn, **known)
    if isinstance(given, _DATASETS):
        iterator = v1.data.make_initializable_iterator(given)
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        given = iterator.get_next()
    if isinstance(given, list | tuple) and not isinstance(given, Mapping):
        if len(given) == 2:
            return given[0], given[1]
        return given[0], None
    return given, None


def call_with_known(function: Any, *args: Any, **known: Any) -> Any:
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return function(
        *args, **{name: value for name, value in known.items() if takes_any or name in parameters}
    )
