"""Sessions that only read: what they restore from a directory with a chain is its newest delta, not its newest full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.store import checkpoint_file
from hotdelta.compat.v1.sessions.creators import as_text
from hotdelta.compat.v1.sessions.scaffold import Scaffold
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.backlog import newest_position, positions_in
from hotdelta.remote.publish.resuming import bring_in
from hotdelta.remote.publish.spool import given_address, to_run_directory
from hotdelta.remote.stores.opening import open_store

v1 = tf.compat.v1


def reading_scaffold(checkpoint_dir: str | None, hooks: Sequence[Any]) -> Scaffold:
    """For a Session without one. Plain where a hook saves without deltas, which an incremental Saver refuses."""
    is_saving = any(isinstance(hook, v1.train.CheckpointSaverHook) for hook in hooks)
    savers = v1.get_collection(v1.GraphKeys.SAVERS)
    is_plain = bool(savers) and not getattr(savers[0], "incremental_save_restore", False)
    return Scaffold(incremental_save_restore=has_chain(checkpoint_dir) and not is_saving and not is_plain)


def has_chain(checkpoint_dir: str | None) -> bool:
    return (
        bool(checkpoint_dir)
        and "://" not in str(checkpoint_dir)
        and bool(checkpoint_file.list_fulls(Path(str(checkpoint_dir))))
    )


def checkpoint_directory(checkpoint: str) -> str:
    """A URL stays as it is: as a Path it would have one slash less, and be taken for a directory here."""
    return checkpoint if "://" in checkpoint else str(Path(checkpoint).parent)


def latest_checkpoint(checkpoint_dir: str | Path, latest_filename: str | None = None) -> Any:
    """tf.train.latest_checkpoint. Of the address of a store with a chain: the newest full, brought to this machine."""
    address = given_address(checkpoint_dir)
    if address is not None and not _is_of_tensorflow(address):
        checkpoint_dir = to_run_directory(address)
    bring_in(Path(checkpoint_dir))
    return tf.train.latest_checkpoint(str(checkpoint_dir), latest_filename)


def _is_of_tensorflow(address: str) -> bool:
    """Of an address that TensorFlow can read as well: whether plain checkpoints lie there, and no chain."""
    scheme = address.partition(":")[0].lower()
    if scheme not in tf.io.gfile.get_registered_schemes():
        return False
    store = open_store(address)
    try:
        return newest_position(positions_in(CommitLog(store))) is None
    finally:
        store.close()


class SingularMonitoredSession(tf.compat.v1.train.SingularMonitoredSession):
    """tf.train.SingularMonitoredSession. With neither scaffold nor a hook that saves it reads the newest delta."""

    def __init__(
        self,
        hooks: Any = None,
        scaffold: Any = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | Path | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | Path | None = None,
    ) -> None:
        directory, path = as_text(checkpoint_dir), as_text(checkpoint_filename_with_path)
        if scaffold is None and not master:
            scaffold = reading_scaffold(checkpoint_directory(path) if path else directory, hooks or ())
        super().__init__(
            hooks, scaffold or Scaffold(), master, config, directory, stop_grace_period_secs, path
        )
