"""`tf.train.Scaffold(incremental_save_restore=True)`: finalizing it puts the recorders into the graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resources

from hotdelta.compat.v1.saver import Saver
from hotdelta.compat.v1.training_graph import TrainingGraph, watch_assigns
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1


class Scaffold(tf.compat.v1.train.Scaffold):
    """tf.train.Scaffold. Every worker of a cluster finalizes its own, so that every worker records."""

    _saver: Any
    _ready_op: Any

    def __init__(self, *args: Any, incremental_save_restore: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.incremental_save_restore = incremental_save_restore
        if incremental_save_restore and self._saver is not None:
            require_incremental(self._saver)

    def finalize(self) -> Scaffold:
        if self.incremental_save_restore and not v1.get_default_graph().finalized:
            if self._saver is None:
                self._saver = _default_saver()
            self._saver.build()
            graph = self._saver.prepare()
            watch_assigns(graph, except_for=self._saver.restore_operations())
            self._init_op = self._with_own_variables(graph)
            self._ready_op = self._reporting_own_variables(graph)
        super().finalize()
        return self

    def _with_own_variables(self, graph: TrainingGraph) -> tf.Operation:
        init_op = self._init_op
        if init_op is None:
            given = v1.get_collection(v1.GraphKeys.INIT_OP)
            init_op = given[0] if given else _default_init_op()
        own = v1.variables_initializer(graph.own_variables)
        return tf.group(init_op, own)

    def _reporting_own_variables(self, graph: TrainingGraph) -> tf.Tensor:
        """Ready only when what we added is initialized, too."""
        ready_op = self._ready_op
        if ready_op is None:
            given = v1.get_collection(v1.GraphKeys.READY_OP)
            ready_op = given[0] if given else _default_ready_op()
        return tf.concat([ready_op, v1.report_uninitialized_variables(graph.own_variables)], 0)


def require_incremental(saver: Any) -> None:
    """Raises ConfigurationError when this Saver would save and restore fulls only."""
    if not getattr(saver, "incremental_save_restore", False):
        raise ConfigurationError(
            "the scaffold is incremental, its saver is not, so no delta would be written or restored",
            hint="make it with tf.train.Saver(sharded=True, incremental_save_restore=True)",
        )


def _default_saver() -> Saver:
    savers = v1.get_collection(v1.GraphKeys.SAVERS)
    if savers:
        require_incremental(savers[0])
        saver: Saver = savers[0]
        return saver
    saver = Saver(sharded=True, allow_empty=True, incremental_save_restore=True)
    v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
    return saver


def _default_init_op() -> tf.Operation:
    """What tf.train.Scaffold initializes by itself."""
    return tf.group(
        v1.global_variables_initializer(),
        resources.initialize_resources(resources.shared_resources()),
        v1.get_collection("saved_model_initializers"),
    )


def _default_ready_op() -> tf.Tensor:
    return tf.concat([v1.report_uninitialized_variables(), resources.report_uninitialized_resources()], 0)
