"""tf.keras, with what TensorFlow 1 hands to it and Keras 3 does not take.

That are tensors without a rank in losses (such as tf.squeeze leaves), and reference variables in regularizers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import tensorflow as _tensorflow

# The losses that compare number with number: labels and predictions have one shape.
_ONE_SHAPE = (
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "Huber",
    "LogCosh",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
)


_REGULARIZERS = ("L1", "L2", "L1L2", "OrthogonalRegularizer")


class _AdaptedModule(ModuleType):
    """A module of Keras, with some of its classes in another form."""

    def __init__(self, module: ModuleType, names: Collection[str], adapt: Callable[[Any], type]) -> None:
        super().__init__(module.__name__)
        self._module = module
        self._names = names
        self._adapt = functools.cache(adapt)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        # By the name of the class: it may have others, as L2 is l2, too.
        is_adapted = isinstance(found, type) and found.__name__ in self._names
        return self._adapt(found) if is_adapted else found

    def __dir__(self) -> list[str]:
        return dir(self._module)


def _with_a_rank(loss: Any) -> type:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return loss.__call__(self, *_ranked(y_true, y_pred), sample_weight)

    return type(loss.__name__, (loss,), {"__call__": call, "__doc__": loss.__doc__})


def _ranked(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """What has no rank gets the shape of the other one; both are flat when neither has one."""
    if _has_rank(y_true) and _has_rank(y_pred):
        return y_true, y_pred
    if _has_rank(y_true):
        return y_true, _tensorflow.reshape(y_pred, _tensorflow.shape(y_true))
    if _has_rank(y_pred):
        return _tensorflow.reshape(y_true, _tensorflow.shape(y_pred)), y_pred
    return _tensorflow.reshape(y_true, [-1]), _tensorflow.reshape(y_pred, [-1])


def _has_rank(given: Any) -> bool:
    return not isinstance(given, _tensorflow.Tensor) or given.shape.rank is not None


def _of_values(regularizer: Any) -> type:
    def call(self: Any, x: Any) -> Any:
        return regularizer.__call__(self, _tensorflow.convert_to_tensor(x))

    return type(regularizer.__name__, (regularizer,), {"__call__": call, "__doc__": regularizer.__doc__})


@functools.cache
def _adapted() -> dict[str, ModuleType]:
    """Not before they are asked for: Keras is imported then."""
    original = _tensorflow.compat.v1.keras
    return {
        "losses": _AdaptedModule(original.losses, _ONE_SHAPE, _with_a_rank),
        "regularizers": _AdaptedModule(original.regularizers, _REGULARIZERS, _of_values),
    }


def __getattr__(name: str) -> Any:
    if name in ("losses", "regularizers"):
        return _adapted()[name]
    return getattr(_tensorflow.compat.v1.keras, name)


def __dir__() -> list[str]:
    return dir(_tensorflow.compat.v1.keras)
