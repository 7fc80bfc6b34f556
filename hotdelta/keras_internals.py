"""All that hotdelta uses of Keras without a promise that the next release still has it. No other module may.

Functions and classes say what the caller wants; the names of Keras stay in here. tests/test_private_names.py looks each
of them up in the Keras that is installed, and says which function needs the one that is gone. Imports no Keras, so that
custom loops need none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from types import FrameType
from typing import Any

# What Keras calls the functions that it traces to train.
ONE_STEP = "one_step_on_data"
TRAINING_FUNCTIONS = frozenset({ONE_STEP, "multi_step_on_iterator"})

# Attributes in which a layer lists its children once more.
CHILDREN = frozenset({"_layers", "_metrics"})
# Lists and dictionaries of Keras itself: some are long, and none is a place for what a user's model holds.
BOOKKEEPING = frozenset(
    {
        "_build_shapes_dict",
        "_call_has_context_arg",
        "_compiled_trainable_state",
        "_inbound_nodes",
        "_inputs",
        "_layers",
        "_losses",
        "_losses_override",
        "_metrics",
        "_nodes_by_depth",
        "_non_trainable_variables",
        "_operations",
        "_operations_by_depth",
        "_outbound_nodes",
        "_outputs",
        "_seed_generators",
        "_trainable_variables",
        "call_signature_parameters",
        "output_names",
    }
)
# What TensorFlow puts into the objects that it tracks, and Python into those of mangled names.
_OF_TRACKING = ("__", "_self_")


# Variables.


def is_keras_variable(value: Any) -> bool:
    return hasattr(value, "_value")


def value_of(variable: Any) -> Any:
    """The variable of TensorFlow in one of Keras, whose `value` may be a copy that is cast to another dtype.

    None while Keras is still inferring shapes.
    """
    return variable._value


class MakesItsVariable:
    """Mixed in before keras.Variable: its initializer makes the variable of TensorFlow, and not only a value for it."""

    def _initialize_with_initializer(self, initializer: Callable[..., Any]) -> None:
        self._initialize(initializer())  # type: ignore[attr-defined]


# Layers and models.


def all_layers(model: Any) -> list[Any]:
    """A layer or model, and all layers in it."""
    layers: list[Any] = model._flatten_layers()
    return layers


def children_of(layer: Any) -> list[Any]:
    """The layers that a layer holds itself."""
    layers: list[Any] = layer._layers
    return layers


def variables_of(layer: Any) -> list[Any]:
    """Those of the layer itself, not those of its children."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def seed_generators_of(layer: Any) -> list[Any]:
    generators: list[Any] = layer._seed_generators
    return generators


def lists_in(layer: Any) -> Iterator[list[Any]]:
    """Where it keeps all of these: as long as the lists hold the same, so does the layer."""
    yield from (layer._trainable_variables, layer._non_trainable_variables)
    yield from (layer._seed_generators, layer._layers)


