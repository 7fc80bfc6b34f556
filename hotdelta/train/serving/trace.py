"""Traces functions into signatures with named inputs and outputs, as a SavedModel wants them.

TensorFlow changes the names of a function's inputs where they are not plain (to lower case, to underscores), and each
time that a function is saved and loaded again. So only plain names are given to it. An input with any other name has a
made-up one in the graph, and its own is kept beside the function, in the signature's spec.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from hotdelta.chain.format.schema import SignatureSpec, TensorSpec
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import without_traces

DEFAULT_SIGNATURE = "serving_default"

_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]*")
_HIDDEN = "hotdelta_input_"


@dataclass(frozen=True, slots=True)
class Signature:
    """A traced function, and what callers call its inputs and outputs.

    `spec` has the inputs in the order in which `function` takes them, which knows them by their graph names.
    """

    function: Any
    spec: SignatureSpec

    @property
    def input_specs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec(each.shape, each.dtype, each.name) for each in self.spec.inputs]


def graph_name(name: str) -> str:
    """What TensorFlow calls an input of this name, in every graph and file."""
    # Inputs are keyword arguments of methods.
    is_taken = keyword.iskeyword(name) or name == "self" or name.startswith(_HIDDEN)
    is_plain = _PLAIN_NAME.fullmatch(name) is not None and not is_taken
    return name if is_plain else f"{_HIDDEN}{name.encode().hex()}"


def trace_signature(
    call: Callable[[Sequence[tf.Tensor]], Mapping[str, tf.Tensor]], specs: Sequence[tf.TensorSpec]
) -> Signature:
    """A concrete function with the named inputs of `specs` and the named outputs that `call` returns.

    Raises ConfigurationError when two inputs have one name.
    """
    _require_names([spec.name for spec in specs])
    wanted = [tf.TensorSpec(spec.shape, spec.dtype, graph_name(spec.name)) for spec in specs]

    def signature(*inputs: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return call(inputs)

    function = tf.function(signature, input_signature=wanted, autograph=False).get_concrete_function()
    outputs = function.structured_outputs
    spec = SignatureSpec(
        inputs=tuple(_describe(spec.name, spec) for spec in specs),
        outputs=tuple(_describe(name, outputs[name]) for name in sorted(outputs)),
    )
    return Signature(function, spec)


def loaded_signature(function: Any, spec: SignatureSpec) -> Signature:
    """A signature that was saved and loaded again; TensorFlow sorts its inputs by their graph names.

    Raises ValueError when the function does not take these inputs.
    """
    inputs = {graph_name(each.name): each for each in spec.inputs}
    found = sorted(function.structured_input_signature[1])
    if sorted(inputs) != found:
        raise ValueError(f"its inputs are {', '.join(found)}, not {', '.join(sorted(inputs))}")
    return Signature(function, replace(spec, inputs=tuple(inputs[name] for name in found)))


def retrace(name: str, function: Any) -> Signature:
    """A user's tf.function as a signature. Raises ConfigurationError when its inputs are not known."""
    concrete = _concrete(name, function)
    structure = concrete.structured_input_signature
    specs = [_named(name, spec, index) for index, spec in enumerate(tf.nest.flatten(structure))]
    # A trace from before, with whole reads where stock layers now gather rows, would be used again.
    untraced = without_traces(function)

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
