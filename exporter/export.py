"""Writes one SavedModel: served variables, the user's signatures, and the subgraphs that restore fulls and deltas."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from exporter.fingerprint import Fingerprints
from exporter.graph.input_names import name_inputs
from exporter.graph.variable_uses import make_servable, table_lookups
from exporter.proof import Expected, expect, verify_export
from exporter.signatures.incremental import IncrementalSignatures, Staging
from exporter.signatures.variables import ExportedVariables, FullSignatures
from exporter.sources import Source, source_of, to_position
from exporter.stores import local_subject, refuse_nested_places
from exporter.value_files import write_values
from exporter.version_directory import make_directory, new_version, publish, temporary_for, unfinished
from hotdelta.chain.format.position import Position
from hotdelta.chain.format.schema import Schema
from hotdelta.errors import CommitError, ConfigurationError, DamagedError
from hotdelta.export_metadata import ExportMetadata, write_metadata
from hotdelta.given_directory import to_directory
from hotdelta.logs import event, quiet_tensorflow
from hotdelta.remote.publish.spool import check_run_directory
from hotdelta.tensorflow_internals import renew_fingerprint
from hotdelta.train.serving.module import ServingModule
from hotdelta.train.serving.trace import Signature

logger = logging.getLogger(__name__)

_ATTEMPTS = 3

Proof = Callable[[Path, Schema, Expected], None]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to put into an export, apart from the model itself."""

    save_incr_model: bool = False
    version: int | None = None
    model_name: str | None = None
    allow_whole_table_reads: Collection[str] = ()


def export_saved_model(
    model_or_checkpoint_dir: Any,
    export_dir: str | Path,
    *,
    save_incr_model: bool = False,
    position: Position | str | None = None,
    version: int | None = None,
    signatures: Mapping[str, Any] | Collection[str] | None = None,
    tables: Collection[str] | None = None,
    model_name: str | None = None,
    allow_whole_table_reads: Collection[str] = (),
) -> Path:
    """Export a Keras model, a tf.Module or the newest state in a checkpoint directory to `export_dir/<version>/`.

    In place of the checkpoint directory the address of a store may be given, where its trainer was given it.

    The export can load fulls; with `save_incr_model` deltas too. `position` chooses another state of a checkpoint
    directory. `signatures`: of a model, as hotdelta.keras.serving.graph.trace_keras_model takes them (a tf.Module
    needs them: tf.functions with an input_signature); of a checkpoint directory, the names of those to keep. `tables`
    are the keys of a tf.Module's tables. `allow_whole_table_reads` names tables that a prediction may read whole.

    Returns the path of the version. Raises ConfigurationError when this cannot be done as asked, ChainError when the
    checkpoint directory is damaged, ModelMismatchError when it holds no serving graph, CommitError or OSError when the
    export cannot be written, StoreError when what was published cannot be fetched.
    """
    options = ExportOptions(
        save_incr_model=save_incr_model,
        version=version,
        model_name=model_name,
        allow_whole_table_reads=tuple(allow_whole_table_reads),
    )
    target, wanted = to_directory(export_dir, "export_dir"), to_position(position)
    if isinstance(model_or_checkpoint_dir, str | os.PathLike):
        check_run_directory(model_or_checkpoint_dir)
        refuse_nested_places(target, model_or_checkpoint_dir)
    with local_subject(model_or_checkpoint_dir, wanted) as subject:
        find = partial(source_of, subject, position=wanted, signatures=signatures, tables=tables)
        return _export(find, target, options, attempts=_ATTEMPTS)


def _export(find: Callable[[], Source], export_dir: Path, options: ExportOptions, *, attempts: int) -> Path:
    """The trainer's retention may delete what was found a moment ago; then look again."""
    try:
        return export_source(find(), export_dir, options)
    except DamagedError as error:
        if not error.retryable or attempts == 1:
            raise
        event(logger, logging.WARNING, "looking again", reason=error)
    return _export(find, export_dir, options, attempts=attempts - 1)


def export_source(
    source: Source, export_dir: Path, options: ExportOptions, *, prove: Proof = verify_export
) -> Path:
    """`prove`: what is asked of the export before it is published; it raises when that does not hold."""
    source = _exportable(source, options)
    with new_version(export_dir, options.version) as (temporary, target):
        event(logger, logging.INFO, "exporting", source=source.description, version=target.name)
        with quiet_tensorflow(), _told_as_commit_error(target):
            expected = _write(source, temporary, options, default_name=export_dir.resolve().name)
            prove(temporary, source.schema, expected)
    event(logger, logging.INFO, "exported", path=target)
    return target


