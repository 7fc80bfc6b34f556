"""The serving graph in the run directory: written by the trainer at its start, read by the exporter.

It is a SavedModel whose checkpoint was left out, so that writing it costs nothing however large the tables are, and
reading it needs no training script. Values never pass through here.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import tensorflow as tf

from hotdelta.chain.disk import Disk, publish_directory, sync_file
from hotdelta.chain.format import names
from hotdelta.chain.format.schema import Schema
from hotdelta.errors import DamagedError, ManifestError, ModelMismatchError
from hotdelta.logs import quiet_tensorflow
from hotdelta.tensorflow_internals import save_graph_alone
from hotdelta.train.serving.module import ServingModule
from hotdelta.train.serving.trace import loaded_signature

_TRAIN_AGAIN = "start the trainer again: it writes a new one"


def save_serving_graph(
    directory: Path, module: ServingModule, schema: Schema, *, disk: Disk | None = None
) -> Path:
    """Leave graph and schema in `directory`. O(1) in the size of the tables.

    Appears by one rename: a reader finds the whole graph or none. A graph that is there already gives way: a model
    with the same variables may still compute something else (another activation) than that of an earlier start.
    """
    disk = disk or Disk()
    save_schema(directory, schema)
    target = directory / names.serving_graph_name(schema.digest)
    temporary = _temporary(target)
    old = _temporary(target.with_name(f"old-{target.name}"))
    functions = {name: signature.function for name, signature in module.signatures.items()}
    try:
        with quiet_tensorflow():
            save_graph_alone(module.root, temporary, signatures=functions)
        if target.exists():
            disk.rename(target, old)
        try:
            publish_directory(temporary, target, disk=disk)
        except OSError:
            # Whoever came first wrote the same.
            if not target.is_dir():
                if old.is_dir():
                    disk.rename(old, target)
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return target


def load_serving_graph(directory: Path, schema: Schema) -> ServingModule:
    """The graph of `schema`; its variables have no values yet.

    Raises ModelMismatchError when there is none, DamagedError when it cannot be read.
    """
    path = directory / names.serving_graph_name(schema.digest)
    if not path.is_dir():
        raise ModelMismatchError(
            f"{directory} holds no serving graph of schema {schema.digest[: names.SCHEMA_NAME_DIGITS]}",
            hint="let the trainer leave one (give it the model's signatures), or export the model from Python; a run "
            "of hotdelta.compat.v1 is exported by its own estimator.export_saved_model(..., save_incr_model=True) or "
            "tf.saved_model.simple_save(..., save_incr_model=True)",
        )
    try:
        options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
        root = tf.saved_model.load(str(path), options=options)
        signatures = {
            name: loaded_signature(function, schema.signatures[name])
            for name, function in root.signatures.items()
        }
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        raise DamagedError(
            f"serving graph {path} cannot be read: {error}",
            path=path,
            position="",
            hint=f"if it uses operations of another package, --import that; else delete it and {_TRAIN_AGAIN}",
        ) from error
    return ServingModule(root, tuple(root.hotdelta_variables), signatures)


def load_schema(directory: Path, digest: str) -> Schema:
    """Raises ModelMismatchError when the schema file is not there, cannot be read, or is another one."""
    path = directory / names.schema_name(digest)
    try:
        schema = Schema.from_json(path.read_bytes())
    except OSError as error:
        raise ModelMismatchError(f"{path} cannot be read: {error.strerror}", hint=_TRAIN_AGAIN) from error
    except ManifestError as error:
        raise ModelMismatchError(f"{path}: {error.message}", hint=f"delete it and {_TRAIN_AGAIN}") from error
    if schema.digest != digest:
        raise ModelMismatchError(f"{path} is not the schema {digest}", hint=f"delete it and {_TRAIN_AGAIN}")
    return schema


def save_schema(directory: Path, schema: Schema) -> None:
    """For readers that serve only a part of the model, or another signature of it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / names.schema_name(schema.digest)
    if path.exists():
        return
    temporary = _temporary(path)
    temporary.write_bytes(schema.to_json())
    sync_file(temporary)
    disk = Disk()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{names.TEMPORARY_PREFIX}{path.name}-{os.getpid()}")
