"""Exports the inference part of a graph through `exporter`, so that it is served as any other model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from exporter.export import ExportOptions, export_source, export_source_to
from exporter.sources import Source, find_exported
from hotdelta import signatures as contract
from hotdelta.chain.format import names
from hotdelta.chain.format.position import Position
from hotdelta.chain.format.schema import Schema, parts_rule
from hotdelta.compat.v1.embedding.shards import other_parts
from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable, find_saved_variables, split_strings
from hotdelta.compat.v1.graph.served_variables import served_variables
from hotdelta.compat.v1.graph.session_values import rows_in_use
from hotdelta.compat.v1.recording.layout import GraphLayout, find_layout
from hotdelta.compat.v1.serving.lookup_tables import make_lookup_tables, read_initializers
from hotdelta.compat.v1.serving.rewrite import ServingGraph, rewrite_for_serving
from hotdelta.errors import ConfigurationError, ModelMismatchError
from hotdelta.tensorflow_internals import (
    ResourceVariable,
    UninitializedVariable,
    eager_context,
    value_in_graph,
)
from hotdelta.train.serving.files import load_schema
from hotdelta.train.serving.module import ServingModule
from hotdelta.train.serving.trace import Signature, trace_signature
from hotdelta.train.tables.growth import open_shape

v1 = tf.compat.v1


@contextmanager
def eager_mode() -> Iterator[None]:
    """Not for use beside other threads that build graphs: how shapes behave is a switch of the whole process."""
    v1.enable_v2_tensorshape()
    try:
        with eager_context(), tf.device(None):
            yield
    finally:
        v1.disable_v2_tensorshape()


@dataclass(frozen=True, slots=True)
class GraphSignature:
    """One signature: tensors of the graph by the names that callers use. A variable as output is its value."""

    inputs: Mapping[str, tf.Tensor]
    outputs: Mapping[str, tf.Tensor]

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "outputs", {name: _tensor(name, each) for name, each in self.outputs.items()}
        )


def _tensor(name: str, output: Any) -> tf.Tensor:
    if isinstance(output, tf.Operation):
        raise ConfigurationError(
            f"output {name!r} is the operation {output.name!r}, which computes no tensor",
            hint="give tensors that a prediction computes, and no train_op",
        )
    return value_in_graph(output)


def export_chain(
    signatures: Mapping[str, GraphSignature],
    run_dir: Path,
    export_dir: Path,
    options: ExportOptions,
    *,
    position: Position | None = None,
) -> Path:
    """Export the default graph with the newest state of a chain, or that at `position`, to `export_dir/<version>`.

    Raises ModelMismatchError when the graph's variables are not those of the chain, ConfigurationError when it cannot
    be exported as asked, ChainError when the chain is damaged.
    """
    state = find_exported(run_dir, position)
    schema = load_schema(run_dir / names.DELTA_DIRECTORY, state.newest.schema)
    layout = _layout()
    _require_same_variables(layout, schema)
    graph = v1.get_default_graph()
    prepared = _prepare(graph, layout, signatures, schema)
    with eager_mode():
        source = Source(f"{run_dir} at {state.newest.position}", prepared(), schema, state)
        return export_source(source, export_dir, options)


def export_session(
    session: Any,
    signatures: Mapping[str, GraphSignature],
    target: Path,
    options: ExportOptions,
    *,
    keys: Collection[str] | None = None,
) -> Path:
    """Export a Session's graph with the values that it holds now, to exactly `target`.

    `keys`: the variables that the signatures need, when no others are to be in it.
    """
    with session.graph.as_default():
        layout = _layout()
        schema = layout.variables.schema
        if keys is not None:
            schema = schema.only(keys)
        served = {item.key: item for item in served_variables(layout.saved)}
        values = {spec.key: _read(session, served[spec.key]) for spec in schema.variables}
        prepared = _prepare(session.graph, layout, signatures, schema)
    with eager_mode():
        module = prepared()
        for spec, variable in zip(schema.variables, module.variables, strict=True):
            variable.assign(values[spec.key])
        return export_source_to(Source("the Session's graph", module, schema), target, options)


def _layout() -> GraphLayout:
    return find_layout(find_saved_variables(split_strings(v1.global_variables())[0]))


def _prepare(
    graph: Any, layout: GraphLayout, signatures: Mapping[str, GraphSignature], schema: Schema
) -> Callable[[], ServingModule]:
    """Read from the graph now what the module needs. What is returned makes the module, later and eagerly.

    Its variables have no values yet.
    """
    keys = {variable.key for variable in schema.variables}
    tables = {table.key for table in schema.tables}
    saved = [item for item in served_variables(layout.saved) if item.key in keys]
    rewritten = {
        name: rewrite_for_serving(graph, list(signature.outputs.values()), saved, tables)
        for name, signature in signatures.items()
    }
    lookup_names = {name for part in rewritten.values() for name in part.lookup_tables}
    initializers = read_initializers(graph, sorted(lookup_names))

    def make() -> ServingModule:
        variables = {
            spec.key: UninitializedVariable(
                shape=open_shape(spec.shape[1:]) if spec.key in schema.growing else spec.shape,
                dtype=spec.dtype,
                trainable=False,
                name=spec.key.replace("/", "_"),
            )
            for spec in schema.variables
        }
        counters = {
            table.rows: ResourceVariable(tf.zeros([], tf.int64), trainable=False, name="unknown_keys")
            for table in schema.key_tables
        }
        lookup_tables = make_lookup_tables(initializers)
        root = tf.Module(name="hotdelta_serving")
        root.hotdelta_variables = list(variables.values())
        root.hotdelta_resources = list(lookup_tables.values())
        if counters:
            setattr(root, contract.UNKNOWN_KEYS_ATTRIBUTE, list(counters.values()))
        functions = {
            name: _trace(signature, rewritten[name], variables, counters, lookup_tables)
            for name, signature in signatures.items()
        }
        return ServingModule(root, tuple(variables.values()), functions)

    return make


def _trace(
    signature: GraphSignature,
    graph: ServingGraph,
    variables: Mapping[str, tf.Variable],
    counters: Mapping[str, tf.Variable],
    lookup_tables: Mapping[str, Any],
) -> Signature:
    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype.base_dtype, name=name)
        for name, tensor in signature.inputs.items()
    ]

    def imported(*inputs: tf.Tensor) -> Sequence[tf.Tensor]:
        fed = {tensor.name: value for tensor, value in zip(signature.inputs.values(), inputs, strict=True)}
        capture = v1.get_default_graph().capture
        fed.update({f"{name}:0": capture(variables[key].handle) for name, key in graph.handles.items()})
        fed.update({f"{name}:0": capture(counters[key].handle) for name, key in graph.counters.items()})
        fed.update(
            {f"{name}:0": capture(lookup_tables[name].resource_handle) for name in graph.lookup_tables}
        )
        held = {node.name for node in graph.definition.node}
        fed = {name: value for name, value in fed.items() if name.partition(":")[0] in held}
        returned = [tensor.name for tensor in signature.outputs.values()]
        return tf.graph_util.import_graph_def(graph.definition, fed, returned, name="graph")  # type: ignore[no-any-return]

    # As a function of its own: in what tf.function traces itself, it makes operations wait for one another, and would
    # make those in branches and loops of TensorFlow 1 wait for others outside of them.
    function = v1.wrap_function(imported, specs)

    def call(inputs: Sequence[tf.Tensor]) -> Mapping[str, tf.Tensor]:
        return dict(zip(signature.outputs, function(*inputs), strict=True))

    return trace_signature(call, specs)


def _read(session: Any, item: SavedVariable) -> np.ndarray:
    values = session.run([_value(item, part) for part in item.parts])
    return np.asarray(values[0]) if len(values) == 1 else np.concatenate(values)


def _value(item: SavedVariable, part: Part) -> tf.Tensor:
    rows = rows_in_use(item, part)
    if rows is not None:
        return rows
    return value_in_graph(part.variable) if part.is_resource else part.reference


def _require_same_variables(layout: GraphLayout, schema: Schema) -> None:
    """A graph for inference may lack variables that only the loss needs; what it has must be what was trained."""
    own = layout.variables.schema
    problems = other_parts(*((table.rows for table in each.key_tables) for each in (own, schema)))
    specs = {spec.key: spec for spec in schema.variables}
    parts = {table.values.key: table for table in layout.tables}
    for item in served_variables(layout.saved):
        spec = specs.get(item.key)
        if spec is None or (spec.shape, spec.dtype) != (item.shape, item.dtype.name):
            found = f"{spec.shape} {spec.dtype}" if spec else "nothing"
            problems.append(
                f"{item.key}: {item.shape} {item.dtype.name} in the graph, {found} in the checkpoint"
            )
        elif item.key in parts:
            layout_name = parts_rule(item.key)
            built, trained = own.vocabularies.get(layout_name), schema.vocabularies.get(layout_name)
            if built != trained:
                problems.append(
                    f"{item.key}: in parts {built or 'none'} in the graph, {trained or 'none'} trained"
                )
    if problems:
        raise ModelMismatchError(
            "the graph is not the one that was trained: " + "; ".join(problems),
            problems=tuple(problems),
            hint="build the variables for serving as they are built for training",
        )


def signatures_of(signature_def_map: Mapping[str, Any] | None, graph: Any) -> dict[str, GraphSignature]:
    """The signatures of a SignatureDef map, as tensors of the graph."""
    if not signature_def_map:
        raise ConfigurationError("there is no signature to export", hint="pass signature_def_map")

    def tensors(infos: Any) -> dict[str, tf.Tensor]:
        return {name: v1.saved_model.get_tensor_from_tensor_info(info, graph) for name, info in infos.items()}

    return {
        name: GraphSignature(tensors(definition.inputs), tensors(definition.outputs))
        for name, definition in signature_def_map.items()
    }


def refuse_text(as_text: bool) -> None:
    if as_text:
        raise ConfigurationError("as_text: a SavedModel is not written as text here", hint="leave it out")