def export_source_to(source: Source, target: Path, options: ExportOptions) -> Path:
    """To exactly this directory, for callers that choose its name themselves. It must not exist, or be empty."""
    source = _exportable(source, options)
    make_directory(target.parent)
    with unfinished(temporary_for(target)) as temporary:
        with quiet_tensorflow(), _told_as_commit_error(target):
            expected = _write(source, temporary, options, default_name=target.resolve().parent.name)
            verify_export(temporary, source.schema, expected)
        publish(temporary, target)
    event(logger, logging.INFO, "exported", path=target)
    return target


def _exportable(source: Source, options: ExportOptions) -> Source:
    if not source.module.signatures:
        raise ConfigurationError(
            f"{source.description} has no signatures, so nobody could ask it", hint="name at least one"
        )
    if source.state is None and source.schema.key_tables:
        table = source.schema.key_tables[0].rows
        raise ConfigurationError(
            f"table {table!r} has no fixed vocabulary, and {source.description} is in memory",
            hint="train it with hotdelta.keras.DeltaCheckpoint or hotdelta.train.DeltaWriter, and export its directory",
        )
    if options.save_incr_model and not source.schema.tables:
        raise _nothing_incremental(source)
    allowed = options.allow_whole_table_reads
    return replace(source, module=make_servable(source.module, source.schema, allow_whole_reads=allowed))


def _write(source: Source, directory: Path, options: ExportOptions, *, default_name: str) -> Expected:
    """Write the SavedModel. Returns what it must hold."""
    root, signatures = build_graph(source.module, source.schema, is_incremental=options.save_incr_model)
    root.live_identity.assign(source.identity)
    root.live_step.assign(source.step)
    event(logger, logging.INFO, "writing", directory=directory.name)
    functions = {name: signature.function for name, signature in signatures.items()}
    saved = _save(source, root, directory, functions)
    name_inputs(directory, signatures)
    # Once more: it covers the graph and the index of the values.
    renew_fingerprint(directory)
    metadata = ExportMetadata(
        model_name=options.model_name or default_name,
        schema=source.schema,
        signatures={name: signature.spec for name, signature in source.module.signatures.items()},
        is_incremental=options.save_incr_model,
        node=source.exported.node if source.exported else None,
        step=source.step,
        lookups=table_lookups(source.module, source.schema),
    )
    write_metadata(directory, metadata)
    return expect(source.schema, saved, source.state, is_incremental=options.save_incr_model)


def _save(
    source: Source, root: ExportedVariables, directory: Path, functions: Mapping[str, Any]
) -> Fingerprints:
    """What was saved. Values of a chain are never in memory; a model that is there is saved from its own."""
    if source.state is None:
        saved = source.fingerprint_live()
        tf.saved_model.save(root, str(directory), signatures=functions)
        return saved
    source.empty_variables()
    tf.saved_model.save(root, str(directory), signatures=functions)
    return write_values(directory, source.schema, source.state)


@contextmanager
def _told_as_commit_error(target: Path) -> Iterator[None]:
    try:
        yield
    except (tf.errors.OpError, ValueError) as error:
        # A fingerprint that cannot be written is a ValueError to TensorFlow.
        if isinstance(error, ValueError) and "fingerprint" not in str(error):
            raise
        raise CommitError(
            f"writing {target} failed: {error}",
            path=target,
            hint="nothing was published; look after the disk, and export again",
        ) from error


def build_graph(
    module: ServingModule, schema: Schema, *, is_incremental: bool
) -> tuple[ExportedVariables, Mapping[str, Signature]]:
    """The root to save and all signatures of the export."""
    live = ExportedVariables(module, schema)
    if not is_incremental:
        return live, {**module.signatures, **FullSignatures(live, schema).traced()}
    staging = Staging(schema)
    live.hotdelta_staging = staging
    return live, {
        **module.signatures,
        **FullSignatures(live, schema, empty_staging=staging.empty).traced(),
        **IncrementalSignatures(live, staging, schema).traced(),
    }


def _nothing_incremental(source: Source) -> ConfigurationError:
    return ConfigurationError(
        f"no signature of {source.description} looks anything up in an embedding table, so there is nothing to "
        "update row by row",
        hint="export without `save_incr_model`, or train with keras.layers.Embedding or hotdelta.keras.Embedding "
        "tables (of a tf.Module: with tables=[...] that its signatures use)",
    )
