"""A file of events for TensorBoard: figures of saving, or of updates, beside the curves of training."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.logs import FailureLog

logger = logging.getLogger(__name__)


class EventFile:
    """Scalars by the training step, as TensorBoard reads them; made with the first. For one thread at a time.

    Written record by record, and not by tf.summary: its scalars want TensorBoard itself, and graphs of TensorFlow 1
    want another writer. A file that cannot be written is said, and stops nothing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None
        self._failures = FailureLog(logger)

    def write(self, values: Mapping[str, float], *, step: int, now: float) -> None:
        summary = tf.compat.v1.Summary(
            value=[tf.compat.v1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        try:
            self._append(tf.compat.v1.Event(wall_time=now, step=step, summary=summary))
        except (OSError, tf.errors.OpError) as error:
            self._writer = None
            self._failures.failed("TensorBoard is told nothing", directory=self._directory, reason=error)
        else:
            self._failures.worked("TensorBoard is told again")

    def close(self) -> None:
        """The next one is written to a file of its own."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _append(self, event: Any) -> None:
        if self._writer is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard looks for this in names; ours must not be those of whoever else writes here.
            name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{id(self)}.hotdelta"
            self._writer = tf.io.TFRecordWriter(str(self._directory / name))
            version = tf.compat.v1.Event(wall_time=event.wall_time, file_version="brain.Event:2")
            self._writer.write(version.SerializeToString())
        self._writer.write(event.SerializeToString())
        self._writer.flush()
