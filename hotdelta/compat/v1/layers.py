"""tf.layers.dense, dropout, batch_normalization and flatten, on tf.get_variable.

TensorFlow 2.21 has only those of Keras, which refuse to work under Keras 3. tf-keras would bring them back, at the
price of a second Keras in the process; four functions of a few lines do not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as _tf

from hotdelta.errors import ConfigurationError

__all__ = ["batch_normalization", "dense", "dropout", "flatten"]

_v1 = _tf.compat.v1

# Names that mean something else in Keras, through which TensorFlow 1 finds them, than in tf.initializers.
_KERAS_INITIALIZERS = {
    **dict.fromkeys(("normal", "random_normal"), partial(_v1.random_normal_initializer, stddev=0.05)),
    **dict.fromkeys(("uniform", "random_uniform"), partial(_v1.random_uniform_initializer, -0.05, 0.05)),
    "truncated_normal": partial(_v1.truncated_normal_initializer, stddev=0.05),
    "zero": _v1.zeros_initializer,
    "one": _v1.ones_initializer,
}


def dense(
    inputs: Any,
    units: float,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Any:
    """A fully connected layer over the last axis: variables `<name>/kernel` and `<name>/bias`."""
    inputs = _tf.convert_to_tensor(inputs)
    columns, units = _last_size(inputs), int(units)
    with _v1.variable_scope(name, "dense", reuse=reuse):
        kernel = _v1.get_variable(
            "kernel",
            [columns, units],
            inputs.dtype,
            _initializer(kernel_initializer),
            kernel_regularizer,
            trainable,
            constraint=kernel_constraint,
        )
        outputs = (
            _tf.tensordot(inputs, kernel, [[-1], [0]])
            if inputs.shape.rank > 2
            else _tf.matmul(inputs, kernel)
        )
        if use_bias:
            bias = _v1.get_variable(
                "bias",
                [units],
                inputs.dtype,
                _initializer(bias_initializer or "zeros"),
                bias_regularizer,
                trainable,
                constraint=bias_constraint,
            )
            outputs = _tf.nn.bias_add(outputs, bias)
        if activation is not None:
            outputs = _activation(activation)(outputs)
        if activity_regularizer is not None:
            _v1.losses.add_loss(activity_regularizer(outputs), _v1.GraphKeys.REGULARIZATION_LOSSES)
        return outputs


def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> Any:
    """`training` may be a tensor."""
    with _v1.name_scope(name, "dropout"):
        return _choose(
            training,
            lambda: _tf.nn.dropout(inputs, rate=rate, noise_shape=noise_shape, seed=seed),
            lambda: _tf.identity(inputs),
        )


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Any:
    """All axes but the first become one."""
    if data_format != "channels_last":
        raise ConfigurationError(f"data_format is {data_format!r}", hint="transpose to channels_last first")
    with _v1.name_scope(name, "flatten"):
        inputs = _tf.convert_to_tensor(inputs)
        sizes = inputs.shape.as_list()[1:]
        columns = int(_tf.TensorShape(sizes).num_elements()) if None not in sizes else -1
        return _tf.reshape(inputs, [_tf.shape(inputs)[0], columns])


def batch_normalization(
    inputs: Any,
    axis: Any = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    moving_mean_initializer: Any = None,
    moving_variance_initializer: Any = None,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,  # noqa: ARG001 - of renorm, which is refused
    renorm_momentum: float = 0.99,  # noqa: ARG001 - of renorm, which is refused
    fused: bool | None = None,  # noqa: ARG001 - how it is computed, not what
    virtual_batch_size: int | None = None,
    adjustment: Any = None,
) -> Any:
    """As in TensorFlow 1, the moving averages are updated by operations in tf.GraphKeys.UPDATE_OPS."""
    if renorm or virtual_batch_size is not None or adjustment is not None:
        raise ConfigurationError(
            "batch_normalization has neither renorm nor virtual_batch_size nor adjustment here",
            hint="leave them out",
        )
    inputs = _tf.convert_to_tensor(inputs)
    axis = int(axis[0] if isinstance(axis, list | tuple) and len(axis) == 1 else axis) % inputs.shape.rank
    size, others = int(inputs.shape[axis]), [each for each in range(inputs.shape.rank) if each != axis]

    def variable(key: str, initializer: Any, *, is_trained: bool = trainable, **options: Any) -> Any:
        return _v1.get_variable(
            key, [size], inputs.dtype, _initializer(initializer), trainable=is_trained, **options
        )

    with _v1.variable_scope(name, "batch_normalization", reuse=reuse) as scope:
        # The moving averages are assigned as a whole, which a variable in parts cannot be.
        scope.set_partitioner(None)
        of_gamma = {"regularizer": gamma_regularizer, "constraint": gamma_constraint}
        of_beta = {"regularizer": beta_regularizer, "constraint": beta_constraint}
        gamma = variable("gamma", gamma_initializer or "ones", **of_gamma) if scale else None
        beta = variable("beta", beta_initializer or "zeros", **of_beta) if center else None
        moving_mean = variable("moving_mean", moving_mean_initializer or "zeros", is_trained=False)
        moving_variance = variable("moving_variance", moving_variance_initializer or "ones", is_trained=False)
        batch_mean, batch_variance = _tf.nn.moments(inputs, others)
        for moving, batch in ((moving_mean, batch_mean), (moving_variance, batch_variance)):
            change = (_tf.identity(moving) - batch) * _tf.cast(1 - momentum, inputs.dtype)
            decay = _choose(
                training, lambda change=change: change, lambda change=change: _tf.zeros_like(change)
            )
            if training is not False:
                _v1.add_to_collection(_v1.GraphKeys.UPDATE_OPS, _v1.assign_sub(moving, decay))
        shape = [size if each == axis else 1 for each in range(inputs.shape.rank)]
        mean, variance = (
            _tf.reshape(_choose(training, lambda b=batch: b, lambda m=moving: _tf.identity(m)), shape)
            for batch, moving in ((batch_mean, moving_mean), (batch_variance, moving_variance))
        )
        offset, factor = (None if part is None else _tf.reshape(part, shape) for part in (beta, gamma))
        return _tf.nn.batch_normalization(inputs, mean, variance, offset, factor, epsilon)


def _last_size(inputs: Any) -> int:
    size = inputs.shape.as_list()[-1] if inputs.shape.rank else None
    if size is None:
        raise ConfigurationError(
            f"the last dimension of {inputs.name}, {inputs.shape}, is not known, so its layer has no size",
            hint="set it: inputs.set_shape([None, columns])",
        )
    return int(size)


def _activation(activation: Any) -> Any:
    """TensorFlow 1 takes the name of a function, too."""
    if not isinstance(activation, str):
        return activation
    found = _tf.identity if activation == "linear" else getattr(_tf.nn, activation, None)
    return found if found is not None else _refuse_name("activation", activation)


def _initializer(initializer: Any) -> Any:
    """TensorFlow 1 takes the name of an initializer, too."""
    if not isinstance(initializer, str):
        return initializer
    if initializer in _KERAS_INITIALIZERS:
        return _KERAS_INITIALIZERS[initializer]()
    found = getattr(_v1.initializers, initializer, None)
    is_initializer = isinstance(found, type) or initializer.startswith(("he_", "lecun_"))
    return found() if found and is_initializer else _refuse_name("initializer", initializer)


def _refuse_name(kind: str, name: str) -> Any:
    raise ConfigurationError(f"there is no {kind} {name!r}", hint="give the function itself")


def _choose(condition: Any, when_true: Any, when_false: Any) -> Any:
    """A Python truth value decides now, a tensor when the graph runs."""
    if isinstance(condition, _tf.Tensor):
        return _v1.cond(condition, when_true, when_false)
    return when_true() if condition else when_false()


def __getattr__(name: str) -> Any:
    try:
        return getattr(_v1.layers, name)
    except AttributeError as error:
        raise AttributeError(
            f"tf.layers.{name} is not here: {error} There are {', '.join(__all__)}; for anything else use tf.nn, or a "
            "layer of tf.keras.layers that has a name"
        ) from error


def __dir__() -> list[str]:
    return sorted({*dir(_v1.layers), *__all__})
