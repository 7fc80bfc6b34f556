"""`tf.train.Scaffold(incremental_save_restore=True)`: finalizing it puts the recorders into the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.chain.open_chains import wait_for_writes
from hotdelta.compat.v1.recording.training_graph import (
    mark_steps,
    training_graph_of,
    unfinalized,
    watch_assigns,
)
from hotdelta.compat.v1.restore.restoring import refresh_state_file
from hotdelta.compat.v1.sessions.saver import Saver
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import OpenScaffold

v1 = tf.compat.v1


class Scaffold(OpenScaffold):
    """tf.train.Scaffold. Every worker of a cluster finalizes its own, so that every worker records.

    `chain_dir` is where its CheckpointSaverHook, which only a chief has, writes a chain.
    """

    def __init__(self, *args: Any, incremental_save_restore: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.incremental_save_restore = incremental_save_restore
        self.chain_dir: Path | None = None
        self._graph: Any = None
        if incremental_save_restore and self.saver is not None:
            require_incremental(self.saver)

    def finalize(self) -> Scaffold:
        """Called before each Session is made and restored, also before one that takes the place of a lost one.

        Whoever runs a step that finds the Session lost may have another default graph by then.
        """
        if self.chain_dir is not None:
            wait_for_writes(self.chain_dir)
            refresh_state_file(self.chain_dir)
        self._graph = self._graph or v1.get_default_graph()
        with self._graph.as_default():
            return self._finalize(self._graph)

    def _finalize(self, graph: Any) -> Scaffold:
        prepared = training_graph_of(graph)
        if prepared is not None:
            # That was another Session, perhaps of another directory.
            prepared.restored = None
        if graph.finalized:
            return self._finalized()
        if self.saver is None:
            self.set_saver(self._default_saver())
        self._finalized()
        if self.incremental_save_restore:
            # What `.meta` files hold: the graph as stock TensorFlow would have it, which runs without our variables.
            self.saver.remember_meta_graph()
            with unfinalized(graph):
                self._prepare()
        return self

    def _finalized(self) -> Scaffold:
        super().finalize()
        return self

    def _prepare(self) -> None:
        graph = self.saver.prepare()
        watch_assigns(graph, except_for=self.saver.restore_operations())
        mark_steps(graph, self.saver.saved_variables())
        own = graph.own_variables
        # Ready only when what we added is initialized, too.
        self.set_operations(
            init=tf.group(self.init_op, v1.variables_initializer(own)),
            ready=tf.concat([self.ready_op, v1.report_uninitialized_variables(own)], 0),
        )

    def _default_saver(self) -> Any:
        """A new one, which others find in the graph; when the graph has one already, that is for tf.train to say."""
        is_incremental = self.incremental_save_restore
        savers = v1.get_collection(v1.GraphKeys.SAVERS)
        if not savers:
            saver = Saver(sharded=True, allow_empty=True, incremental_save_restore=is_incremental)
            v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
            return saver
        if is_incremental:
            require_incremental(savers[0])
        return None


def require_incremental(saver: Any) -> None:
    """Raises ConfigurationError when this Saver would save and restore fulls only."""
    if not getattr(saver, "incremental_save_restore", False):
        raise ConfigurationError(
            "the scaffold is incremental, its saver is not, so no delta would be written or restored",
            hint="make it with tf.train.Saver(sharded=True, incremental_save_restore=True)",
        )
