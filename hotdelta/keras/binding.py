"""What of a compiled Keras model is saved, and which of its tables training records. No files, no threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.schema import Schema
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ConfigurationError
from hotdelta.keras.first_batch import is_built
from hotdelta.keras.model.held_state import HeldState
from hotdelta.keras.model.id_rules import model_id_rules
from hotdelta.keras.model.other_optimizers import (
    OtherOptimizers,
    build_saved_optimizers,
    find_other_optimizers,
)
from hotdelta.keras.model.structure import model_variables
from hotdelta.keras.optimizers.row_wise import RowWise
from hotdelta.keras.serving.graph import table_keys, trace_keras_model, trace_signatures
from hotdelta.keras.training_calls import remake_training_function
from hotdelta.keras_internals import TRAINING_FUNCTIONS, step_counter_of, trained_by
from hotdelta.tensorflow_internals import is_traced_function
from hotdelta.train.model.assembly import Recorders, assemble, choose_recorders, find_table_keys
from hotdelta.train.model.id_rules import IdRule
from hotdelta.train.model.optimizer_slots import innermost, optimizer_variables, raw
from hotdelta.train.model.variables import ModelVariables, Table
from hotdelta.train.serving.files import save_serving_graph
from hotdelta.train.tables.replicas import refuse_other_scope, refuse_strategy


@dataclass(frozen=True, slots=True)
class BindingOptions:
    """What the user says about the model. `tables`: more variables of which deltas carry rows, beside embeddings."""

    tables: tuple[Any, ...] = ()
    tracking: Mapping[str, str] | None = None
    signatures: Any = None
    has_serving_graph: bool = True


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """A model, its variables under keys, and the recorders of the tables that its optimizers can record.

    `left_out`: those of its optimizers of which the checkpoint that is to be loaded has nothing. `held`: what it and
    its optimizers held when it was bound. `row_wise`: every optimizer that may train the tables and records what it
    writes, built or not.
    """

    model: keras.Model
    optimizer: Any
    others: OtherOptimizers
    left_out: frozenset[str]
    variables: ModelVariables
    recorders: Recorders
    publish: Callable[[Path], None]
    held: HeldState
    row_wise: tuple[RowWise, ...]

    @property
    def trace_count(self) -> int:
        """Grows with every trace of a step. Every step asks."""
        count = 0
        for optimizer in self.row_wise:
            count += optimizer.trace_count
        return count

    @property
    def traced_graphs(self) -> set[tf.Graph]:
        return {graph for optimizer in self.row_wise for graph in optimizer.traced_graphs}

    @property
    def known_graphs(self) -> set[tf.Graph]:
        return {graph for optimizer in self.row_wise for graph in optimizer.known_graphs}

    @property
    def functions_of_others(self) -> set[tf.Graph]:
        """Traced functions that are not the training function of Keras: nobody here can have them traced again."""
        functions = {graph for graph in self.known_graphs if is_traced_function(graph)}
        return {graph for graph in functions if graph.name not in TRAINING_FUNCTIONS}

    def is_of(self, model: keras.Model) -> bool:
        is_compiled_so = self.model is model and self.optimizer is model.optimizer
        return is_compiled_so and self.others.is_current and self.held.is_same

    def iterations(self) -> int:
        """The batches that the optimizer has counted, which may be more than the steps that were made."""
        counter = step_counter_of(innermost(self.optimizer))
        return int(keras.ops.convert_to_numpy(self.optimizer.iterations if counter is None else counter))

    def variables_by_key(self) -> dict[str, tf.Variable]:
        return {item.key: item.variable for item in self.variables.everything()}

    def record(self) -> None:
        """Make the next trace of the training function record, and throw away the one that does not."""
        for optimizer in self.row_wise:
            optimizer.stop_recording()
            for table in self.variables.tables:
                touched = self.recorders.touched.get(table.key)
                if touched is not None:
                    optimizer.record_rows(table.values.variable, touched)
        remake_training_function(self.model)


def bind(
    model: keras.Model, options: BindingOptions, *, saved: Collection[str] | None = None
) -> ModelBinding:
    """Raises ConfigurationError for what cannot be saved as it stands.

    `saved`: the keys of the checkpoint that is to be loaded. What it has of optimizers is built; those of which it
    has nothing are left out.
    """
    _check_compiled(model)
    if options.has_serving_graph and not is_built(model):
        trace_signatures(
            model, options.signatures
        )  # Only inference may call, and so build, some of its layers.
    keyed = model_variables(model)
    build_saved_optimizers(model, saved or (), keyed)
    others = find_other_optimizers(model)
    left_out = frozenset() if saved is None else others.missing_in(saved)
    key_of = {id(item.variable): item.key for item in keyed}
    tables = find_table_keys(
        (table if isinstance(table, str) else raw(table) for table in options.tables),
        key_of,
        given=table_keys(model, key_of),
    )
    id_rules = model_id_rules(model)
    schema, publish = _trace(model, key_of, tables, id_rules, options)
    slots, rest = optimizer_variables(model.optimizer, key_of)
    more_slots, more_rest = others.variables(key_of, left_out=left_out)
    variables = assemble(
        keyed,
        table_keys=tables,
        slots=[*slots, *more_slots],
        training_only=[*rest, *more_rest],
        schema=schema,
        parameters=[key_of[id(raw(variable))] for variable in model.trainable_variables],
        id_rules=id_rules,
    )
    recorders = choose_recorders(
        variables.tables,
        wanted=options.tracking or {},
        refusal=_why_not_recorded(model.optimizer, others, variables.tables),
    )
    return ModelBinding(
        model,
        model.optimizer,
        others,
        left_out,
        variables,
        recorders,
        publish,
        HeldState(model, model.optimizer, others),
        _row_wise(model.optimizer, others),
    )


def _check_compiled(model: keras.Model) -> None:
    if getattr(model, "optimizer", None) is None:
        raise ConfigurationError("the model is not compiled", hint="call model.compile(optimizer=...) first")
    if not model.variables:
        raise ConfigurationError("the model has no variables", hint="there is nothing to save")
    refuse_strategy(model.distribute_strategy)
    refuse_other_scope(model.distribute_strategy, innermost(model.optimizer))
    if model.jit_compile and isinstance(innermost(model.optimizer), RowWise):
        raise ConfigurationError(
            "row-wise optimizers cannot be compiled by XLA", hint="compile with jit_compile=False"
        )
    if not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def _trace(
    model: keras.Model,
    key_of: Mapping[int, str],
    tables: set[str],
    id_rules: Mapping[str, IdRule],
    options: BindingOptions,
) -> tuple[Schema | None, Callable[[Path], None]]:
    """The schema of what is served, and how to leave its graph in the run directory."""
    if not options.has_serving_graph:
        return None, _publish_nothing
    module, schema = trace_keras_model(
        model, keys=key_of, tables=tables, signatures=options.signatures, id_rules=id_rules
    )

    def publish(run_dir: Path) -> None:
        save_serving_graph(directory_of(run_dir, Kind.DELTA), module, schema)

    return schema, publish


def _publish_nothing(run_dir: Path) -> None:
    """The user wants no serving graph: the exporter will be given the model itself."""


def _why_not_recorded(optimizer: Any, others: OtherOptimizers, tables: Sequence[Table]) -> str | None:
    """One of the others that is not built yet may be going to train a table."""
    rows = {id(table.values.variable) for table in tables}
    writers = [optimizer, *(other for other in others.by_label.values() if _may_train(other, rows))]
    for inner in map(innermost, writers):
        if not isinstance(inner, RowWise):
            return f"{type(inner).__name__} does not record the rows it writes"
    return None


def _row_wise(optimizer: Any, others: OtherOptimizers) -> tuple[RowWise, ...]:
    found = map(innermost, [optimizer, *others.by_label.values()])
    return tuple(inner for inner in found if isinstance(inner, RowWise))


def _may_train(optimizer: Any, variables: Collection[int]) -> bool:
    trained = trained_by(innermost(optimizer))
    return not optimizer.built or any(id(raw(variable)) in variables for variable in trained)
