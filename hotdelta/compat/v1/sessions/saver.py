"""`tf.train.Saver(incremental_save_restore=True)`: saves fulls and deltas, and restores them together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.format.position import Node
from hotdelta.chain.store.checkpoint_file import list_fulls
from hotdelta.compat.v1.chain.open_chains import is_saved, wait_for_writes
from hotdelta.compat.v1.chain.save_schedule import check_kept, refuse_hours
from hotdelta.compat.v1.embedding.making import embedding_variables
from hotdelta.compat.v1.embedding.plain_save import as_saved, with_companions
from hotdelta.compat.v1.graph.growth import refuse_new_variables
from hotdelta.compat.v1.graph.saved_variables import SavedVariable, find_saved_variables
from hotdelta.compat.v1.recording.full_bundle import META_SUFFIX
from hotdelta.compat.v1.recording.training_graph import (
    TrainingGraph,
    prepare_graph,
    training_graph_of,
    unfinalized,
    watch_assigns,
)
from hotdelta.compat.v1.restore.restoring import (
    as_invalid_argument,
    find_meant,
    find_meant_full,
    restore_state,
    warn_of_deltas,
)
from hotdelta.compat.v1.sessions.hand_saves import saves_of
from hotdelta.compat.v1.sessions.plain_session import PlainSession, register_saver
from hotdelta.errors import ConfigurationError, ModelMismatchError
from hotdelta.tensorflow_internals import give_variables_to, is_saver_built, kept_by, slice_info
from hotdelta.train.tables.growth import growth_of

# What tf.train.Saver.save takes after the step, in that order, and the values of it that a chain can have.
_STOCK_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "latest_filename": (None, "checkpoint"),
    "meta_graph_suffix": ("meta",),
    "write_meta_graph": (True, False),
    "write_state": (True,),
    "strip_default_attrs": (False,),
    "save_debug_info": (False,),
}


class Saver(tf.compat.v1.train.Saver):
    """tf.train.Saver. With `incremental_save_restore` its variables can be saved as a chain, and are restored from one.

    Chains are written by CheckpointSaverHook; or by hand, with `save` and `incremental_save`. `restore` of the newest
    full of a chain goes on to the newest delta, unless `reads_deltas` is set to False.
    """

    def __init__(
        self,
        var_list: Any = None,
        *args: Any,
        incremental_save_restore: bool = False,
        incremental_include_normal_var: bool = True,  # noqa: ARG002 - deltas always have what changed of all variables
        **kwargs: Any,
    ) -> None:
        self.incremental_save_restore = incremental_save_restore
        self.reads_deltas = True
        self._given = var_list
        self._meta_graph: bytes | None = None
        if incremental_save_restore and var_list is None:
            # Built by the scaffold: a Saver that is made before the optimizer would miss the optimizer's slots.
            kwargs.setdefault("defer_build", True)
        super().__init__(var_list, *args, **kwargs)
        if incremental_save_restore:
            max_to_keep, hours = kept_by(self)
            refuse_hours(hours)
            check_kept("max_to_keep", max_to_keep)
            register_saver(self)

    def build(self) -> None:
        """As tf.train.Saver, once all variables are there."""
        if not is_saver_built(self) and embedding_variables(tf.compat.v1.get_default_graph()):
            given = _all_saved() if self._given is None else self._given
            give_variables_to(self, as_saved(given, with_records=not self.incremental_save_restore))
        super().build()

    @property
    def keep_fulls(self) -> int:
        """tf.train.Saver keeps everything when `max_to_keep` is 0 or None."""
        return int(self.saver_def.max_to_keep) or 2**31

    def saved_variables(self) -> tuple[SavedVariable, ...]:
        """Raises ConfigurationError when it saves anything that a delta cannot hold."""
        given = self._given
        if isinstance(given, dict):
            raise ConfigurationError(
                "an incremental Saver has names of its own for variables, and servers know only the variables' names",
                hint="give var_list as a list, or leave it out",
            )
        if given is None:
            given = _all_saved()
        return find_saved_variables(with_companions(given))

    def prepare(self, *, is_seen: bool = False) -> TrainingGraph:
        """Add what incremental checkpoints need to the default graph: call it when all of the model is there.

        `is_seen`: the Session in which it is used has run already.
        """
        return prepare_graph(self.saved_variables(), is_seen=is_seen)

    def make_ready(self, *, is_seen: bool) -> TrainingGraph:
        """As a scaffold does it that is finalized, for a Session without one. May be called again."""
        with unfinalized(tf.compat.v1.get_default_graph()):
            if not is_saver_built(self):
                self.build()
            self.remember_meta_graph()
            ready = self.prepare(is_seen=is_seen)
            watch_assigns(ready, except_for=self.restore_operations())
            return ready

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
        """The graph as it is now is what `meta_graph` says from now on, unless it has operations of ours already."""
        if training_graph_of(tf.compat.v1.get_default_graph()) is None:
            self._meta_graph = self.export_meta_graph().SerializeToString()

    def meta_graph(self) -> bytes | None:
        """What a `.meta` file holds. None: this Saver was made when the graph had operations of ours."""
        return self._meta_graph

    def save(
        self, sess: Any, save_path: str | Path, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """A checkpoint; when it is incremental, a full of the chain in the directory of `save_path`. Returns its path.

        `save_path` ends in `model.ckpt` then, and `sess` is a tf.Session of ours. Raises ConfigurationError when it
        could not be part of a chain, CommitError when it is not on disk.
        """
        if not self.incremental_save_restore:
            return super().save(sess, os.fspath(save_path), global_step, *args, **kwargs)
        has_meta_graph = _read_options(args, kwargs)
        saves = saves_of(self, sess, save_path)
        path = saves.save_full(global_step, self.meta_graph() if has_meta_graph else None)
        self.set_last_checkpoints([str(saves.run_dir / prefix) for prefix in list_fulls(saves.run_dir)])
        return path

    def incremental_save(self, sess: Any, save_path: str | Path, global_step: Any = None) -> str:
        """A delta of what changed since the last save of this Session; when there was none, a full.

        Returns the path of the newest commit, which is an older one when nothing changed. Raises as `save` does.
        """
        if not self.incremental_save_restore:
            raise ConfigurationError(
                "this Saver is not incremental, so nothing records for it",
                hint="make it with tf.train.Saver(incremental_save_restore=True)",
            )
        return saves_of(self, sess, save_path).save_delta(global_step)

    def restore(self, sess: Any, save_path: str) -> None:
        """In the middle of training all rows are due afterwards.

        Raises ModelMismatchError (nothing was changed; it is a tf.errors.InvalidArgumentError, too), ChainError when
        what is on disk is damaged.
        """
        with as_invalid_argument():
            node = self._restore(sess, save_path)
        if isinstance(sess, PlainSession):
            sess.restored = None if node is None else (Path(save_path).parent.resolve(), node)
        graph = training_graph_of(sess.graph)
        if graph is not None and is_saved(sess):
            sess.run(graph.all_touched)

    def _restore(self, sess: Any, save_path: str) -> Node | None:
        """Returns the node of a chain that it was restored to, from which deltas can go on."""
        if isinstance(sess, PlainSession) and self.incremental_save_restore:
            sess.begin()
        if not is_saver_built(self):
            with sess.graph.as_default():
                self.build()
        wait_for_writes(Path(save_path or ".").parent)
        find = find_meant if self.incremental_save_restore and self.reads_deltas else find_meant_full
        state = find(save_path) if save_path else None
        if state is None or not self.incremental_save_restore:
            self._restore_stock(sess, save_path)
            return None
        with sess.graph.as_default():
            graph = self._prepared(is_seen=isinstance(sess, PlainSession) and sess.has_run)
        restore_full = super().restore
        restore_state(sess, graph, state, lambda path: restore_full(sess, path))
        return state.node

    def _prepared(self, *, is_seen: bool) -> TrainingGraph:
        """Another Saver may have made the graph ready, for fewer variables: the others would stay as the full has them.

        Writers that came later do no harm here, where nothing is saved.
        """
        known = training_graph_of(tf.compat.v1.get_default_graph())
        if known is None:
            return self.prepare(is_seen=is_seen)
        refuse_new_variables(self.saved_variables(), known.variables)
        return known

    def _restore_stock(self, sess: Any, save_path: str) -> None:
        """Without the deltas after it, if any: then everything that we added to the graph starts afresh."""
        graph = training_graph_of(sess.graph)
        self._refuse_other_shapes(sess, save_path)
        if not self.incremental_save_restore and self.reads_deltas:
            warn_of_deltas(save_path)
        if graph is not None:
            sess.run(graph.flag_initializers)
        if self.incremental_save_restore:
            self._begin_records(sess)
        super().restore(sess, save_path)
        if graph is not None:
            sess.run(graph.marker_initializers)
            graph.restored = None

    def _begin_records(self, sess: Any) -> None:
        """What tables with keys know beside their rows begins anew: this Saver restores it from chains only."""
        tables = [variable.table for variable in embedding_variables(sess.graph)]
        sess.run([variable.initializer for table in tables for variable in table.own_record])

    def _refuse_other_shapes(self, sess: Any, save_path: str) -> None:
        """TensorFlow's own complaint names neither the tensor nor, always, both shapes."""
        if (
            isinstance(self._given, dict)
            or not save_path
            or not tf.compat.v1.train.checkpoint_exists(save_path)
        ):
            return
        with sess.graph.as_default():
            variables = self._given or tf.compat.v1.global_variables()
        saved = dict(tf.train.list_variables(save_path))
        problems = []
        for variable in variables:
            info = slice_info(variable)
            name = info.full_name if info else variable.op.name if isinstance(variable, tf.Variable) else ""
            if name not in saved or growth_of(variable) is not None:
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


