"""What a cut asks of tables with keys: that nobody gives keys a row meanwhile, and which keys came and went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from hotdelta.compat.v1.recording.training_graph import TrainingGraph
from hotdelta.train.rows.cut import Cut
from hotdelta.train.tables.key_upkeep import KeyState, Moment


class KeyedCuts:
    """Called by the thread that trains, or that saves while it waits; `note_committed` by any thread."""

    def __init__(self, graph: TrainingGraph) -> None:
        self._graph = graph
        self._tables = graph.keyed

    def begin(self, now: Moment) -> Mapping[str, KeyState]:
        """A chain begins with what the Session holds, or goes on from there. Returns what it says of keys."""
        with self._graph.alone():
            return self.begin_alone(now)

    def begin_alone(self, now: Moment) -> Mapping[str, KeyState]:
        for table in self._tables:
            table.note_begun()
            table.growth.fill_now()
            table.upkeep.begin(now)
        return self.states()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """No key comes or goes meanwhile, but in the steps of this very Session; all slots have begun.

        Raises CommitError.
        """
        with ExitStack() as held:
            for table in self._tables:
                held.enter_context(table.upkeep.lock)
            held.enter_context(self._graph.alone())
            self._graph.ask_servers()
            for table in self._tables:
                table.refuse_if_begun_anew()
                if not table.is_on_server:
                    table.growth.fill_now()
            yield

    def states(self) -> Mapping[str, KeyState]:
        return {table.name: table.upkeep.cut() for table in self._tables}

    def note_committed(self, cut: Cut) -> None:
        """By the thread that wrote it."""
        for table in self._tables:
            if table.name in cut.keys:
                table.upkeep.note_committed(cut.keys[table.name])

    @property
    def is_sweep_due(self) -> bool:
        return any(table.upkeep.is_sweep_due for table in self._tables)

    def sweep(self, now: Moment) -> None:
        """On the training thread, between two steps: remove the keys whose time has come."""
        with self._graph.alone():
            self._graph.ask_servers()
            for table in self._tables:
                if table.upkeep.is_sweep_due:
                    table.refuse_if_begun_anew()
                    table.upkeep.sweep(now)
