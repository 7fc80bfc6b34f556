"""`tf.train.Saver(incremental_save_restore=True)`: restores a full together with every delta that follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph_growth import refuse_new_variables
from hotdelta.compat.v1.open_chains import is_saved, wait_for_writes
from hotdelta.compat.v1.restoring import find_full, find_point, restore_point, warn_of_deltas
from hotdelta.compat.v1.save_schedule import check_kept, refuse_hours
from hotdelta.compat.v1.saved_variables import SavedVariable, find_saved_variables
from hotdelta.compat.v1.training_graph import TrainingGraph, prepare_graph, training_graph_of
from hotdelta.errors import ConfigurationError, ModelMismatchError


class Saver(tf.compat.v1.train.Saver):
    """tf.train.Saver. With `incremental_save_restore` its variables can be saved as a chain, and are restored from one.

    Chains are written by CheckpointSaverHook. `restore` of the newest full of a chain goes on to the newest delta,
    unless `reads_deltas` is set to False.
    """

    def __init__(
        self, var_list: Any = None, *args: Any, incremental_save_restore: bool = False, **kwargs: Any
    ) -> None:
        self.incremental_save_restore = incremental_save_restore
        self.reads_deltas = True
        if incremental_save_restore and var_list is None:
            # Built by the scaffold: a Saver that is made before the optimizer would miss the optimizer's slots.
            kwargs.setdefault("defer_build", True)
        super().__init__(var_list, *args, **kwargs)
        if incremental_save_restore:
            refuse_hours(self._keep_checkpoint_every_n_hours)
            check_kept("max_to_keep", self._max_to_keep)

    @property
    def keep_fulls(self) -> int:
        """tf.train.Saver keeps everything when `max_to_keep` is 0 or None."""
        return int(self.saver_def.max_to_keep) or 2**31

    def saved_variables(self) -> tuple[SavedVariable, ...]:
        """Raises ConfigurationError when it saves anything that a delta cannot hold."""
        given = self._var_list
        if isinstance(given, dict):
            raise ConfigurationError(
                "an incremental Saver has names of its own for variables, and servers know only the variables' names",
                hint="give var_list as a list, or leave it out",
            )
        if given is None:
            given = tf.compat.v1.global_variables() + tf.compat.v1.get_collection(
                tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
            )
        return find_saved_variables(given)

    def prepare(self) -> TrainingGraph:
        """Add what incremental checkpoints need to the default graph: call it when all of the model is there."""
        return prepare_graph(self.saved_variables())

    def restore_operations(self) -> set[str]:
        """The names of all operations that run, or are waited for, when this Saver restores."""
        graph = tf.compat.v1.get_default_graph()
        queue = [graph.get_operation_by_name(self.saver_def.restore_op_name)]
        found: set[str] = set()
        while queue:
            operation = queue.pop()
            if operation.name not in found:
                found.add(operation.name)
                queue.extend(operation.control_inputs)
        return found

    def remember_meta_graph(self) -> None:
        """The graph as it is now is what `meta_graph` says from now on."""
        self._meta_graph: bytes = self.export_meta_graph().SerializeToString()

    def meta_graph(self) -> bytes:
        """What a `.meta` file holds."""
        return self._meta_graph

    def save(self, sess: Any, save_path: str, *args: Any, **kwargs: Any) -> Any:
        """Raises ConfigurationError when it is incremental: what is saved by hand belongs to no chain."""
        if self.incremental_save_restore:
            raise ConfigurationError(
                "this Saver is incremental, but it is asked for a checkpoint that no delta could follow",
                hint="let a CheckpointSaverHook with incremental_save_secs, or a MonitoredTrainingSession with "
                "save_incremental_checkpoint_secs, do the saving; or make another Saver for checkpoints by hand",
            )
        return super().save(sess, save_path, *args, **kwargs)

    def restore(self, sess: Any, save_path: str) -> None:
        """In the middle of training all rows are due afterwards.

        Raises ModelMismatchError (nothing was changed), ChainError when what is on disk is damaged.
        """
        self._restore(sess, save_path)
        graph = training_graph_of(sess.graph)
        if graph is not None and is_saved(sess):
            sess.run(graph.all_touched)

    def _restore(self, sess: Any, save_path: str) -> None:
        if not self._is_built:
            with sess.graph.as_default():
                self.build()
        wait_for_writes(Path(save_path or ".").parent)
        find = find_point if self.reads_deltas else find_full
        point = find(save_path) if self.incremental_save_restore and save_path else None
        if point is None:
            self._restore_stock(sess, save_path)
            return
        with sess.graph.as_default():
            graph = self._prepared()
        restore_full = super().restore
        restore_point(sess, graph, Path(save_path).parent, point, lambda path: restore_full(sess, path))

    def _prepared(self) -> TrainingGraph:
        """Another Saver may have made the graph ready, for fewer variables: the others would stay as the full has them.

        Writers that came later do no harm here, where nothing is saved.
        """
        known = training_graph_of(tf.compat.v1.get_default_graph())
        if known is None:
            return self.prepare()
        refuse_new_variables(self.saved_variables(), known.variables)
        return known

    def _restore_stock(self, sess: Any, save_path: str) -> None:
        """A checkpoint of somebody else: then everything that we added to the graph starts afresh."""
        graph = training_graph_of(sess.graph)
        self._refuse_other_shapes(sess, save_path)
        if not self.incremental_save_restore and self.reads_deltas:
            warn_of_deltas(save_path)
        if graph is not None:
            sess.run(graph.flag_initializers)
        super().restore(sess, save_path)
        if graph is not None:
            sess.run(graph.marker_initializers)
            graph.restored = None

    def _refuse_other_shapes(self, sess: Any, save_path: str) -> None:
        """TensorFlow's own complaint names neither the tensor nor, always, both shapes."""
        if (
            isinstance(self._var_list, dict)
            or not save_path
            or not tf.compat.v1.train.checkpoint_exists(save_path)
        ):
            return
        with sess.graph.as_default():
            variables = self._var_list or tf.compat.v1.global_variables()
        saved = dict(tf.train.list_variables(save_path))
        problems = []
        for variable in variables:
            info = getattr(variable, "_save_slice_info", None)
            name = info.full_name if info else variable.op.name if isinstance(variable, tf.Variable) else ""
            if name not in saved:
                continue
            shape = tf.TensorShape(info.full_shape if info else variable.shape)
            if not shape.is_compatible_with(saved[name]):
                problems.append(
                    f"{name}: shape {shape.as_list()} in the model, {saved[name]} in the checkpoint"
                )
        if problems:
            raise ModelMismatchError(
                f"the model does not fit {save_path}: " + "; ".join(problems),
                problems=tuple(problems),
                hint="build the model as it was saved, or use another directory; nothing was changed",
            )
