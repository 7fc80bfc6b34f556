"""`tf.ConfigProto` with the fields that DeepRec adds to it. All of those are about speed, and change nothing here.

What is no field of either raises AttributeError, as in stock TensorFlow.
"""

from __future__ import annotations

import copy
import enum
import logging
from typing import Any

import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.logs import event

v1 = tf.compat.v1
logger = logging.getLogger(__name__)


class ExecutorPolicy(enum.IntEnum):
    """tf.ExecutorPolicy of DeepRec."""

    USE_NORMAL_EXECUTOR = 0
    USE_INLINE_EXECUTOR = 1
    USE_COST_MODEL_EXECUTOR = 2


_OPTIONS = "graph_options.optimizer_options."
_SWITCHES = (
    "do_async_embedding",
    "do_op_fusion",
    "do_smart_stage",
    "do_smart_stage_gpu",
    "embedding_layer_device_placement_optimization",
    "stage_multi_stream",
    "stage_subgraph_on_cpu",
)
_MICRO_BATCHES = f"{_OPTIONS}micro_batch_num"
_POLICY = "executor_policy"
_DEFAULTS: dict[str, Any] = {
    **{f"{_OPTIONS}{name}": False for name in _SWITCHES},
    _MICRO_BATCHES: 0,
    _POLICY: ExecutorPolicy.USE_NORMAL_EXECUTOR,
    "tensor_fuse": False,
}
_SMART_STAGE = f"{_OPTIONS}smart_stage_options"
# The messages on the way to them.
_OPEN = frozenset({"graph_options", _OPTIONS.removesuffix(".")})

_said: set[str] = set()


def say_without_effect(name: str) -> None:
    """Once for each name."""
    if name not in _said:
        _said.add(name)
        event(logger, logging.INFO, "this is about speed in DeepRec, and changes nothing here", name=name)


class SmartStageOptions:
    """tf.SmartStageOptions of DeepRec, and the field that takes it: how much is read ahead."""

    def CopyFrom(self, other: Any) -> None:  # noqa: N802 - the name of a message
        if not isinstance(other, SmartStageOptions):
            raise ConfigurationError(
                f"smart_stage_options is {other!r}", hint="make it with tf.SmartStageOptions(...)"
            )
        say_without_effect("smart_stage_options")


class _Fields:
    """A message of a ConfigProto: fields of stock TensorFlow are those of `stock`, those of DeepRec are in `given`.

    To isinstance it is the message that it stands for: that is how whatever takes a ConfigProto looks at it.
    """

    __slots__ = ("given", "path", "stock")

    def __init__(self, stock: Any, path: str, given: dict[str, Any]) -> None:
        for name, value in (("stock", stock), ("path", path), ("given", given)):
            object.__setattr__(self, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.stock)

    def __getattr__(self, name: str) -> Any:
        path = f"{self.path}{name}"
        if path in _DEFAULTS:
            return self.given.get(path, _DEFAULTS[path])
        if path == _SMART_STAGE:
            return SmartStageOptions()
        value = getattr(self.stock, name)
        return _Fields(value, f"{path}.", self.given) if path in _OPEN else value

    def __setattr__(self, name: str, value: Any) -> None:
        path = f"{self.path}{name}"
        if path not in _DEFAULTS:
            setattr(self.stock, name, value)
            return
        self.given[path] = _checked(path, value)
        if value != _DEFAULTS[path]:
            say_without_effect(path)

    def CopyFrom(self, other: Any) -> None:  # noqa: N802 - the name of a message
        self.stock.CopyFrom(stock_config(other))

    def MergeFrom(self, other: Any) -> None:  # noqa: N802 - the name of a message
        self.stock.MergeFrom(stock_config(other))

    def __deepcopy__(self, memo: Any) -> _Fields:
        return _Fields(copy.deepcopy(self.stock, memo), self.path, dict(self.given))

    def __eq__(self, other: object) -> bool:
        return bool(self.stock == stock_config(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.stock)


class _ConfigProtoType(type):
    """What a class of messages is asked for, tf.ConfigProto.FromString for example, is that of stock TensorFlow."""

    def __call__(cls, **fields: Any) -> Any:
        own = {name: fields.pop(name) for name in _DEFAULTS if name in fields}
        config = _Fields(v1.ConfigProto(**fields), "", {})
        for name, value in own.items():
            setattr(config, name, value)
        return config

    def __getattr__(cls, name: str) -> Any:
        return getattr(v1.ConfigProto, name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, v1.ConfigProto)


class _ConfigProto(metaclass=_ConfigProtoType):
    """tf.ConfigProto."""


ConfigProto: Any = _ConfigProto


def stock_config(config: Any) -> Any:
    """The message itself, for those who copy it; anything else is returned as it is."""
    return config.stock if type(config) is _Fields else config


def _checked(path: str, value: Any) -> Any:
    """Raises ConfigurationError."""
    name = path.removeprefix(_OPTIONS)
    try:
        checked = type(_DEFAULTS[path])(value)
    except (TypeError, ValueError) as error:
        hint = "give a tf.ExecutorPolicy" if path == _POLICY else "give a number"
        raise ConfigurationError(f"{name} is {value!r}", hint=hint) from error
    if path == _MICRO_BATCHES and checked > 1:
        raise ConfigurationError(
            f"{name} is {value}: DeepRec then trains on the sum of so many batches at once, and this would not",
            hint=f"leave it out, and give batches that are {value} times as large",
        )
    return checked
