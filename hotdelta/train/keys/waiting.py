"""Keys that have no row yet, and what is known of them: how often they were seen, until that is enough.

Traced into the training look-up. What is known lies in variables that are saved with every commit, in files that no
server reads; what it takes of memory is bounded, because what waits for too long is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.bundle.row_memory import row_ranges
from hotdelta.chain.format import key_index
from hotdelta.tensorflow_internals import ResourceVariable
from hotdelta.train.keys.entries import Entries, EntrySweep
from hotdelta.train.keys.index import (
    BUCKETS,
    FEWEST_BUCKETS,
    ROWS,
    KeyIndex,
    buckets_for,
    done,
    first_counts,
    where_true,
)
from hotdelta.train.keys.initial_rows import random_words, u64
from hotdelta.train.keys.policies import (
    FILTER_COLUMNS,
    Admission,
    Chance,
    Examined,
    SeenTimes,
    SeenTimesInFilter,
)
from hotdelta.train.rows.outside_writes import tell_now, tell_of_all, tell_of_rows
from hotdelta.train.tables.cells import cells_of
from hotdelta.train.tables.growth import Growth, WaitingVariables, write_first_rows
from hotdelta.train.tables.key_upkeep import Ids, Moment

Array = npt.NDArray[Any]

# Of an entry of a key that waits: how often it was seen, and above that when last, which is never 0.
_COUNT_BITS = 20
_COUNT_MASK = (1 << _COUNT_BITS) - 1
# Between two commits so many times more may wait than afterwards.
_ROOM = 2

# What the counts of a filter hold: its blocks, how many new keys it has seen, and how many blocks were set back.
_BLOCKS, _SEEN, _SET_BACK = 0, 1, 2
_FILTER_SEED = 0x5EED
_COUNTER_BITS = 6
_SLICE_ROWS = 1 << 16


class Waiting(Protocol):
    """What decides which keys get rows. `sweep` and what is called at a load belong to the training thread."""

    def admit(self, keys: tf.Tensor, halves: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Which of these keys without a row get one now, and how often each was seen; `counts`: in this batch.

        A vector of different keys, with their fingerprints. The others are remembered.
        """
        ...

    def seen(self, keys: tf.Tensor, halves: tf.Tensor) -> tf.Tensor:
        """How often each of these keys was seen, in a graph; 0 where that is not known."""
        ...

    def begin(self, now: Moment) -> None:
        """Training goes on from here."""
        ...

    def sweep(self, now: Moment) -> None:
        """After a commit, between two steps: forget what waits for too long."""
        ...

    def remove(self, keys: Ids) -> None:
        """Forget these keys, as far as they can be told from others."""
        ...

    def forget_all(self) -> None:
        """Nothing that was counted before counts."""
        ...


