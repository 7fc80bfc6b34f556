"""tf.estimator.export: what a served model is fed, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1

DEFAULT_SIGNATURE = "serving_default"


class ServingInputReceiver:
    """`features` go to the model function; `receiver_tensors` are what callers feed."""

    def __init__(
        self, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> None:
        if receiver_tensors_alternatives:
            raise ConfigurationError(
                "receiver_tensors_alternatives cannot be exported here",
                hint="export a second time with the other receiver_tensors",
            )
        self.features = features
        self.receiver_tensors = _named(receiver_tensors, "input")


@dataclass(frozen=True)
class PredictOutput:
    outputs: Any

    def tensors(self) -> dict[str, tf.Tensor]:
        return _named(self.outputs, "output")


@dataclass(frozen=True)
class ClassificationOutput:
    scores: tf.Tensor | None = None
    classes: tf.Tensor | None = None

    def tensors(self) -> dict[str, tf.Tensor]:
        given = {"scores": self.scores, "classes": self.classes}
        return {name: tensor for name, tensor in given.items() if tensor is not None}


@dataclass(frozen=True)
class RegressionOutput:
    value: tf.Tensor

    def tensors(self) -> dict[str, tf.Tensor]:
        return {"outputs": self.value}


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, tf.Tensor], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function that makes a placeholder for each feature, like the given tensors but for the batch size."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = {
            name: v1.placeholder(
                tensor.dtype, [default_batch_size, *tensor.shape.as_list()[1:]], name=name.replace(":", "_")
            )
            for name, tensor in features.items()
        }
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function that is fed serialized tf.train.Example, under the name `examples`."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        return ServingInputReceiver(v1.parse_example(examples, dict(feature_spec)), {"examples": examples})

    return serving_input_receiver_fn


def signature_outputs(spec: Any) -> dict[str, dict[str, tf.Tensor]]:
    """The outputs of each signature of a spec; a single one is the default, too."""
    given = spec.export_outputs or {DEFAULT_SIGNATURE: PredictOutput(spec.predictions)}
    outputs = {name: output.tensors() for name, output in given.items()}
    if DEFAULT_SIGNATURE not in outputs:
        if len(outputs) != 1:
            raise ConfigurationError(
                "several export_outputs, and none is the default",
                hint=f"name one of them {DEFAULT_SIGNATURE!r}",
            )
        outputs[DEFAULT_SIGNATURE] = next(iter(outputs.values()))
    return outputs


def _named(tensors: Any, default_name: str) -> dict[str, tf.Tensor]:
    return dict(tensors) if isinstance(tensors, Mapping) else {default_name: tensors}
