"""Who of a cluster trains without recording: a list on a parameter server, which outlives chiefs and workers.

A task that does not record enters itself, and then looks whether the chief writes deltas. The chief says that it does,
and then looks who is entered. So one of the two always sees the other: the task ends, or deltas hold every row.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.saved_variables import cpu_of, is_remote
from hotdelta.compat.v1.recording.recorder import SCOPE
from hotdelta.logs import event

v1 = tf.compat.v1
logger = logging.getLogger(__name__)

_CHIEF = "chief"


class RecordingRoll:
    """Operations on the list, in the default graph. What is in it are names of tasks, and the word for the chief.

    Before a task trains it has entered itself, or it records. It is struck off when it has trained for the last time
    without recording: by itself, or by the one that takes its place.
    """

    def __init__(self) -> None:
        with tf.device(_server()), tf.control_dependencies(None):
            roll = tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.string, value_dtype=tf.bool, shared_name=f"{SCOPE}/recording_roll"
            )
            self._name = v1.placeholder(tf.string, [1])
            self._enter = tf.raw_ops.LookupTableInsertV2(table_handle=roll, keys=self._name, values=[True])
            self._remove = tf.raw_ops.LookupTableRemoveV2(table_handle=roll, keys=self._name)
            self._names = tf.raw_ops.LookupTableExportV2(
                table_handle=roll, Tkeys=tf.string, Tvalues=tf.bool
            ).keys
            self.is_chief_recording = tf.raw_ops.LookupTableFindV2(
                table_handle=roll, keys=_CHIEF, default_value=False
            )
        self._entered: set[str] = set()

    def enter(self, session: Any, task: str) -> None:
        session.run(self._enter, {self._name: [task]})

    def strike_off(self, session: Any, task: str) -> None:
        # A server that is gone has forgotten its list.
        with suppress(tf.errors.AbortedError, tf.errors.UnavailableError):
            session.run(self._remove, {self._name: [task]})

    def begin(self, session: Any) -> None:
        """The chief writes deltas from now on. It restores, or saves, everything afterwards."""
        self.enter(session, _CHIEF)
        self._entered = self._read(session)

    def deny(self, session: Any) -> None:
        """The chief writes no deltas from now on."""
        self.strike_off(session, _CHIEF)

    def has_unrecorded(self, session: Any) -> bool:
        """Whether rows may have been written without a flag since `begin`, or since this was last asked.

        A task that leaves the roll has written until then, so it counts once more than it is found:

            begin    task writes    asked: yes    task writes and leaves    asked: yes    asked: no
            found                   found                                   before
        """
        before, self._entered = self._entered, self._read(session)
        if self._entered:
            event(
                logger,
                logging.WARNING,
                "tasks train without recording; until they end, or record, deltas hold all rows",
                tasks=", ".join(sorted(self._entered)),
                remedy="give them the incremental interval, or the incremental scaffold, of the chief; when they are "
                "gone for good, start the parameter servers again",
            )
        return bool(before or self._entered)

    def _read(self, session: Any) -> set[str]:
        return {name.decode() for name in session.run(self._names)} - {_CHIEF}


def _server() -> str:
    """That of the first variable which a server holds: all tasks make the same variables in the same order."""
    devices = [variable.device for variable in v1.global_variables()]
    return cpu_of(next(filter(is_remote, devices), devices[0]))
