"""`tf.Session` and `tf.InteractiveSession`: a script that makes its own Session can save deltas from it by hand.

TensorFlow does not see a change in an operation that was there when a Session ran. So the graph is made ready for
deltas just before the first run, when it has a Saver that is incremental; a graph without one stays as it is.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hotdelta.chain.format.position import Node
from hotdelta.compat.v1.recording.hooks import recorders_of
from hotdelta.compat.v1.recording.training_graph import TrainingGraph, training_graph_of
from hotdelta.errors import ConfigurationError

if TYPE_CHECKING:
    from hotdelta.compat.v1.sessions.hand_saves import HandSaves
    from hotdelta.compat.v1.sessions.saver import Saver

_SAVERS = "_hotdelta_savers"


def register_saver(saver: Saver) -> None:
    """Of the default graph, an incremental one: the first Session that runs makes the graph ready for it."""
    graph = tf.compat.v1.get_default_graph()
    setattr(graph, _SAVERS, [*getattr(graph, _SAVERS, ()), saver])


class PlainSession:
    """What both Sessions do, in front of that of tf.compat.v1.

    `restored`: the directory and the node that it was last restored to. `hand_saves`: the chain it is saved into.
    """

    restored: tuple[Path, Node] | None = None
    hand_saves: HandSaves | None = None
    has_run = False
    is_recorded = False
    graph: Any
    sess_str: str

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        self._guard_first_run = threading.Lock()
        super().__init__(target, graph, config)  # type: ignore[call-arg]

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        self.begin()
        recorders = recorders_of(self.graph, fetches)
        if not recorders:
            return self._run_stock(fetches, feed_dict, options, run_metadata)
        return self._run_stock([fetches, recorders], feed_dict, options, run_metadata)[0]

    def make_callable(self, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Any:
        self.begin()
        make = super().make_callable  # type: ignore[misc]
        recorders = recorders_of(self.graph, fetches)
        if not recorders:
            return make(fetches, feed_list, accept_options)
        call = make([fetches, recorders], feed_list, accept_options)
        return lambda *feeds, **options: call(*feeds, **options)[0]

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> Any:
        """Raises ConfigurationError for a writer that is fetched by itself: its recorder would run at another time."""
        self.begin()
        if recorders_of(self.graph, fetches):
            raise ConfigurationError(
                "partial_run cannot record what an operation writes that is fetched by itself",
                hint="use run, or fetch the train_op",
            )
        return super().partial_run_setup(fetches, feeds)  # type: ignore[misc]

    def close(self) -> None:
        """Also of the directory that it was saved into, which another Session may have then."""
        saves, self.hand_saves = self.hand_saves, None
        if saves is not None:
            saves.close()
        super().close()  # type: ignore[misc]

    def begin(self) -> None:
        """What precedes its first run. A Session of a cluster is not its only one, so it leaves the graph alone."""
        if self.has_run or self.sess_str:
            return
        with self._guard_first_run:
            if not self.has_run:
                self._prepare()
                self._begin_recording()
                self.has_run = True

    def ready_graph(self, saver: Saver) -> TrainingGraph:
        """The graph with what deltas need. Raises ConfigurationError when it cannot have that, or not all of it."""
        self.begin()
        is_new = training_graph_of(self.graph) is None
        with self.graph.as_default():
            ready = saver.make_ready(is_seen=self.has_run)
        if is_new:
            self._begin_recording()
        return ready

    def _prepare(self) -> None:
        """Who saves or restores with the Saver hears why it cannot be done; not who only runs something."""
        with self.graph.as_default():
            for saver in getattr(self.graph, _SAVERS, ()):
                # Nothing else: what fails in the middle leaves recorders without their flags.
                with contextlib.suppress(ConfigurationError):
                    if tf.compat.v1.global_variables():
                        saver.make_ready(is_seen=False)

    def _begin_recording(self) -> None:
        ready = training_graph_of(self.graph)
        if ready is not None and ready.roll is None:
            self._run_stock([variable.initializer for variable in ready.own_variables])
            self.is_recorded = True

    def _run_stock(self, *arguments: Any) -> Any:
        return super().run(*arguments)  # type: ignore[misc]


class Session(PlainSession, tf.compat.v1.Session):
    """tf.Session, from which a Saver that is incremental can save fulls and deltas."""


class InteractiveSession(PlainSession, tf.compat.v1.InteractiveSession):
    """tf.InteractiveSession, from which a Saver that is incremental can save fulls and deltas."""
