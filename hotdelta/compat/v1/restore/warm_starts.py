"""tf.train.init_from_checkpoint and tf.train.warm_start: they read a full, and say so when deltas follow it.

It is checked when the graph is built, and read when its variables are initialized.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.restore.restoring import find_meant_full, warn_of_deltas

v1 = tf.compat.v1


def init_from_checkpoint(ckpt_dir_or_file: str | Path, assignment_map: Any) -> None:
    v1.train.init_from_checkpoint(_read(ckpt_dir_or_file), assignment_map)


def warm_start(ckpt_to_initialize_from: str | Path, *args: Any, **kwargs: Any) -> None:
    v1.train.warm_start(_read(ckpt_to_initialize_from), *args, **kwargs)


def full_of(checkpoint: str | Path) -> str | None:
    """The checkpoint itself, or the newest one of a directory."""
    path = os.fspath(checkpoint)
    return tf.train.latest_checkpoint(path) if Path(path).is_dir() else path


def _read(checkpoint: str | Path) -> str:
    """The checkpoint that was checked, not its directory: that may name another one when it is read."""
    path = full_of(checkpoint)
    if path is None:
        return os.fspath(checkpoint)
    find_meant_full(path)
    warn_of_deltas(path)
    return path
