"""Saving by hand: `Saver.save` and `Saver.incremental_save` of a Session that a script made commit to a chain."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Manifest
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store import checkpoint_file
from hotdelta.compat.v1.chain import open_chains
from hotdelta.compat.v1.chain.save_schedule import to_run_directory
from hotdelta.compat.v1.chain.session_chain import SessionChain
from hotdelta.compat.v1.recording.step_marks import bookmark_of
from hotdelta.compat.v1.recording.training_graph import TrainingGraph, unfinalized
from hotdelta.compat.v1.sessions.plain_session import PlainSession
from hotdelta.errors import CommitError, ConfigurationError
from hotdelta.remote.publish.spool import given_address
from hotdelta.remote.stores.address import Address
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import SaveEvery

if TYPE_CHECKING:
    from hotdelta.compat.v1.sessions.saver import Saver

v1 = tf.compat.v1

_FULL_NAME = names.FULL_STEM.removesuffix("-")
_DELTA_NAME = names.DELTA_STEM.removesuffix("-")


def saves_of(saver: Saver, session: Any, save_path: str | Path) -> HandSaves:
    """The chain of a Session, which begins with its first save. Raises ConfigurationError when there can be none."""
    own, run_dir = _own(session), _directory(os.fspath(save_path))
    if own.hand_saves is None or not own.hand_saves.is_started:
        own.hand_saves = HandSaves(own, saver, run_dir)
    elif own.hand_saves.run_dir != run_dir:
        raise ConfigurationError(
            f"this Session is saved into {own.hand_saves.run_dir}, and {run_dir} is another directory",
            hint="save all of it into one; for a copy elsewhere make another Saver, without incremental_save_restore",
        )
    return own.hand_saves


class HandSaves:
    """One Session's chain. Belongs to the thread that trains; a save is over, and on disk, when its call returns.

    `is_started`: from its first save on. Until then nothing binds the Session to its directory.
    """

    def __init__(self, session: PlainSession, saver: Saver, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._session = session
        self._saver = saver
        self._graph = session.ready_graph(saver)
        _refuse_unrecorded(session, self._graph)
        self._step = _StepVariable.of(session.graph)
        self._version = session.graph.version
        self._chain = SessionChain(
            self._graph,
            run_dir,
            options=WriterOptions(SaveEvery(), SaveEvery(), saver.keep_fulls),
            step_tensor=self._step.variable,
            meta_graph=lambda: self._meta_graph,
        )
        self._meta_graph: bytes | None = None
        self.is_started = False

    def save_full(self, global_step: Any, meta_graph: bytes | None) -> str:
        """Returns its path. Raises CommitError when it is not on disk; what it would hold is in the next save."""
        self._meta_graph = meta_graph
        return self._save(self._chain.write_full, global_step)

    def save_delta(self, global_step: Any) -> str:
        """What changed since the last save; the first save is a full. Returns the path of what has the newest state.

        Raises CommitError when it is not on disk; its rows are in the next one.
        """
        return self._save(self._chain.write_delta, global_step)

    def close(self) -> None:
        self._chain.close()
        open_chains.forget(self.run_dir, self._chain)

    def _save(self, save: Callable[[], Manifest | None], global_step: Any) -> str:
        self._refuse_growth()
        self._set_step(global_step)
        if self.is_started or self._start() is None:
            save()
        newest = self._committed()
        return str(directory_of(self.run_dir, newest.kind) / newest.prefix)

    def _committed(self) -> Manifest:
        """A full when the chain was gone, whatever was asked for; the last commit when nothing has changed since."""
        newest = self._chain.newest
        if self._chain.failure is not None or newest is None:
            raise self._chain.failure or CommitError("nothing was committed", path=self.run_dir)
        return newest

    def _start(self) -> Manifest | None:
        """The full that begins a chain. None when the chain goes on from what was restored."""
        directory, node = self._session.restored or (None, None)
        self._graph.restored = node if directory == self.run_dir.resolve() else None
        if self._graph.restored is None and checkpoint_file.list_fulls(self.run_dir):
            raise ConfigurationError(
                f"{self.run_dir} holds a chain that this Session was not restored from: servers would follow a model "
                "that does not go on from there",
                hint=f'call restore(session, tf.train.latest_checkpoint("{self.run_dir}")) first, with this Saver, or '
                "save into another directory",
            )
        first = self._chain.start(self._session)
        self.is_started = True
        return first

    def _refuse_growth(self) -> None:
        """Nothing records what a writer writes that came after the first run."""
        graph = self._session.graph
        if graph.version != self._version:
            self._session.ready_graph(self._saver)
            self._version = graph.version

    def _set_step(self, global_step: Any) -> None:
        if global_step is None:
            global_step = v1.train.get_global_step(self._session.graph)
        if global_step is None:
            raise ConfigurationError(
                "the graph counts no steps, and every save of a chain has one",
                hint="pass global_step, a number or a tensor",
            )
        if not isinstance(global_step, Integral):
            global_step = v1.train.global_step(self._session, global_step)
        self._step.set(self._session, int(global_step))


class _StepVariable:
    """What a chain takes for the global step. One for each graph: scripts number their saves as they like."""

    _ATTRIBUTE = "_hotdelta_hand_step"

    def __init__(self) -> None:
        with v1.name_scope(None), tf.device("/cpu:0"), tf.control_dependencies(None):
            self._given = v1.placeholder(tf.int64, [])
            self.variable = v1.Variable(
                tf.zeros([], tf.int64),
                trainable=False,
                collections=[],
                use_resource=True,
                name="hotdelta/step",
            )
            self._assign = self.variable.assign(self._given, read_value=False)

    @classmethod
    def of(cls, graph: Any) -> _StepVariable:
        if not hasattr(graph, cls._ATTRIBUTE):
            with graph.as_default(), unfinalized(graph):
                setattr(graph, cls._ATTRIBUTE, cls())
        found: _StepVariable = getattr(graph, cls._ATTRIBUTE)
        return found

    def set(self, session: Any, step: int) -> None:
        session.run(self._assign, {self._given: step})


def _own(session: Any) -> PlainSession:
    if not isinstance(session, PlainSession):
        raise ConfigurationError(
            f"{type(session).__name__} is no Session of hotdelta.compat.v1, so nothing records what it writes",
            hint="make it with tf.Session of `import hotdelta.compat.v1 as tf`; in a MonitoredSession let a "
            "CheckpointSaverHook with incremental_save_secs do the saving",
        )
    if session.sess_str:
        raise ConfigurationError(
            "the Session is one of a cluster, where each task would have to record",
            hint="use tf.train.MonitoredTrainingSession with save_incremental_checkpoint_secs",
        )
    return session


def _refuse_unrecorded(session: PlainSession, graph: TrainingGraph) -> None:
    if graph.roll is not None or (graph.recorders and not session.is_recorded):
        raise ConfigurationError(
            "the graph was made ready for deltas after this Session had run, so not all that it wrote is recorded",
            hint="make a new Session, or build all of the model and the Saver before the first run",
        )
    if bookmark_of(session.graph) is not None:
        raise ConfigurationError(
            "a bookmark is saved by a CheckpointSaverHook, and not by hand",
            hint="take it out; a script that saves by hand knows which batch it trained last",
        )


def _directory(save_path: str) -> Path:
    """Of `run/model.ckpt`; of a delta also `run/.incremental_checkpoint/incremental_model.ckpt`."""
    if (address := given_address(save_path)) is not None:
        return _spool_of(Address.parse(address))
    path = to_run_directory(save_path)
    run_dir = path.parent
    if path.name == _DELTA_NAME and run_dir.name == names.DELTA_DIRECTORY:
        return run_dir.parent
    if path.name != _FULL_NAME:
        raise _misnamed(path.name, str(run_dir))
    return run_dir


def _spool_of(address: Address) -> Path:
    """Of `s3://bucket/run/model.ckpt` the spool of `s3://bucket/run`."""
    run, _, name = address.path.rpartition("/")
    directory = str(replace(address, path=run))
    if name != _FULL_NAME:
        raise _misnamed(name, directory)
    return to_run_directory(directory)


def _misnamed(name: str, directory: str) -> ConfigurationError:
    return ConfigurationError(
        f"fulls of a chain are called {_FULL_NAME}, not {name!r}",
        hint=f"save to {directory}/{_FULL_NAME}; the step is added by itself",
    )
