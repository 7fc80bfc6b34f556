"""`tf.staged` and what belongs to it: in DeepRec threads that read ahead, here the step that reads when it needs to.

To read ahead, end the input with `dataset.prefetch`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph import session_config
from hotdelta.compat.v1.graph.session_config import say_without_effect
from hotdelta.errors import ConfigurationError

_COUNTS = ("capacity", "num_threads", "num_clients", "timeout_millis")
_PLACES = (
    "use_stage_subgraph_thread_pool",
    "stage_subgraph_thread_pool_id",
    "stage_subgraph_stream_id",
    "name",
    "graph",
)
_FEEDS = ("feed_dict", "feed_list", "feed_generator")
_CLOSING = "closed_exception_types"
_IGNORED = "ignored_exception_types"
# Both as DeepRec takes them, by code and by class.
_ENDS = (
    tf.errors.OUT_OF_RANGE,
    tf.errors.CANCELLED,
    tf.errors.OutOfRangeError,
    tf.errors.CancelledError,
)


def staged(
    features: Any, feed_dict: Any = None, capacity: int = 1, num_threads: int = 1, **options: Any
) -> Any:
    """The features themselves, in containers of their own. Raises ConfigurationError for what would change them."""
    _check({"feed_dict": feed_dict, "capacity": capacity, "num_threads": num_threads, **options})
    say_without_effect("tf.staged")
    return tf.nest.map_structure(lambda tensor: tensor, features)


def SmartStageOptions(**options: Any) -> session_config.SmartStageOptions:  # noqa: N802 - the name of DeepRec
    """For `graph_options.optimizer_options.smart_stage_options` of a tf.ConfigProto. Raises ConfigurationError."""
    _check(options)
    return session_config.SmartStageOptions()


def make_prefetch_hook(daemon: bool = True, start: bool = True) -> Any:  # noqa: ARG001 - of threads that are not here
    """A hook that does nothing."""
    say_without_effect("tf.make_prefetch_hook")
    return tf.compat.v1.train.SessionRunHook()


def mark_target_node(targets: Any) -> None:  # noqa: ARG001 - a hint to DeepRec's search for what can be staged
    say_without_effect("tf.train.mark_target_node")


def _check(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name not in (*_COUNTS, *_PLACES, *_FEEDS, _CLOSING, _IGNORED):
            raise ConfigurationError(f"tf.staged has no {name}")
        if name in _COUNTS and not (isinstance(value, int) and value > 0):
            raise ConfigurationError(f"{name} is {value!r}", hint="give a whole number above 0")
        if name in _FEEDS and value:
            raise ConfigurationError(
                f"{name}: the threads that DeepRec feeds with it are not here",
                hint="read with a tf.data.Dataset, from_generator for example, or feed the step itself",
            )
        if name == _IGNORED and value:
            raise ConfigurationError(
                f"{name}: no batch is left out here because of an error",
                hint="leave it out, and read with dataset.apply(tf.data.experimental.ignore_errors())",
            )
        if name == _CLOSING and any(each not in _ENDS for each in value or ()):
            raise ConfigurationError(
                f"{name} is {value!r}: here the input ends with OutOfRangeError alone",
                hint="leave it out, and let the input end so",
            )
