"""The rows of a delta on a cluster: each parameter server finds, holds and writes its own; the chief gets counts."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.bundle.parts import Piece
from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.compat.v1.embedding.table import EmbeddingTable
from hotdelta.compat.v1.graph.saved_variables import SavedVariable, cpu_of, on_device_of
from hotdelta.compat.v1.graph.served_variables import shares_ids
from hotdelta.compat.v1.graph.writers import own_operations
from hotdelta.compat.v1.recording.held_keys import HeldKeys
from hotdelta.compat.v1.recording.held_rows import Comparison, HeldPartRows, RememberedRows, RowSet
from hotdelta.compat.v1.recording.recorder import PartFlags
from hotdelta.compat.v1.recording.shard_save import ShardSave, ShardTensor
from hotdelta.errors import CommitError
from hotdelta.train.tables.key_upkeep import Moment
from hotdelta.train.tables.row_values import Array

WRITE_MILLISECONDS = 600_000


@dataclass(frozen=True, slots=True, eq=False)
class ShardMember:
    """A table or one of its slots. `flags`: of its rows, by part; None: its rows have to be compared."""

    saved: SavedVariable
    role: str
    owner: str
    flags: tuple[PartFlags, ...] | None


class ShardDelta:
    """Operations on the rows of every table of a graph. One delta at a time: take, hold, then write or give back."""

    def __init__(self, members: Sequence[ShardMember], keyed: Sequence[EmbeddingTable] = ()) -> None:
        """`keyed`: the tables with keys that the members are of."""
        self._sets: dict[tuple[str, int], RowSet] = {}
        self._held: list[HeldPartRows] = []
        self.held_keys = HeldKeys([table for table in keyed if table.is_on_server])
        self._of_keys = {id(variable) for table in keyed for variable in (table.index, table.waiting)}
        self._held_of_keys: list[HeldPartRows] = []
        self._growths: dict[str, tf.Tensor] = {}
        self.in_use: dict[str, int] = {}
        self._updates: list[tf.Operation] = []
        self._comparisons: list[Comparison] = []
        self._remembered: dict[str, RememberedRows] = {}
        tensors = [tensor for member in members for tensor in self._add(member)]
        self._save = ShardSave(tensors, first_part=1)
        self._moment = tf.compat.v1.placeholder(tf.int64, [2])
        self._stamps = [self._stamp_of(table) for table in keyed if table.usage is not None]

    @property
    def flags(self) -> list[PartFlags]:
        """Those of compared rows: nothing else has them."""
        return [flags for remembered in self._remembered.values() for flags in remembered.flags]

    @property
    def pieces(self) -> Mapping[str, Sequence[Piece]]:
        """How the tensors of a delta are put together; part 0 is the chief's own."""
        return self._save.pieces

    def begin(self, session: Any, saved: Iterable[tuple[str, Array]]) -> None:
        """Nothing is taken. `saved`: what is on disk of every row variable that is compared."""
        session.run([row_set.drop for row_set in self._sets.values()])
        for key, values in saved:
            self._remembered[key].write(session, values)

    def mark_changed(self, session: Any) -> None:
        """Compare what has to be compared: rows that changed are due."""
        for comparison in self._comparisons:
            comparison.run(session)

    def take(self, session: Any) -> dict[str, int]:
        """How many rows of each variable are due: they are taken, and no longer due."""
        counts: dict[str, int] = defaultdict(int)
        sets = list(self._sets.items())
        fetched = session.run([[row_set.take, row_set.count] for _, row_set in sets])
        for ((key, _), _), (_, count) in zip(sets, fetched, strict=True):
            counts[key] += int(count)
        return dict(counts)

    def stamp(self, session: Any, now: Moment) -> None:
        """The rows that were taken were trained until now."""
        if self._stamps:
            session.run(self._stamps, {self._moment: [now.step, now.second]})

    def hold_keys(self, session: Any, fetches: Any) -> Any:
        """Keep what was taken of indexes as it is now, before keys come or go. `fetches` are read in the same call.

        Returns them, and how many rows are in use of each table that grows.
        """
        holds = [held.hold for held in self._held_of_keys]
        fetched, counts, _ = session.run([fetches, self._growths, holds])
        self._note_in_use(counts)
        return fetched, self.in_use

    def hold_all_keys(self, session: Any) -> None:
        """Keep all keys as they are now, for a full."""
        self._note_in_use(session.run([self._growths, self.held_keys.hold])[0])

    def _note_in_use(self, counts: Mapping[str, Any]) -> None:
        self.in_use = {key: int(count) for key, count in counts.items()}

    def hold(self, session: Any, fetches: Any) -> Any:
        """Keep the rows that were taken as they are now; `fetches` are read in the same call."""
        return session.run([fetches, [held.hold for held in self._held], self._updates])[0]

    def give_back(self, session: Any) -> None:
        session.run([row_set.give_back for row_set in self._sets.values()])

    def write(self, session: Any, directory: Path, stem: str, disk: Disk) -> list[PreparedBundle]:
        """Durable parts of the delta, as `pieces` says; the ids are held on, to be given back. Raises CommitError."""
        options = tf.compat.v1.RunOptions(timeout_in_ms=WRITE_MILLISECONDS)
        try:
            self._save.run(session, directory, stem, feeds={}, options=options)
        except (tf.errors.OpError, RuntimeError) as error:
            reason = error.message if isinstance(error, tf.errors.OpError) else error
            raise CommitError(
                f"a parameter server did not write its rows: {reason}", path=directory
            ) from error
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            session.run([held.drop for held in (*self._held, *self._held_of_keys)])
        return self._save.adopt(directory, stem, disk)

    def _add(self, member: ShardMember) -> Iterator[ShardTensor]:
        saved, flags = member.saved, member.flags
        if flags is None:
            remembered = self._remembered[saved.key] = RememberedRows(saved)
            flags = remembered.flags
        for number, part in enumerate(saved.parts):
            name, device = f"{saved.key}/{number}", cpu_of(part.variable.device)
            row_set = self._sets.get((member.owner, number))
            if row_set is None:
                row_set = self._sets[member.owner, number] = RowSet(flags[number], part, name)
            if not shares_ids(saved.key, member.owner):
                yield ShardTensor(saved.key + names.IDS_SUFFIX, device, member.role, row_set.row_numbers)
            held = HeldPartRows(saved, part, name, row_set)
            (self._held_of_keys if id(part.variable) in self._of_keys else self._held).append(held)
            if saved.growth is not None and saved.key == member.owner:
                with on_device_of(part.variable):
                    self._growths[saved.key] = saved.growth.rows_in_use()
            yield ShardTensor(saved.key + names.ROWS_SUFFIX, device, member.role, held.rows)
            if saved.key in self._remembered:
                self._compare(self._remembered[saved.key], number, held, row_set)

    def _stamp_of(self, table: EmbeddingTable) -> tf.Operation:
        row_set = self._sets[table.name, 0]
        with on_device_of(table.rows), own_operations():
            return table.stamp(row_set.ids, self._moment)

    def _compare(self, remembered: RememberedRows, number: int, held: HeldPartRows, row_set: RowSet) -> None:
        self._comparisons.append(remembered.comparison(number))
        self._updates.append(remembered.update(number, held, row_set))
