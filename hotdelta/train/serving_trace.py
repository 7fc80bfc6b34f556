"""Traces functions into signatures with named inputs and outputs, as a SavedModel wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hotdelta.chain.schema import SignatureSpec, TensorSpec
from hotdelta.errors import ConfigurationError

DEFAULT_SIGNATURE = "serving_default"


def trace_signature(
    call: Callable[[Sequence[tf.Tensor]], Mapping[str, tf.Tensor]], specs: Sequence[tf.TensorSpec]
) -> Any:
    """A concrete function with the named inputs of `specs` and the named outputs that `call` returns.

    Raises ConfigurationError when two inputs have one name.
    """
    input_names = [spec.name for spec in specs]
    if len(set(input_names)) != len(input_names):
        raise ConfigurationError(
            f"two inputs of a signature have one name: {', '.join(input_names)}",
            hint="name the inputs differently",
        )

    def signature(*inputs: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return call(inputs)

    return tf.function(signature, input_signature=list(specs), autograph=False).get_concrete_function()


def retrace(name: str, function: Any) -> Any:
    """A user's tf.function as a signature. Raises ConfigurationError when its inputs are not known."""
    concrete = _concrete(name, function)
    structure = concrete.structured_input_signature
    specs = [_named(spec, index) for index, spec in enumerate(tf.nest.flatten(structure))]

    def call(inputs: Sequence[tf.Tensor]) -> Mapping[str, tf.Tensor]:
        args, kwargs = tf.nest.pack_sequence_as(structure, list(inputs))
        return name_outputs(function(*args, **kwargs))

    return trace_signature(call, specs)


def name_outputs(outputs: Any, output_names: Sequence[str] = ()) -> Mapping[str, tf.Tensor]:
    """Outputs under names: those of a dict, else the given ones, else output_0 and so on."""
    if isinstance(outputs, Mapping):
        return {str(name): tensor for name, tensor in outputs.items()}
    flat = tf.nest.flatten(outputs)
    if len(output_names) != len(flat):
        output_names = [f"output_{index}" for index in range(len(flat))]
    return dict(zip(output_names, flat, strict=True))


def describe_signature(function: Any) -> SignatureSpec:
    """Names, shapes and dtypes of a traced signature."""
    outputs = function.structured_outputs
    return SignatureSpec(
        inputs=tuple(
            _describe(spec.name, spec) for spec in tf.nest.flatten(function.structured_input_signature)
        ),
        outputs=tuple(_describe(name, outputs[name]) for name in sorted(outputs)),
    )


def _describe(name: str, spec: tf.TensorSpec) -> TensorSpec:
    shape = None if spec.shape.rank is None else tuple(spec.shape.as_list())
    return TensorSpec(name=name, shape=shape, dtype=spec.dtype.name)


def _concrete(name: str, function: Any) -> Any:
    try:
        return function.get_concrete_function() if hasattr(function, "get_concrete_function") else function
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"signature {name!r} cannot be traced: {error}",
            hint="give its tf.function an input_signature of named tf.TensorSpec",
        ) from error


def _named(spec: tf.TensorSpec, index: int) -> tf.TensorSpec:
    return tf.TensorSpec(spec.shape, spec.dtype, name=spec.name or f"input_{index}")
