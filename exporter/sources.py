"""What can be exported: a checkpoint directory, a Keras model, a tf.Module. All become one Source."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from exporter.fingerprint import Fingerprints, fingerprint, value_slices
from exporter.signatures.variables import empty_variable
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Manifest
from hotdelta.chain.format.position import IDENTITY_LENGTH, Position, encode_identity
from hotdelta.chain.format.schema import Schema
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.errors import ConfigurationError, ManifestError
from hotdelta.logs import event
from hotdelta.tensorflow_internals import allow_reserving
from hotdelta.train.model.id_rules import module_id_rules
from hotdelta.train.model.module_keys import module_keys, module_resources, refuse_keras_2
from hotdelta.train.serving.files import load_schema, load_serving_graph
from hotdelta.train.serving.module import ServingModule, trace_module

logger = logging.getLogger(__name__)

NO_IDENTITY = (0,) * IDENTITY_LENGTH


@dataclass(frozen=True, slots=True)
class Source:
    """A serving module with its schema, and the state of the chain that its values come from (None: in memory)."""

    description: str
    module: ServingModule
    schema: Schema
    state: ChainState | None = None

    @property
    def exported(self) -> Manifest | None:
        return self.state.newest if self.state else None

    @property
    def identity(self) -> tuple[int, ...]:
        exported = self.exported
        return tuple(encode_identity(exported.node, exported.parent)) if exported else NO_IDENTITY

    @property
    def step(self) -> int:
        return self.exported.step if self.exported else 0

    def fingerprint_live(self) -> Fingerprints:
        """What a model in memory holds."""
        pairs = zip(self.schema.variables, self.module.variables, strict=True)
        return {spec.key: fingerprint(spec, value_slices(variable, spec)) for spec, variable in pairs}

    def empty_variables(self) -> None:
        """Let the variables hold nothing: they are saved without values, which are written from the chain."""
        for variable in self.module.variables:
            empty_variable(variable)
        for counter in self.module.unknown_keys:
            counter.assign(0)


def source_of(
    subject: Any,
    *,
    position: Position | str | None = None,
    signatures: Mapping[str, Any] | Collection[str] | None = None,
    tables: Collection[str] | None = None,
) -> Source:
    """Raises ConfigurationError when `subject` is none of the three, or an option does not go with it."""
    if isinstance(subject, str | os.PathLike):
        if tables is not None:
            raise ConfigurationError(
                "the tables of a checkpoint directory are those that it was trained with",
                hint="leave tables out",
            )
        return _of_directory(Path(subject), to_position(position), _names(signatures))
    if position is not None:
        raise ConfigurationError("a model in memory has no positions", hint="leave `position` out")
    if signatures is not None and not isinstance(signatures, Mapping):
        raise ConfigurationError(
            "signatures of a model are a mapping from name to tf.function or input specs"
        )
    if _is_keras_model(subject):
        return _of_keras_model(subject, signatures, tables or ())
    if isinstance(subject, tf.Module):
        return _of_module(subject, signatures, tables or ())
    raise ConfigurationError(
        f"{type(subject).__name__} cannot be exported",
        hint="give a checkpoint directory, a Keras model or a tf.Module",
    )


def to_position(position: Position | str | None) -> Position | None:
    """Raises ConfigurationError."""
    if position is None or isinstance(position, Position):
        return position
    if not isinstance(position, str):
        # As a number 3.10 would be 3.1.
        raise ConfigurationError(f"position is {position!r}", hint='write it as a string, "run.seq"')
    try:
        return Position.parse(position)
    except ManifestError as error:
        raise ConfigurationError(error.message, hint=error.hint) from error


def _names(signatures: Any) -> Collection[str] | None:
    if isinstance(signatures, str | Mapping):
        raise ConfigurationError(
            "signatures of a checkpoint directory are a list of the names to keep",
            hint="leave it out for all",
        )
    return signatures  # type: ignore[no-any-return]


def _of_directory(run_dir: Path, position: Position | None, kept: Collection[str] | None) -> Source:
    state = find_exported(run_dir, position)
    directory = run_dir / names.DELTA_DIRECTORY
    schema = load_schema(directory, state.newest.schema)
    # Here, and in the two ways in which the export is proven.
    allow_reserving(3 * schema.reserved_bytes)
    module = load_serving_graph(directory, schema)
    source = Source(f"{run_dir} at {state.newest.position}", module, schema, state)
    return _keep_signatures(source, kept) if kept is not None else source


def find_exported(run_dir: Path, position: Position | None = None) -> ChainState:
    """The newest valid position that can be exported, or the given one.

    Raises ConfigurationError when there is nothing to export, ChainError when what was asked for is damaged.
    """
    # A full of an earlier schema need not have what the newest wants: after a change of schema the next full counts.
    state = find_state(run_dir, position=position, roles=names.SERVING_ROLES, has_one_schema=True)
    if state is None:
        raise _nothing_to_export(run_dir)
    for problem in state.problems:
        event(logger, logging.WARNING, "stepping back before a damaged link", reason=problem)
    return state


def _nothing_to_export(run_dir: Path) -> ConfigurationError:
    if not run_dir.is_dir():
        return ConfigurationError(
            f"{run_dir} is no directory", hint="give the directory that the trainer writes to"
        )
    reason = "no checkpoint yet"
    if any(run_dir.glob("*.index")):
        reason = "checkpoints, but none that a trainer with hotdelta has committed"
    return ConfigurationError(
        f"{run_dir} holds {reason}",
        hint="start the trainer with this checkpoint directory: it writes a full at its first step. The command "
        "exporter waits for it with --wait",
    )


def _keep_signatures(source: Source, kept: Collection[str]) -> Source:
    unknown = sorted(set(kept) - set(source.module.signatures))
    if unknown:
        raise ConfigurationError(
            f"there is no signature {unknown[0]!r}",
            hint=f"signatures: {', '.join(sorted(source.module.signatures))}",
        )
    kept_functions = {
        name: function for name, function in source.module.signatures.items() if name in set(kept)
    }
    return replace(source, module=replace(source.module, signatures=kept_functions))


def _is_keras_model(subject: Any) -> bool:
    import keras

    return isinstance(subject, keras.Model)


def _of_keras_model(model: Any, signatures: Mapping[str, Any] | None, more_tables: Collection[str]) -> Source:
    from hotdelta.keras.model import structure
    from hotdelta.keras.serving import graph as serving_graph

    keys = {id(item.variable): item.key for item in structure.model_variables(model)}
    _refuse_unknown(more_tables, keys)
    tables = serving_graph.table_keys(model, keys) | set(more_tables)
    module, schema = serving_graph.trace_keras_model(model, keys=keys, tables=tables, signatures=signatures)
    return Source(f"model {model.name!r}", module, schema)


def _of_module(module: tf.Module, signatures: Mapping[str, Any] | None, tables: Collection[str]) -> Source:
    refuse_keras_2(module)
    if not signatures:
        raise ConfigurationError(
            f"a {type(module).__name__} is exported with the signatures that you name",
            hint="signatures={'serving_default': module.predict}, a tf.function with an input_signature",
        )
    keys = module_keys(module)
    _refuse_unknown(tables, keys)
    serving, schema = trace_module(
        signatures,
        keys=keys,
        tables=tables,
        resources=module_resources(module),
        id_rules=module_id_rules(module),
    )
    return Source(f"module {type(module).__name__}", serving, schema)


def _refuse_unknown(tables: Collection[str], keys: Mapping[int, str]) -> None:
    for table in tables:
        if table not in keys.values():
            raise ConfigurationError(
                f"table {table!r} is no variable of the model",
                hint=f"variables: {', '.join(sorted(keys.values()))}",
            )
