"""Cuts on a cluster: the rows stay on the parameter servers, which write them; the rest is the chief's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from hotdelta.chain.bundle.parts import discard_parts, merge_parts
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest, TableRecord
from hotdelta.chain.history.verification import directory_of
from hotdelta.compat.v1.chain.keyed_cuts import KeyedCuts
from hotdelta.compat.v1.chain.moved_values import MovedValues
from hotdelta.compat.v1.chain.session_progress import PlaceReader
from hotdelta.compat.v1.recording.shard_delta import ShardDelta
from hotdelta.compat.v1.recording.training_graph import TrainingGraph, table_records
from hotdelta.errors import CommitError
from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.chain_writer import ChainWriter
from hotdelta.train.save.delta_bundle import write_delta
from hotdelta.train.tables.key_upkeep import KeyState, Moment
from hotdelta.train.tables.row_values import Array

IN_PROGRESS = f"{names.DELTA_STEM}in-progress"


@dataclass(frozen=True, slots=True)
class ShardCut(Cut):
    """A cut whose rows are held by the parameter servers; `rows` says how many of each variable.

    `in_use`: how many rows are in use of each one that grows.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    in_use: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.values and not any(self.rows.values())


class ShardCuts:
    """Takes cuts as `SessionCuts` does; the parameter servers hold one at a time."""

    def __init__(self, graph: TrainingGraph, shards: ShardDelta, saved: Mapping[str, Array]) -> None:
        """`saved`: what is on disk of every value."""
        self._graph = graph
        self._shards = shards
        self.keyed = KeyedCuts(graph)
        self._values = MovedValues(saved)
        self._failed_stems: list[str] = []

    def begin(self, now: Moment) -> Mapping[str, KeyState]:
        """A chain goes on with what the servers hold."""
        return self.keyed.begin(now)

    def begin_chain(self, session: Any, now: Moment) -> Mapping[str, KeyState]:
        """A chain begins with what the servers hold: its full has the keys that are there now."""
        if not self._graph.keyed:
            return {}
        with self._graph.alone():
            states = self.keyed.begin_alone(now)
            # What changed until now is in the full.
            self._shards.take(session)
            self._shards.hold_all_keys(session)
            return states

    def take(self, session: Any, places: PlaceReader, *, trained_at: float) -> Cut:
        return self._take(session, places, trained_at, self._shards.hold_keys)

    def take_for_full(self, session: Any, places: PlaceReader, *, trained_at: float) -> Cut:
        """A full follows, which has the same keys as this cut."""

        def hold(session: Any, fetches: Any) -> Any:
            self._shards.hold_all_keys(session)
            return self._shards.hold_keys(session, fetches)

        return self._take(session, places, trained_at, hold)

    def _take(
        self, session: Any, places: PlaceReader, trained_at: float, hold_keys: Callable[[Any, Any], Any]
    ) -> Cut:
        try:
            self._shards.mark_changed(session)
            fetches = [dict(self._graph.values.fetches), places.fetches]
            keys: Mapping[str, KeyState] = {}
            in_use: Mapping[str, int] = {}
            if not self._graph.keyed:
                rows = self._shards.take(session)
                values, fetched = self._shards.hold(session, fetches)
            else:
                with self.keyed.unchanged():
                    rows = self._shards.take(session)
                    place = places.read(session.run(places.fetches))
                    self._shards.stamp(session, Moment.of(place.step, place.watermark))
                    (values, fetched), in_use = hold_keys(session, fetches)
                    keys = self.keyed.states()
                # What has no row yet has none in this cut either.
                self._shards.hold(session, [])
            place = places.read(fetched)
        except BaseException:
            self._values.give_back_all()
            # A Session that is gone takes its flags along, and a new one starts from what is committed.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                self._shards.give_back(session)
            raise
        return ShardCut(
            step=place.step,
            blocks=(),
            values=self._values.take(self._graph.values.join(values)),
            trainer_state=place.trainer_state,
            watermark=place.watermark,
            trained_at=trained_at,
            rows=rows,
            in_use=in_use,
            keys=keys,
        )

    def give_back(self, session: Any, cut: Cut) -> None:
        self._values.give_back(cut.values)
        self._shards.give_back(session)

    def commit(self, chain: ChainWriter, session: Any, cut: Cut, link: Link) -> Manifest:
        """Raises CommitError; then nothing of it is visible.

        The position is in every name: a server that writes for a chief that was lost harms no other save.
        """
        directory = directory_of(chain.run_dir, Kind.DELTA)
        stem = f"{IN_PROGRESS}-{link.node.position}"
        if link.parent is None:
            raise CommitError("a delta needs a full to follow", path=chain.run_dir)
        others, disk = self._graph.variables.others, chain.disk
        while self._failed_stems:
            # By now a server that was still writing when another one failed has ended.
            discard_parts(directory, f"{self._failed_stems.pop()}.", disk=disk)
        try:
            parts = self._shards.write(session, directory, stem, disk)
            own = write_delta(
                directory,
                f"{stem}.chief",
                cut,
                others=others,
                node=link.node,
                parent=link.parent,
                disk=disk,
                roles={table.key: table.table.values.role for table in self._graph.tables},
            )
            prepared = merge_parts(stem, [own, *parts], self._shards.pieces, disk=disk)
            schema = self._graph.variables.schema.digest
            return chain.commit_prepared_delta(prepared, cut, link, schema=schema, tables=self.records(cut))
        except BaseException:
            discard_parts(directory, f"{stem}.", disk=disk)
            self._failed_stems.append(stem)
            raise

    def records(self, cut: Cut) -> dict[str, TableRecord]:
        """Of a cut that begins a chain: as the servers held it when it was taken."""
        if isinstance(cut, ShardCut):
            return table_records(self._graph.tables, cut.rows, in_use=cut.in_use, keys=cut.keys)
        return table_records(self._graph.tables, {}, in_use=self._shards.in_use, keys=cut.keys)