def attributes_of(layer: Any, *, without: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """What a layer or model holds under the names of its attributes; `without`: CHILDREN or BOOKKEEPING."""
    for name, value in vars(layer).items():
        if name not in without and not name.startswith(_OF_TRACKING):
            yield name, value


def has_graph_of_layers(model: Any) -> bool:
    """Of a keras.Model: whether it is a functional one, and not a Sequential that has one inside."""
    return getattr(model, "_functional", None) is None and hasattr(model, "_operations")


def origin_of(tensor: Any) -> Any:
    """The layer or operation that a KerasTensor comes from."""
    return tensor._keras_history.operation


def shapes_of_first_call(model: Any) -> Mapping[str, Any] | None:
    """By the arguments of build(). None or empty: it was never called."""
    shapes: Mapping[str, Any] | None = getattr(model, "_build_shapes_dict", None)
    return shapes


def table_of(embedding: Any) -> Any:
    """The variable of a keras.layers.Embedding, which hands out another one under LoRA and quantization."""
    return embedding._embeddings


def low_rank_of(embedding: Any) -> tuple[Any, Any, float] | None:
    """Of an Embedding with LoRA: the table of low rank, the matrix that it is multiplied with, and the factor."""
    if not embedding.lora_enabled:
        return None
    factor = embedding.lora_alpha / embedding.lora_rank
    return embedding.lora_embeddings_a, embedding.lora_embeddings_b, factor


def lookup_layer_of(layer: Any) -> Any:
    """The StringLookup in a TextVectorization; any other layer is its own."""
    return getattr(layer, "_lookup_layer", layer)


# Training and the functions that it calls.


def training_function(model: Any) -> Any:
    """What `fit` calls for every step; None before the first fit."""
    return model.train_function


def set_training_function(model: Any, function: Callable[[Any], Any]) -> None:
    model.train_function = function


def remake_training_function(model: Any) -> None:
    """Have it traced again, from the `train_step` that the model has now."""
    model.make_train_function(force=True)


def remake_other_functions(model: Any) -> None:
    """Those of evaluate and predict, where there are some. Not None in their place: a fit may be using them."""
    if model.test_function is not None:
        model.make_test_function(force=True)
    if model.predict_function is not None:
        model.make_predict_function(force=True)


def model_of_fit(frame: FrameType) -> Any:
    """Of a frame that runs Model.fit."""
    return frame.f_locals["self"]


def element_spec_of_fit(frame: FrameType) -> Any:
    """What is trained on: of a frame that runs Model.fit, once it has made its data."""
    return frame.f_locals["epoch_iterator"]._distributed_dataset.element_spec


# Optimizers.


class Slot(StrEnum):
    """Where the optimizers of Keras keep a variable for each one that they train."""

    ACCUMULATOR = "_accumulators"
    LINEAR = "_linears"
    MOMENTUM = "_momentums"
    MOMENTUM_OF_SGD = "momentums"
    VELOCITY = "_velocities"
    LARGEST_VELOCITY = "_velocity_hats"


def slot_of(optimizer: Any, slot: Slot, variable: Any) -> Any:
    return getattr(optimizer, slot)[optimizer._get_variable_index(variable)]


def trained_by(optimizer: Any) -> list[Any]:
    """The variables for which it was built."""
    return list(optimizer._trainable_variables)


def list_in_optimizer(optimizer: Any) -> list[Any]:
    """Where it keeps all its variables."""
    variables: list[Any] = optimizer._variables
    return variables


def lists_along(optimizer: Any, trained: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Slots: lists that run along the trained variables, under the names of attributes, in the order of those."""
    for attribute, values in sorted(vars(optimizer).items()):
        # `_variables` is the list of all of them, which may happen to be as long.
        if attribute != "_variables" and isinstance(values, list) and len(values) == len(trained):
            yield attribute.lstrip("_"), values


def wrapped_in(optimizer: Any) -> Any:
    """The optimizer that one for loss scaling is around; None: it is around none."""
    return getattr(optimizer, "inner_optimizer", None)


def optimizers_in(optimizer: Any) -> Sequence[Any]:
    """The optimizers of a MultiOptimizer."""
    parts: Sequence[Any] = getattr(optimizer, "optimizers", ())
    return parts


def step_counter_of(optimizer: Any) -> Any:
    """The variable that counts batches. `iterations` is divided by the batches whose gradients are accumulated."""
    return getattr(optimizer, "_iterations", None)


def strategy_of(optimizer: Any) -> Any:
    """The tf.distribute.Strategy in whose scope it was made; None when it does not say."""
    return getattr(optimizer, "_distribution_strategy", None)


def key_in(optimizer: Any, variable: Any) -> Any:
    """What an optimizer tells variables apart by: a tf.Variable and the one of Keras around it have the same."""
    return optimizer._var_key(variable)


def is_decayed(optimizer: Any, variable: Any) -> bool:
    return bool(optimizer._use_weight_decay(variable))


class ClipsThroughMethod:
    """Mixed in before an optimizer: `clip` decides what the clipping of Keras, which it gets, is called with."""

    def clip(self, stock: Callable[[Any], Any], gradients: Any) -> Any:
        return stock(gradients)

    def _clip_gradients(self, grads: Any) -> Any:
        stock: Callable[[Any], Any] = super()._clip_gradients  # type: ignore[misc]
        return self.clip(stock, grads)


class LeavesDecayToStep:
    """Mixed in before an optimizer: weights do not decay all at once before a step, and `update_step` sees to it."""

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Nothing."""
