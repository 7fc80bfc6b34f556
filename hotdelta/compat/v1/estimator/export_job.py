"""Exports what a model function built for prediction: from the chain when there is one, else from a checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from exporter.export import ExportOptions
from hotdelta.compat.v1.estimator.export import ServingInputReceiver, signature_outputs
from hotdelta.compat.v1.estimator.inference import Checkpoint
from hotdelta.compat.v1.estimator.spec import EstimatorSpec
from hotdelta.compat.v1.restore.restoring import find_asked_full
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_chain, export_session, refuse_text
from hotdelta.compat.v1.sessions.reading_session import has_chain
from hotdelta.compat.v1.sessions.saver import Saver
from hotdelta.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ExportJob:
    """What to export, of the directory of which model."""

    model_dir: Path
    checkpoint: Checkpoint
    allow_whole_table_reads: tuple[str, ...] = ()

    def run(
        self, receiver: ServingInputReceiver, spec: EstimatorSpec, export_dir: Path, *, save_incr_model: bool
    ) -> Path:
        """Of the default graph. Raises ConfigurationError when there is nothing incremental to export."""
        if save_incr_model:
            require_chain(self.model_dir)
        signatures = {
            name: GraphSignature(receiver.receiver_tensors, outputs)
            for name, outputs in signature_outputs(spec).items()
        }
        options = ExportOptions(
            save_incr_model=save_incr_model,
            version=_free_version(export_dir),
            allow_whole_table_reads=self.allow_whole_table_reads,
        )
        if self.checkpoint.is_newest and has_chain(str(self.model_dir)):
            return export_chain(signatures, self.model_dir, export_dir, options)
        asked, run_dir = find_asked_full(self.checkpoint.path), Path(self.checkpoint.path).parent
        if asked is not None:
            return export_chain(signatures, run_dir, export_dir, options, position=asked.position)
        return self._export_checkpoint(signatures, export_dir, options)

    def _export_checkpoint(self, signatures: Any, export_dir: Path, options: ExportOptions) -> Path:
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.tables_initializer())
            Saver(sharded=True).restore(session, self.checkpoint.path)
            return export_session(session, signatures, export_dir / str(options.version), options)


def require_chain(model_dir: Path) -> None:
    """Raises ConfigurationError when training leaves no deltas there."""
    if not has_chain(str(model_dir)):
        raise ConfigurationError(
            f"{model_dir} holds no deltas and will never get any, so there is nothing incremental to export",
            hint="train with RunConfig(save_incremental_checkpoint_secs=...) or an incremental CheckpointSaverHook",
        )


def refuse_extras(assets_extra: Any, *, as_text: bool) -> None:
    """What tf.estimator could add to an export."""
    refuse_text(as_text)
    if assets_extra:
        raise ConfigurationError(
            "assets_extra cannot be exported here", hint="put these files beside the SavedModel"
        )


def _free_version(export_dir: Path) -> int:
    """Seconds since 1970, as tf.estimator numbers exports."""
    version = int(time.time())
    while (export_dir / str(version)).exists():
        version += 1
    return version
