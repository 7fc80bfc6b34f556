"""What the inputs of a Keras model are called and look like when it is served."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras_internals import shapes_of_first_call

REMEDY = (
    "give the input specs: signatures={'serving_default': {'user': tf.TensorSpec([None], tf.int64)}}, "
    "or a tf.function with an input_signature"
)
_SINGLE_INPUT = "inputs"
_MADE_UP_NAME = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?")


# The arguments of their first call, as specs by name, of models that a batch has built.
_first_calls: weakref.WeakKeyDictionary[keras.Model, Mapping[str, Any]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The positional arguments of the model's call as a structure of named specs.

    `has_declared_dtypes` is false where Keras recorded only shapes: then float may stand for ids.
    """

    arguments: tuple[Any, ...]
    has_declared_dtypes: bool

    @property
    def specs(self) -> list[tf.TensorSpec]:
        return list(keras.tree.flatten(self.arguments))

    def pack(self, tensors: Sequence[tf.Tensor]) -> tuple[Any, ...]:
        return tuple(keras.tree.pack_sequence_as(self.arguments, list(tensors)))

    def with_dtypes(self, wanted: Mapping[str, tf.DType | None]) -> ModelInputs:
        """The same, with what layers want of their inputs instead of the float32 that stands for "not known".

        Raises ConfigurationError where a layer takes several dtypes, and each gives another answer.
        """

        def change(spec: tf.TensorSpec) -> tf.TensorSpec:
            if not spec.dtype.is_floating or spec.name not in wanted:
                return spec
            if wanted[spec.name] is None:
                raise ConfigurationError(f"the dtype of input {spec.name!r} is not known", hint=REMEDY)
            return tf.TensorSpec(spec.shape, wanted[spec.name], spec.name)

        return ModelInputs(keras.tree.map_structure(change, self.arguments), has_declared_dtypes=True)

    def __str__(self) -> str:
        return ", ".join(f"{spec.name}: {spec.dtype.name}{list(spec.shape)}" for spec in self.specs)


def inputs_of(model: keras.Model) -> ModelInputs:
    """What is known of them. Raises ConfigurationError with the remedy when that is not enough."""
    if model in _first_calls:
        return _inputs_of_arguments(_first_calls[model], has_declared_dtypes=True)
    if isinstance(model, keras.Sequential):
        if not model.built or not model.inputs:
            raise ConfigurationError(
                f"model {model.name!r} is not built: its inputs are not known", hint=REMEDY
            )
        return ModelInputs((_name_leaves(model.inputs[0]),), has_declared_dtypes=False)
    if _has_symbolic_inputs(model):
        return ModelInputs((_name_leaves(model.input),), has_declared_dtypes=True)
    return _recorded_inputs(model)


def remember_call(model: keras.Model, arguments: Mapping[str, Any]) -> None:
    """What it was called with, for `inputs_of`. Ragged and sparse tensors are served as dense ones."""
    _first_calls[model] = {
        name: keras.tree.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), value)
        for name, value in arguments.items()
    }


def given_inputs(specs: Any) -> ModelInputs:
    """What the user says: one spec, a list, or a dictionary (nested where the model's input is).

    Raises ConfigurationError for anything else.
    """
    if not all(isinstance(leaf, tf.TensorSpec) for leaf in keras.tree.flatten(specs)):
        raise ConfigurationError(f"{specs!r} says nothing about inputs", hint=REMEDY)
    return ModelInputs((_name_leaves(specs),), has_declared_dtypes=True)


def _has_symbolic_inputs(model: keras.Model) -> bool:
    try:
        return model.input is not None
    except (AttributeError, ValueError):
        return False


def _recorded_inputs(model: keras.Model) -> ModelInputs:
    """A subclassed model: the shapes of its first call, one entry for each argument of build()."""
    shapes = shapes_of_first_call(model)
    if not shapes:
        raise ConfigurationError(
            f"model {model.name!r} was never called, so its inputs are not known",
            hint=f"call it once, or {REMEDY}",
        )
    arguments = {name.removesuffix("_shape"): _specs_of_shapes(shape) for name, shape in shapes.items()}
    return _inputs_of_arguments(arguments, has_declared_dtypes=False)


def _inputs_of_arguments(arguments: Mapping[str, Any], *, has_declared_dtypes: bool) -> ModelInputs:
    """The only argument of call() may have any name."""
    named = [
        _name_leaves(argument, default=_SINGLE_INPUT if len(arguments) == 1 else name)
        for name, argument in arguments.items()
    ]
    return ModelInputs(tuple(named), has_declared_dtypes)


def _specs_of_shapes(shapes: Any) -> Any:
    if isinstance(shapes, Mapping):
        return {key: _specs_of_shapes(shape) for key, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec([None, *shapes[1:]], tf.float32)
    return [_specs_of_shapes(shape) for shape in shapes]


def _name_leaves(structure: Any, *, default: str = _SINGLE_INPUT) -> Any:
    """Keys of dictionaries, else names that the user gave, else `inputs`, or `input_0` and so on for several."""
    paths = keras.tree.flatten_with_path(structure)
    leaves = [
        _spec(leaf, _leaf_name(path, leaf) or (default if len(paths) == 1 else f"input_{index}"))
        for index, (path, leaf) in enumerate(paths)
    ]
    return keras.tree.pack_sequence_as(structure, leaves)


def _leaf_name(path: Sequence[Any], leaf: Any) -> str | None:
    if path and isinstance(path[-1], str):
        return path[-1]
    name = getattr(leaf, "name", None)
    return None if name is None or _MADE_UP_NAME.fullmatch(name) else str(name)


def _spec(leaf: Any, name: str) -> tf.TensorSpec:
    shape = tf.TensorShape(leaf.shape)
    return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, tf.as_dtype(leaf.dtype), name=name)
