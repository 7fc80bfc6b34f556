"""The signature that maps the named inputs of a model to the wanted outputs, and uses nothing else of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.io.subgraph import Subgraph
from hotdelta.keras.serving.graph import output_names, trace_keras_model
from hotdelta.keras.serving.inputs import inputs_of
from hotdelta.keras_internals import origin_of
from hotdelta.train.model.module_keys import refuse_keras_2
from hotdelta.train.serving.trace import DEFAULT_SIGNATURE, Signature


def pruned_signature(model: Any, feeds: Sequence[str], targets: Sequence[Any]) -> Any:
    """A tf.function with named inputs and outputs; None when it would be the model's own signature.

    Raises ConfigurationError when an input or output is unknown, or an input that the outputs need is not named.
    """
    if not targets:
        raise ConfigurationError("no target is given", hint="name at least one output")
    refuse_keras_2(model)
    if not isinstance(model, keras.Model | tf.Module):
        raise ConfigurationError(
            f"a {type(model).__name__} is no model",
            hint="give directory, inputs, targets and model, in this order",
        )
    if not isinstance(model, keras.Model):
        return _given_signature(feeds, targets)
    if getattr(model, "inputs", None):
        return _functional_signature(model, feeds, targets)
    return _called_signature(model, feeds, targets)


def _functional_signature(model: keras.Model, feeds: Sequence[str], targets: Sequence[Any]) -> Any:
    """The layers between inputs and targets, as a model of their own that shares the variables."""
    inputs = dict(zip((spec.name for spec in inputs_of(model).specs), model.inputs, strict=True))
    _refuse_unknown(feeds, inputs, "input")
    named = dict(_target(model, target) for target in targets)
    if set(feeds) == set(inputs) and set(named) == set(output_names(model)):
        return None
    try:
        part = keras.Model([inputs[name] for name in feeds], list(named.values()))
    except ValueError as error:
        raise _not_enough(feeds, inputs) from error
    specs = _input_specs(_trace(model))

    def call(*tensors: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return dict(zip(named, keras.tree.flatten(part(list(tensors), training=False)), strict=True))

    return tf.function(call, input_signature=[specs[name] for name in feeds], autograph=False)


def _called_signature(model: keras.Model, feeds: Sequence[str], targets: Sequence[Any]) -> Any:
    """A subclassed model: its own signature is traced, and what the targets do not need is cut off."""
    whole = _trace(model)
    specs, outputs = _input_specs(whole), [output.name for output in whole.spec.outputs]
    _refuse_unknown(feeds, specs, "input")
    _refuse_unknown(targets, outputs, "output")
    if set(feeds) == set(specs) and set(targets) == set(outputs):
        return None
    part = Subgraph(whole, targets)
    if not set(part.needed_inputs) <= set(feeds):
        raise _not_enough(feeds, part.needed_inputs)

    def call(*tensors: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return part.call(dict(zip(feeds, tensors, strict=True)))

    return tf.function(call, input_signature=[specs[name] for name in feeds], autograph=False)


def _given_signature(feeds: Sequence[str], targets: Sequence[Any]) -> Any:
    """A tf.Module: the function is what is wanted, and its inputs are what it says."""
    if len(targets) != 1 or not hasattr(targets[0], "input_signature"):
        raise ConfigurationError(
            "the target of a tf.Module is one of its functions",
            hint="give a tf.function with an input_signature, for example module.predict",
        )
    function = targets[0]
    names = [spec.name for spec in tf.nest.flatten(function.input_signature or ())]
    if sorted(feeds) != sorted(map(str, names)):
        raise ConfigurationError(
            f"the function takes {', '.join(map(str, names))}, not {', '.join(feeds)}",
            hint="name the inputs of its input_signature",
        )
    return function


def _target(model: keras.Model, target: Any) -> tuple[str, Any]:
    """Name and tensor of a target, which is a tensor of the model or the name of an output or layer."""
    names = dict(zip(output_names(model), model.outputs, strict=True))
    if not isinstance(target, str):
        if not isinstance(target, keras.KerasTensor):
            raise _unknown(target, names, "output")
        found = next((name for name, tensor in names.items() if tensor is target), None)
        return (found or str(origin_of(target).name)), target
    layers = {layer.name: layer for layer in model.layers}
    if target not in names and target not in layers:
        raise _unknown(target, [*names, *layers], "output or layer")
    return target, names[target] if target in names else layers[target].output


def _trace(model: keras.Model) -> Signature:
    module, _ = trace_keras_model(model)
    return module.signatures[DEFAULT_SIGNATURE]


def _input_specs(signature: Signature) -> dict[str, tf.TensorSpec]:
    return {spec.name: spec for spec in signature.input_specs}


def _refuse_unknown(wanted: Sequence[str], known: Collection[str], what: str) -> None:
    for name in wanted:
        if name not in known:
            raise _unknown(name, known, what)


def _unknown(name: Any, known: Collection[str], what: str) -> ConfigurationError:
    return ConfigurationError(f"the model has no {what} {name!r}", hint=f"it has {', '.join(sorted(known))}")


def _not_enough(feeds: Sequence[str], known: Collection[str]) -> ConfigurationError:
    return ConfigurationError(
        f"the targets cannot be computed from {', '.join(feeds)} alone",
        hint=f"name more inputs: {', '.join(name for name in known if name not in feeds)}",
    )
