"""Traces functions into signatures with named inputs and outputs, as a SavedModel wants them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hotdelta.chain.schema import SignatureSpec, TensorSpec
from hotdelta.errors import ConfigurationError

DEFAULT_SIGNATURE = "serving_default"

# What TensorFlow lets a placeholder be called.
_PLACEHOLDER_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


def trace_signature(
    call: Callable[[Sequence[tf.Tensor]], Mapping[str, tf.Tensor]], specs: Sequence[tf.TensorSpec]
) -> Any:
    """A concrete function with the named inputs of `specs` and the named outputs that `call` returns.

    Raises ConfigurationError when two inputs have one name, or one has a name that a SavedModel cannot keep.
    """
    _require_names([spec.name for spec in specs])

    def signature(*inputs: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return call(inputs)

    return tf.function(signature, input_signature=list(specs), autograph=False).get_concrete_function()


def retrace(name: str, function: Any) -> Any:
    """A user's tf.function as a signature. Raises ConfigurationError when its inputs are not known."""
    concrete = _concrete(name, function)
    structure = concrete.structured_input_signature
    specs = [_named(name, spec, index) for index, spec in enumerate(tf.nest.flatten(structure))]
    # A trace from before, with whole reads where stock layers now gather rows, would be used again.
    untraced = function._clone(None) if hasattr(function, "_clone") else function  # noqa: SLF001

    def call(inputs: Sequence[tf.Tensor]) -> Mapping[str, tf.Tensor]:
        args, kwargs = tf.nest.pack_sequence_as(structure, list(inputs))
        return name_outputs(untraced(*args, **kwargs))

    return trace_signature(call, specs)


def name_outputs(outputs: Any, output_names: Sequence[str] = ()) -> Mapping[str, tf.Tensor]:
    """Outputs under names: those of a dict (nested ones joined), else the given ones, else output_0 and so on.

    Raises ConfigurationError for what is no tensor.
    """
    if isinstance(outputs, Mapping):
        named = list(_named_leaves(outputs, ""))
    else:
        flat = tf.nest.flatten(outputs)
        if len(output_names) != len(flat):
            output_names = [f"output_{index}" for index in range(len(flat))]
        named = list(zip(output_names, flat, strict=True))
    _require_tensors(named)
    return dict(named)


def _named_leaves(outputs: Any, path: str) -> Iterator[tuple[str, Any]]:
    items = outputs.items() if isinstance(outputs, Mapping) else enumerate(outputs)
    for key, value in items:
        name = f"{path}_{key}" if path else str(key)
        if isinstance(value, Mapping | list | tuple):
            yield from _named_leaves(value, name)
        else:
            yield name, value


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
    hint = "give a tf.function with an input_signature of named tf.TensorSpec"
    try:
        concrete = (
            function.get_concrete_function() if hasattr(function, "get_concrete_function") else function
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"signature {name!r} cannot be traced: {error}", hint=hint) from error
    if not hasattr(concrete, "structured_input_signature"):
        raise ConfigurationError(f"signature {name!r} is {function!r}, which is no tf.function", hint=hint)
    return concrete


def _named(signature: str, spec: Any, index: int) -> tf.TensorSpec:
    if not isinstance(spec, tf.TensorSpec):
        raise ConfigurationError(
            f"an input of signature {signature!r} is {spec}",
            hint="take dense tensors, and make ragged and sparse ones of them in the function",
        )
    return tf.TensorSpec(spec.shape, spec.dtype, name=spec.name or f"input_{index}")


def _require_names(input_names: Sequence[str]) -> None:
    if len(set(input_names)) != len(input_names):
        raise ConfigurationError(
            f"two inputs of a signature have one name: {', '.join(input_names)}",
            hint="name the inputs differently",
        )
    for name in input_names:
        # Inputs are keyword arguments of methods.
        if not _PLACEHOLDER_NAME.fullmatch(name) or keyword.iskeyword(name) or name == "self":
            raise ConfigurationError(
                f"a SavedModel cannot have an input {name!r}",
                hint="begin with a letter, go on with letters, digits and underscores, and take no word of Python; "
                "or give signatures with a tf.function of your own, or train with serving_graph=False",
            )


def _require_tensors(named: Sequence[tuple[str, Any]]) -> None:
    names = [name for name, _ in named]
    if not names or len(set(names)) != len(names):
        problem = f"has two outputs of one name: {', '.join(names)}" if names else "has no outputs"
        raise ConfigurationError(f"a signature {problem}", hint="return a dictionary of tensors by name")
    for name, output in named:
        if not isinstance(output, tf.Tensor):
            raise ConfigurationError(
                f"output {name!r} is a {type(output).__name__}, which a SavedModel cannot return",
                hint="return dense tensors: x.to_tensor(), tf.sparse.to_dense(x)",
            )