class WaitingKeys:
    """Counts exactly, in an index of its own whose numbers are counts and last sights."""

    def __init__(
        self, policy: SeenTimes, buckets: tf.Variable, counts: tf.Variable, *, max_rows: int
    ) -> None:
        self._times = policy.times
        self._forgetting = policy.forgetting(max_rows)
        self._most = _room(policy, max_rows)
        self._buckets, self._counts = buckets, counts
        growth = Growth(buckets_for(self._most), self._counts, BUCKETS)
        growth.is_of_waiting = True
        growth.own(self._buckets)
        self._index = KeyIndex(self._buckets, self._counts, growth=growth)
        self._turns = EntrySweep(self._index)
        with tf.init_scope():
            # Up to which step is told after each commit: what is seen from then on counts as seen at it.
            self._now = ResourceVariable(tf.zeros([], tf.int64), trainable=False, name="told_step")

    def admit(self, keys: tf.Tensor, halves: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        numbers, places = self._index.locate(keys, halves)
        seen = counts + tf.bitwise.bitwise_and(numbers, tf.constant(_COUNT_MASK, tf.int64))
        comes = seen >= self._times
        stamp = (self._now.read_value() + 1) * (1 << _COUNT_BITS)
        entries = tf.where(comes, tf.zeros_like(seen), stamp + tf.minimum(seen, _COUNT_MASK))
        known = where_true(numbers > 0)
        self._index.write_numbers(tf.gather(places, known), tf.gather(entries, known))
        left = tf.reduce_sum(tf.cast(tf.logical_and(comes, numbers > 0), tf.int64))
        new = where_true(tf.logical_and(tf.logical_not(comes), tf.equal(numbers, 0)))
        room = self._most - (self._counts.read_value()[ROWS] - 1 - left)
        new = new[: tf.maximum(room, 0)]
        counted = self._index.count(tf.size(new, out_type=tf.int64) - left)

        def insert() -> tf.Tensor:
            entered = self._index.insert(*(tf.gather(each, new) for each in (keys, halves, entries)))
            return tf.size(entered)

        with tf.control_dependencies(done([counted])):
            tf.cond(tf.size(new) > 0, insert, lambda: 0)
        return comes, seen

    def seen(self, keys: tf.Tensor, halves: tf.Tensor) -> tf.Tensor:
        numbers, _ = self._index.locate(keys, halves)
        return tf.bitwise.bitwise_and(numbers, tf.constant(_COUNT_MASK, tf.int64))

    def begin(self, now: Moment) -> None:
        """Counts them: a step that was broken off may have entered fewer than it counted."""
        cells_of(self._now).assign(now.step)
        in_use = self._buckets_in_use()
        held = (len(self._turns.entries_in(buckets).keys) for buckets in in_use)
        counts = cells_of(self._counts)
        counts.assign([1 + sum(held), *counts.value()[1:]])

    def sweep(self, now: Moment) -> None:
        # What was seen since the last sweep is stamped with the step of that one: judged by it, nothing goes early.
        told_step = cells_of(self._now)
        told = Moment(int(told_step.value()))
        told_step.assign(now.step)
        live = int(cells_of(self._counts).value()[ROWS]) - 1
        entries = self._turns.next_entries(live=live, excess=self._forgetting.excess(live))
        examined = Examined(
            counts=entries.numbers & _COUNT_MASK,
            steps=(entries.numbers >> _COUNT_BITS) - 1,
            seconds=np.empty(0, np.int64),
            half_squares=np.empty(0),
        )
        self._forget(entries.only(self._forgetting.decide(examined, told, live=live)))

    def remove(self, keys: Ids) -> None:
        self._forget(self._turns.entries_of(keys))

    def _forget(self, gone: Entries) -> None:
        if len(gone.keys):
            self._turns.take_out(gone)
            counts = cells_of(self._counts)
            waiting, *extent = counts.value()
            counts.assign([waiting - len(gone.keys), *extent])

    def forget_all(self) -> None:
        for buckets in self._buckets_in_use():
            empty = np.zeros((len(buckets), key_index.BUCKET_COLUMNS), np.int64)
            write_first_rows(self._buckets, iter([(int(buckets[0]), empty)]))
        # What is in use stays in use: no table of a chain shrinks.
        counts = cells_of(self._counts)
        counts.assign([1, *counts.value()[1:]])
        tell_now(self._buckets, np.arange(self._index.growth.in_use(), dtype=np.int64))

    def _buckets_in_use(self) -> Iterator[Ids]:
        for first, end in row_ranges(self._index.growth.in_use(), _SLICE_ROWS):
            yield np.arange(first, end, dtype=np.int64)


class WaitingFilter:
    """Counts in blocks of counters; a key has some of one block, and the least of them is its count, or too much."""

    def __init__(self, policy: SeenTimesInFilter, blocks: tf.Variable, counts: tf.Variable) -> None:
        self._policy = policy
        self._blocks, self._counts = blocks, counts
        growth = Growth(policy.blocks, self._counts, _BLOCKS)
        growth.is_of_waiting = True
        growth.own(self._blocks)

    def admit(self, keys: tf.Tensor, halves: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del halves
        places = self._places(keys)
        known = self._seen_at(places)
        seen = known + counts
        comes = seen >= self._policy.times
        waits = where_true(tf.logical_not(comes))
        places, values = tf.gather(places, waits), tf.cast(tf.gather(seen, waits), tf.uint8)
        # The largest and not the sum: a counter that several keys share counts no more than it must.
        written = tf.raw_ops.ResourceScatterNdMax(
            ref=self._blocks.handle,
            indices=places,
            updates=tf.repeat(values[:, tf.newaxis], self._policy.counters, axis=1),
        )
        tell_of_rows(self._blocks, done([written]), places[:, 0, 0])
        new = tf.reduce_sum(tf.cast(tf.equal(tf.gather(known, waits), 0), tf.int64))
        tf.raw_ops.ResourceScatterAdd(
            resource=self._counts.handle, indices=[_SEEN], updates=tf.reshape(new, [1])
        )
        return comes, seen

    def seen(self, keys: tf.Tensor, halves: tf.Tensor) -> tf.Tensor:
        del halves
        return self._seen_at(self._places(keys))

    def _seen_at(self, places: tf.Tensor) -> tf.Tensor:
        held = tf.raw_ops.ResourceGatherNd(resource=self._blocks.handle, indices=places, dtype=tf.uint8)
        return tf.reduce_min(tf.cast(held, tf.int64), axis=1)

    def _places(self, keys: tf.Tensor) -> tf.Tensor:
        """The counters of each key: [keys, counters, 2]."""
        words = random_words(keys, 2, seed=_FILTER_SEED)
        block = tf.cast(tf.bitwise.right_shift(words[:, 0], u64(1)), tf.int64) % self._policy.blocks
        shifts = np.arange(self._policy.counters, dtype=np.uint64) * np.uint64(_COUNTER_BITS)
        columns = tf.bitwise.bitwise_and(
            tf.bitwise.right_shift(words[:, 1, tf.newaxis], shifts), u64(FILTER_COLUMNS - 1)
        )
        columns = tf.cast(columns, tf.int64)
        return tf.stack([tf.broadcast_to(block[:, tf.newaxis], tf.shape(columns)), columns], axis=2)

    def begin(self, now: Moment) -> None:
        """It knows no time."""

    def sweep(self, now: Moment) -> None:
        del now
        blocks, seen, set_back = (int(count) for count in cells_of(self._counts).value())
        due = seen * blocks // self._policy.keys
        numbers = np.arange(max(set_back, due - blocks), due, dtype=np.int64) % blocks
        if len(numbers):
            cells_of(self._blocks).write(numbers, np.zeros([len(numbers), FILTER_COLUMNS], np.uint8))
            tell_now(self._blocks, numbers)
            cells_of(self._counts).assign([blocks, seen, due])

    def remove(self, keys: Ids) -> None:
        """Others are counted in the same places."""

    def forget_all(self) -> None:
        layout = WaitingLayout.of(self._policy, max_rows=0)
        write_first_rows(self._blocks, layout.first_slices())
        cells_of(self._counts).assign(layout.first_counts)
        tell_of_all(self._blocks, ())


class Draws:
    """Draws for each key; what it draws next is known from how often it has drawn."""

    def __init__(self, policy: Chance, *, counts: tf.Variable) -> None:
        self._policy = policy
        self._counts = counts

    def admit(self, keys: tf.Tensor, halves: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del halves
        number = self._counts.read_value()[0]
        tf.raw_ops.ResourceScatterAdd(
            resource=self._counts.handle, indices=[0], updates=tf.constant([1], tf.int64)
        )
        words = random_words(keys + number * _DRAW_STEP, 1, seed=self._policy.seed)[:, 0]
        drawn = tf.cast(tf.cast(tf.bitwise.right_shift(words, u64(11)), tf.int64), tf.float64) / 2.0**53
        # That none of so many draws hits: (1 - p) ** count.
        missed = tf.pow(tf.constant(1.0 - self._policy.probability, tf.float64), tf.cast(counts, tf.float64))
        return drawn < 1.0 - missed, counts

    def seen(self, keys: tf.Tensor, halves: tf.Tensor) -> tf.Tensor:
        del halves
        return tf.zeros_like(keys)

    def begin(self, now: Moment) -> None:
        """It knows no time."""

    def sweep(self, now: Moment) -> None:
        """Nobody waits."""

    def remove(self, keys: Ids) -> None:
        """Nothing is known of any."""

    def forget_all(self) -> None:
        cells_of(self._counts).assign([0])


# Odd, so that the draws of one key do not come again.
_DRAW_STEP = 0x2545F4914F6CDD1D


@dataclass(frozen=True, slots=True, eq=False)
class WaitingLayout:
    """What a policy counts in. `kind`: what is counted under another name is of no use to it.

    `shape`: of the table, with all that is reserved; None: it needs none. `first_rows`: how many are in use at first.
    """

    kind: str
    first_counts: Array
    shape: tuple[int, int] | None = None
    dtype: tf.DType = tf.int64
    first_rows: int = 0

    @classmethod
    def of(cls, policy: Admission, *, max_rows: int) -> WaitingLayout:
        match policy:
            case SeenTimes():
                shape = buckets_for(_room(policy, max_rows)), key_index.BUCKET_COLUMNS
                return cls("keys", first_counts(), shape, first_rows=FEWEST_BUCKETS)
            case SeenTimesInFilter():
                kind = f"filter-{policy.blocks}-{policy.counters}"
                counts = np.array([policy.blocks, 0, 0], np.int64)
                return cls(kind, counts, (policy.blocks, FILTER_COLUMNS), tf.uint8, policy.blocks)
            case Chance():
                return cls("draws", np.zeros(1, np.int64))

    def first_slices(self) -> Iterator[tuple[int, Array]]:
        """The first values of the table: (first row, rows)."""
        columns = 0 if self.shape is None else self.shape[1]
        for first, end in row_ranges(self.first_rows, _SLICE_ROWS):
            yield first, np.zeros((end - first, columns), self.dtype.as_numpy_dtype)


def _room(policy: SeenTimes, max_rows: int) -> int:
    """How many keys may wait at the most, which is between two commits."""
    return _ROOM * (policy.most_waiting or max_rows)


def waiting_in(policy: Admission, variables: WaitingVariables, *, max_rows: int) -> Waiting:
    """What decides by the policy, over variables that hold its first values, or those of a checkpoint."""
    if isinstance(policy, Chance):
        return Draws(policy, counts=variables.counts)
    if variables.table is None:
        raise ValueError(f"{policy} counts in a table")
    if isinstance(policy, SeenTimes):
        return WaitingKeys(policy, variables.table, variables.counts, max_rows=max_rows)
    return WaitingFilter(policy, variables.table, variables.counts)
