"""Keys that go, and what becomes of their rows: from the moment they are removed until their rows are dealt again.

A freed row is dealt again only when a commit that has its key no more is on disk, and the step after it is over: until
then a gradient that was computed before may still be written to it, and nobody finds it.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.bundle.row_memory import row_ranges
from hotdelta.chain.format.key_index import PLACES
from hotdelta.logs import event
from hotdelta.train.keys.entries import Entries, EntrySweep
from hotdelta.train.keys.free_rows import FreeRows
from hotdelta.train.keys.index import KeyIndex
from hotdelta.train.keys.policies import Eviction, Examined
from hotdelta.train.keys.waiting import Waiting
from hotdelta.train.rows.outside_writes import tell_now
from hotdelta.train.tables.cells import cells_of, slice_of
from hotdelta.train.tables.growth import Growth
from hotdelta.train.tables.key_upkeep import UNKNOWN, Ids, KeyState, Moment
from hotdelta.train.tables.row_values import Array

logger = logging.getLogger(__name__)

# Columns of what is known of a row: how often it was trained, and when last.
COUNT, STEP, SECOND = 0, 1, 2
USAGE_COLUMNS = 3
FIRST_USAGE = (0, UNKNOWN, UNKNOWN)

_SLICE_ROWS = 1 << 16
_NEVER = np.iinfo(np.int64).max


class _Dated:
    """Rows to which something happened, in order: when, and in which epoch: how many cuts were taken before."""

    def __init__(self) -> None:
        self.rows = self.times = self._epochs = np.empty(0, np.int64)

    def add(self, rows: Ids, time: int, epoch: int) -> None:
        self.rows = np.concatenate([self.rows, rows])
        self.times = np.concatenate([self.times, np.full(len(rows), time, np.int64)])
        self._epochs = np.concatenate([self._epochs, np.full(len(rows), epoch, np.int64)])

    def take_before(self, epoch: int) -> Ids:
        """Take out what is older than the cut that began this epoch, and so part of it."""
        is_older = self._epochs < epoch
        taken = self.rows[is_older]
        self.keep(~is_older)
        return taken

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        self.rows, self.times, self._epochs = self.rows[which], self.times[which], self._epochs[which]

    def first_times(self, rows: Ids) -> Ids:
        """When it first happened to each of these rows; never is later than all."""
        known, first = np.unique(self.rows, return_index=True)
        at = np.minimum(np.searchsorted(known, rows), max(0, len(known) - 1))
        if not len(known):
            return np.full(len(rows), _NEVER, np.int64)
        return np.where(known[at] == rows, self.times[first][at], _NEVER)


class TableUpkeep:
    """Of one table with keys. The training thread calls its methods between steps; `cut` may be called in a pause.

    `note_committed` may be called by any thread. What steps do (rows that they deal) is noticed afterwards.
    """

    def __init__(
        self,
        name: str,
        *,
        rows: tf.Variable,
        growth: Growth,
        index: KeyIndex,
        free: FreeRows,
        usage: tf.Variable | None,
        eviction: Eviction,
        waiting: Waiting | None,
    ) -> None:
        self._name = name
        self._rows, self._growth = rows, growth
        self._index, self._free = index, free
        self._usage, self._eviction = usage, eviction
        self._waiting = waiting
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self._has_warned = False
        self._turns = EntrySweep(index)
        self._clear()

    def forget(self) -> None:
        """The table holds another state, of which nothing is known but what its variables say."""
        with self.lock:
            self._clear()
            self._free.replace(np.empty(0, np.int64))

    def forget_waiting(self) -> None:
        """What was known of keys without a row is of another policy."""
        if self._waiting is not None:
            with self.lock:
                self._waiting.forget_all()

    def _clear(self) -> None:
        self._is_begun = self._is_sweep_due = False
        self._epoch = 0
        self._committed: KeyState | None = None
        # How many keys the newest commit has; None: nobody counted.
        self._parent_live: int | None = 0
        # What happened since the newest commit: rows that keys got, rows from which keys went, and those keys.
        self._time = 0
        self._dealt, self._removed = _Dated(), _Dated()
        self._removed_keys = np.empty(0, np.int64)
        # Rows that no key has: of those whose end is not committed, and of those that may be dealt again.
        self._freed, self._ready = _Dated(), np.empty(0, np.int64)
        # Up to where rows that steps have dealt were noticed.
        self._known_used, self._known_free = 1, 0

    def begin(self, now: Moment) -> None:
        """What the variables hold is, or will be, the first state of a chain. Goes on with one that it knows.

        Rows of which nothing is known count as trained now: a policy may be younger than the table.
        """
        with self.lock:
            if not self._is_begun:
                self._clear()
                free = self._rows_without_key()[::-1]
                self._growth.reset_slots(free)
                self._free.replace(free)
                self._known_used, self._known_free = self._growth.in_use(), len(free)
                self._parent_live = self._live()
                self._is_begun = self._is_sweep_due = True
            if self._waiting is not None:
                self._waiting.begin(now)
            if self._usage is not None:
                for first, end in row_ranges(self._growth.in_use(), _SLICE_ROWS):
                    usage = slice_of(self._usage, first, end)
                    self.stamp(first + np.flatnonzero(usage[:, STEP] == UNKNOWN), now)

    def _rows_without_key(self) -> Ids:
        is_free = np.ones(self._growth.in_use(), np.bool_)
        is_free[0] = False
        for first, end in row_ranges(self._index.growth.in_use(), _SLICE_ROWS):
            held = slice_of(self._index.buckets, first, end)
            is_free[held[:, PLACES:].reshape(-1)] = False
        return np.flatnonzero(is_free).astype(np.int64)

    # What a cut tells of keys.

    def stamp(self, ids: Ids, now: Moment) -> None:
        """These rows were trained until now. Element by element: a step that is under way may count in these rows."""
        ids = ids[ids > 0]
        if self._usage is None or not len(ids):
            return
        at = np.stack([np.repeat(ids, 2), np.tile([STEP, SECOND], len(ids))], axis=1)
        values = np.tile(np.array([now.step, now.second], np.int64), len(ids))
        cells_of(self._usage).write_at(at, values)

    def cut(self) -> KeyState:
        """What a delta says of the keys; with the lock held since before its rows were taken."""
        with self.lock:
            self._follow()
            self._notice_dealt()
            # A key that got its row after the newest commit is not in it.
            is_old = self._removed.times < self._dealt.first_times(self._removed.rows)
            gone = np.unique(self._removed_keys[is_old])
            gone = np.setdiff1d(gone, self._turns.entries_of(gone).keys)
            self._epoch += 1
            live, parent = None if self._free.is_broken_off else self._live(), self._parent_live
            new = None if live is None or parent is None else live - parent + len(gone)
            return KeyState(deleted=gone, live=live, new=new, epoch=self._epoch)

    def note_committed(self, state: KeyState) -> None:
        with self.lock:
            self._committed = state
            self._is_sweep_due = True

    # What the training thread does between two steps.

    @property
    def is_sweep_due(self) -> bool:
        """Asked after every step."""
        return self._is_sweep_due

    def sweep(self, now: Moment) -> None:
        """After a commit: free the rows of keys that it has no more, and remove keys whose time has come."""
        with self.lock:
            self._is_sweep_due = False
            self._follow()
            self._notice_dealt()
            if self._free.is_broken_off:
                self._count_again()
            self._release()
            if self._eviction and self._usage is not None:
                self._evict(now)
            if self._waiting is not None:
                self._waiting.sweep(now)

    def remove(self, keys: Ids) -> int:
        """Remove keys, if they are there; how many were."""
        with self.lock:
            entries = self._turns.entries_of(np.unique(keys))
            if self._waiting is not None:
                self._waiting.remove(keys)
            self._remove(entries)
            return len(entries.keys)

    def note_replaced(self, old_keys: Ids, old_rows: Ids, count: int) -> None:
        """All keys have gone, and `count` others came, who have the first rows. With the lock held since before."""
        if not self._is_begun:
            return
        self._note_removed(old_keys, old_rows)
        self._dealt.add(np.arange(1, count + 1, dtype=np.int64), self._next_time(), self._epoch)
        self._freed.keep(self._freed.rows > count)
        without_key = np.arange(count + 1, self._growth.in_use(), dtype=np.int64)
        self._freed.add(np.setdiff1d(without_key, self._freed.rows), self._next_time(), self._epoch)
        self._ready = np.empty(0, np.int64)
        self._free.replace(self._ready)
        self._known_free = 0

    def _note_removed(self, keys: Ids, rows: Ids) -> None:
        self._notice_dealt()
        self._removed.add(rows, self._next_time(), self._epoch)
        self._removed_keys = np.concatenate([self._removed_keys, keys])

    def _next_time(self) -> int:
        self._time += 1
        return self._time

    def _follow(self) -> None:
        """Take in what was committed since."""
        state, self._committed = self._committed, None
        if state is not None:
            self._parent_live = state.live
            self._dealt.take_before(state.epoch)
            self._removed_keys = self._removed_keys[len(self._removed.take_before(state.epoch)) :]
            self._ready = np.concatenate([self._ready, self._freed.take_before(state.epoch)])

    def _notice_dealt(self) -> None:
        """Rows that steps have dealt: from the stack of free ones, and those that came into use."""
        used = self._growth.in_use()
        again, self._known_free = self._free.taken_since(self._known_free)
        further = np.arange(self._known_used, used, dtype=np.int64)
        self._dealt.add(np.concatenate([again, further]), self._next_time(), self._epoch)
        self._known_used = used

    def _count_again(self) -> None:
        """A step was broken off while it dealt rows: those that no key got wait like the rows of keys that went."""
        waiting = np.concatenate([self._free.read(), self._ready, self._freed.rows])
        leaked = np.setdiff1d(self._rows_without_key(), waiting)
        self._freed.add(leaked, self._next_time(), self._epoch)
        self._free.note_counted()

    def _release(self) -> None:
        """Rows whose keys are gone on disk too may be dealt again."""
        ready, self._ready = self._ready, np.empty(0, np.int64)
        if len(ready):
            self._growth.reset_slots(ready)
            tell_now(self._rows, ready)
            self._free.put(ready)
            self._known_free = self._free.count

    def _live(self) -> int:
        waiting = self._free.count + len(self._ready) + len(self._freed.rows)
        return self._growth.in_use() - 1 - waiting

    def _evict(self, now: Moment) -> None:
        self._warn_of_missing_times(now)
        live = self._live()
        entries = self._turns.next_entries(live=live, excess=self._eviction.excess(live))
        # What came since the last commit stays until the next one.
        entries = entries.only(~np.isin(entries.numbers, self._dealt.rows))
        examined = self._examine(entries, now)
        self._remove(entries.only(self._eviction.decide(examined, now, live=live)))

    def _examine(self, entries: Entries, now: Moment) -> Examined:
        """A row that was trained before event times were told counts as trained with the next cut."""
        usage = cells_of(self._usage).gather(entries.numbers)
        if self._eviction.needs_event_times and now.second != UNKNOWN:
            unknown = entries.numbers[usage[:, SECOND] == UNKNOWN]
            if len(unknown):
                tell_now(self._rows, unknown)
        return Examined(
            counts=usage[:, COUNT],
            steps=usage[:, STEP],
            seconds=usage[:, SECOND],
            half_squares=self._half_squares(entries.numbers) if self._eviction.needs_rows else np.empty(0),
        )

    def _half_squares(self, rows: Ids) -> Array:
        values = cells_of(self._rows).gather(rows).astype(np.float32)
        return np.asarray(0.5 * np.einsum("ij,ij->i", values, values))

    def _remove(self, entries: Entries) -> None:
        if not len(entries.keys):
            return
        self._turns.take_out(entries)
        self._note_removed(entries.keys, entries.numbers)
        self._freed.add(entries.numbers, self._time, self._epoch)

    def _warn_of_missing_times(self, now: Moment) -> None:
        if self._eviction.needs_event_times and now.second == UNKNOWN and not self._has_warned:
            self._has_warned = True
            event(
                logger,
                logging.WARNING,
                "keys go by event time, and training tells none",
                table=self._name,
                remedy="tell the event times of examples (docs/open-vocabulary.md), or use UntouchedSteps",
            )