def _all_saved() -> list[Any]:
    v1 = tf.compat.v1
    found: list[Any] = v1.global_variables() + v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)
    return found


def _read_options(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether a `.meta` file is wanted. Raises ConfigurationError for what a chain does not do."""
    given = {**dict(zip(_STOCK_OPTIONS, args, strict=False)), **options}
    for name, value in given.items():
        if name != "write_meta_graph" and value not in _STOCK_OPTIONS.get(name, ()):
            raise ConfigurationError(f"{name}={value!r}: a chain cannot be saved so", hint="leave it out")
    return bool(given.get("write_meta_graph", True))


def import_meta_graph(meta_graph_or_file: Any, *args: Any, **kwargs: Any) -> Saver | None:
    """tf.train.import_meta_graph. The Saver that it returns checks what it restores; so is a file checked.

    Raises ChainError when it is of a full, and not what the manifest says.
    """
    if isinstance(meta_graph_or_file, str | Path):
        meta_graph_or_file = os.fspath(meta_graph_or_file)
        find_meant_full(meta_graph_or_file.removesuffix(META_SUFFIX))
    saver = tf.compat.v1.train.import_meta_graph(meta_graph_or_file, *args, **kwargs)
    return None if saver is None else Saver(saver_def=saver.as_saver_def())
