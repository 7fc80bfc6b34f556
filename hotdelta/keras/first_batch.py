"""Builds a model that its first batch would build: its training step is traced, and nothing of it runs.

So its variables are there, with the values that they would have had, before anything is loaded or trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import keras
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras import fit_hooks
from hotdelta.keras.serving.inputs import remember_call
from hotdelta.keras_internals import ONE_STEP, all_layers
from hotdelta.tensorflow_internals import trace_once
from hotdelta.train.bookmarks import Bookmarked

_NOTE = (
    "hotdelta traced this to make the variables of the model before its first step. If it can only run eagerly, call "
    "the model on a batch before fit or resume()."
)


def is_built(model: keras.Model) -> bool:
    """False: to call it makes variables, its own or those of a layer.

    What a built layer of Keras holds is ready, built or not: TextVectorization never calls its StringLookup.
    """
    layers = all_layers(model)
    held = {id(inner) for layer in layers if _is_ready(layer) for inner in all_layers(layer)}
    return all(layer.built or id(layer) in held for layer in layers)


def _is_ready(layer: Any) -> bool:
    is_stock = type(layer).__module__.partition(".")[0] == "keras"
    return is_stock and layer.built and not isinstance(layer, keras.Model)


def build_before_fit(model: keras.Model) -> None:
    """When training begins. Raises what the step itself would raise, and ConfigurationError outside of fit."""
    if is_built(model):
        return
    spec = fit_hooks.spec_of_batches(model)
    if spec is not None:
        _build(model, spec)
    elif not model.built:
        raise _not_built("call resume(model, batch) before you train")


def build_before_resume(model: keras.Model, batch: Any) -> None:
    """`batch`: as DeltaCheckpoint.resume takes it."""
    if batch is None and not model.built:
        raise _not_built(
            "give resume() a batch of what you train on: resume(model, (x, y)); fit does it by itself"
        )
    if batch is not None and not is_built(model):
        _build(model, _spec_of(batch))


def _not_built(hint: str) -> ConfigurationError:
    return ConfigurationError("the model has no variables yet: its first batch makes them", hint=hint)


def _build(model: keras.Model, spec: Any) -> None:
    spec = spec.batch if isinstance(spec, Bookmarked) else spec
    with model.distribute_strategy.scope():
        # Under a strategy a step is for replicas: Keras builds by a call, in fit before us.
        is_replicated = tf.distribute.has_strategy()
        if is_replicated and model.built:
            return
        step = _calling(model) if is_replicated else model.train_step
        try:
            with _remembering_call(model):
                # Named as Keras does it: this one is thrown away in the same way.
                trace_once(ONE_STEP, step, spec)
        except Exception as error:
            # A step that runs eagerly may do what cannot be traced, with what it got from the model.
            if not (model.run_eagerly and model.built):
                error.add_note(_NOTE)
                raise


def _calling(model: keras.Model) -> Callable[[Any], Any]:
    def call(data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return model(x, training=False)

    return call


@contextmanager
def _remembering_call(model: keras.Model) -> Iterator[None]:
    """A model that is called for the first time is going to be served with such arguments."""
    if model.built:
        yield
        return
    original, found = model.call, []

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature(original).bind(*args, **kwargs).arguments
        found.append(
            {name: value for name, value in given.items() if name != "training" and _is_given(value)}
        )
        return original(*args, **kwargs)

    object.__setattr__(model, "call", call)
    try:
        yield
    finally:
        object.__delattr__(model, "call")
        if found:
            remember_call(model, found[0])


def _is_given(value: Any) -> bool:
    leaves = keras.tree.flatten(value)
    return bool(leaves) and all(tf.is_tensor(leaf) for leaf in leaves)


def _spec_of(batch: Any) -> Any:
    """Of a dataset; or of arrays, tensors and specs in any structure, whose first dimension is that of the batch."""
    if isinstance(batch, tf.data.Dataset):
        return batch.element_spec
    return keras.tree.map_structure(_spec_of_leaf, batch)


def _spec_of_leaf(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, tf.TypeSpec):
        return leaf
    spec = tf.type_spec_from_value(leaf)
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return spec
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
