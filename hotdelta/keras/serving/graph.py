"""Traces a Keras model for serving: named inputs and outputs, row gathers, vocabularies, and the schema of all that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hotdelta.chain.format.schema import Schema
from hotdelta.errors import ConfigurationError
from hotdelta.keras.dynamic_embedding import DynamicEmbedding
from hotdelta.keras.model import structure
from hotdelta.keras.model.id_rules import model_id_rules
from hotdelta.keras.serving.inputs import REMEDY, ModelInputs, given_inputs, inputs_of
from hotdelta.keras.serving.row_gathers import SeenInputs, gathering_rows
from hotdelta.keras_internals import all_layers, low_rank_of, origin_of, table_of
from hotdelta.train.model.id_rules import IdRule
from hotdelta.train.model.optimizer_slots import raw
from hotdelta.train.serving.module import ServingModule, assemble_module
from hotdelta.train.serving.trace import DEFAULT_SIGNATURE, Signature, name_outputs, retrace, trace_signature


def trace_keras_model(
    model: keras.Model,
    *,
    keys: Mapping[int, str] | None = None,
    tables: Iterable[str] | None = None,
    signatures: Mapping[str, Any] | None = None,
    id_rules: Mapping[str, IdRule] | None = None,
) -> tuple[ServingModule, Schema]:
    """The serving module of a model and its schema.

    `keys` maps id(tf.Variable) to the variable's key; `tables` are the keys of the tables (both by default as
    hotdelta.keras.model.structure says). `signatures` maps a name to a tf.function with an input_signature, or to
    the specs of the model's inputs; by default `serving_default` takes what Keras knows of them. `id_rules`: those of
    the model, when they are known already.

    Raises ConfigurationError when that is not enough, and says what to give.
    """
    if keys is None:
        keys = {id(item.variable): item.key for item in structure.model_variables(model)}
    if tables is None:
        tables = table_keys(model, keys)
    return assemble_module(
        trace_signatures(model, signatures),
        keys=keys,
        tables=tables,
        resources=list(_lookup_resources(model)),
        id_rules=model_id_rules(model) if id_rules is None else id_rules,
    )


def trace_signatures(model: keras.Model, signatures: Mapping[str, Any] | None) -> dict[str, Any]:
    """The functions alone. Builds the layers of the model that only they call."""
    wanted = {DEFAULT_SIGNATURE: None} if signatures is None else signatures
    return {name: _trace(model, name, wish) for name, wish in wanted.items()}


def table_keys(model: keras.Model, keys: Mapping[int, str]) -> set[str]:
    """The keys of the tables of all embedding layers, with those of their low-rank updates."""
    found = []
    for layer in structure.table_layers(model):
        found.append(raw(table_of(layer)))
        if (low_rank := low_rank_of(layer)) is not None:
            found.append(raw(low_rank[0]))
    for layer in all_layers(model):
        if isinstance(layer, DynamicEmbedding) and layer.table is not None:
            found += [layer.table.rows, layer.table.index.buckets]
    return {keys[id(variable)] for variable in found if id(variable) in keys}


def _trace(model: keras.Model, name: str, wish: Any) -> Signature:
    if callable(wish):
        with gathering_rows():
            return retrace(name, wish)
    inputs = inputs_of(model) if wish is None else given_inputs(wish)
    try:
        signature, seen = _trace_call(model, inputs)
        if not inputs.has_declared_dtypes and seen.wanted:
            signature, _ = _trace_call(model, inputs.with_dtypes(seen.wanted))
    except ConfigurationError:
        raise
    except (AttributeError, TypeError, ValueError, tf.errors.OpError) as error:
        raise ConfigurationError(
            f"signature {name!r} of model {model.name!r} cannot be traced with inputs {inputs}: {error}",
            hint=REMEDY,
        ) from error
    return signature


def _trace_call(model: keras.Model, inputs: ModelInputs) -> tuple[Signature, SeenInputs]:
    names = output_names(model)

    def call(tensors: Sequence[tf.Tensor]) -> Mapping[str, tf.Tensor]:
        return name_outputs(model(*inputs.pack(tensors), training=False), names)

    with gathering_rows() as seen:
        return trace_signature(call, inputs.specs), seen


def output_names(model: keras.Model) -> list[str]:
    """The names of the layers or operations (`keras.ops.sum`, `a + b`) that the outputs come from.

    Without the numbers that Keras appends to names it makes up.
    """
    sources: list[Any] = []
    if isinstance(model, keras.Sequential):
        sources = model.layers[-1:]
    elif structure.is_functional(model):
        sources = [origin_of(output) for output in model.outputs]
    counts: dict[str, int] = {}
    found: list[str] = []
    for source in sources:
        name = structure.given_name(source) or structure.snake_case(type(source).__name__)
        count = counts[name] = counts.get(name, 0) + 1
        found.append(name if count == 1 else f"{name}_{count - 1}")
    return found


def _lookup_resources(model: keras.Model) -> Iterator[Any]:
    """Lookup tables that layers hold: a SavedModel keeps only what its root tracks."""
    for layer in all_layers(model):
        for attribute in vars(layer).values():
            yield from (value for value in _items(attribute) if hasattr(value, "resource_handle"))


def _items(attribute: Any) -> Iterable[Any]:
    if isinstance(attribute, Mapping):
        return attribute.values()
    return attribute if isinstance(attribute, list | tuple) else [attribute]
