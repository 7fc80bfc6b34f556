"""Which row has a key: an index of buckets, in variables that are saved like every table.

A bucket is a row of 16 numbers: eight keys, then the numbers of their rows; row 0 stands for an empty place. A key lies
in one of two buckets, which the two halves of its fingerprint choose, so that a look-up gathers two rows. The number of
buckets grows a few at a time (linear hashing): bucket `b` takes from the one that has the number of `b` without its
highest bit what belongs to `b` now. A key keeps its row for ever; only its entry here ever moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.format.key_index import COUNTS_SHAPE, PLACES, mask_of
from hotdelta.train.keys.free_rows import FreeRows
from hotdelta.train.rows.outside_writes import tell_of_rows
from hotdelta.train.tables.growth import Growth

# Fuller, and too many keys would find both of their buckets full: 4 of 1,000 do at 0.6, which is cheap to mend.
MOST_LOAD = 0.6
FEWEST_BUCKETS = 64
# The index grows by so many buckets: splitting one takes as long as splitting these.
SPLIT_AT_ONCE = 64

# What `counts` holds.
ROWS, BUCKETS, MASK = 0, 1, 2

WriteRows = Callable[[tf.Tensor, tf.Tensor], list[tf.Operation]]
Admit = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def first_counts() -> npt.NDArray[np.int64]:
    """Of an index without keys."""
    return np.array([1, FEWEST_BUCKETS, mask_of(FEWEST_BUCKETS)], np.int64)


def buckets_for(rows: int) -> int:
    """How many are reserved for so many rows: with room for keys that need it to find a place."""
    return max(2 * FEWEST_BUCKETS, -(-rows * 5 // (2 * PLACES)))


def fingerprints(keys: tf.Tensor) -> tf.Tensor:
    """Two int32 for each key (a vector): the halves of its farmhash64."""
    digests = tf.raw_ops.Fingerprint(data=keys, method="farmhash64")
    # Without the reshape Grappler would merge this bitcast with one of the keys into one that does not exist.
    return tf.bitcast(tf.reshape(digests, [-1, 2, 4]), tf.int32)


@dataclass(frozen=True, slots=True)
class Extent:
    """How many buckets are in use, and the mask that their addresses are made with."""

    buckets: tf.Tensor
    mask: tf.Tensor

    def candidates(self, halves: tf.Tensor) -> tf.Tensor:
        """The two buckets of each key."""
        near = tf.bitwise.bitwise_and(halves, self.mask)
        # One that is not in use yet is still part of the one that it will be split from.
        folded = tf.bitwise.bitwise_and(near, tf.bitwise.right_shift(self.mask, 1))
        # Not tf.where: it can broadcast, which costs as much as all the rest here.
        return tf.compat.v1.where(near >= self.buckets, folded, near)


class KeyIndex:
    """A number above 0 for each key. Traced into graphs; what writes belongs to one step at a time.

    `counts` says how many keys there are, and one more; whoever inserts and removes keys counts them.
    """

    def __init__(self, buckets: tf.Variable, counts: tf.Variable, *, growth: Growth) -> None:
        """`growth`: of the buckets."""
        self.buckets = buckets
        self.counts = counts
        self.growth = growth
        self._most_buckets = growth.capacity

    def find(self, keys: tf.Tensor) -> tf.Tensor:
        """The row of each key of a vector; 0 where it has none."""
        return self._find(keys, fingerprints(keys), self._extent())

    def locate(self, keys: tf.Tensor, halves: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The number of each key, 0 where it has none, and its place: [keys, 2], for `write_numbers`."""
        candidates = self._extent().candidates(halves)
        held, numbers = self._read(candidates)
        is_key = tf.logical_and(tf.equal(held, tf.reshape(keys, [-1, 1, 1])), numbers > 0)
        is_key = tf.reshape(tf.cast(is_key, tf.int64), [-1, 2 * PLACES])
        place = tf.argmax(is_key, axis=1, output_type=tf.int32)
        bucket = tf.gather(candidates, place // PLACES, batch_dims=1)
        return (
            tf.reduce_max(is_key * tf.reshape(numbers, [-1, 2 * PLACES]), axis=1),
            tf.stack([bucket, PLACES + place % PLACES], axis=1),
        )

    def write_numbers(self, places: tf.Tensor, numbers: tf.Tensor) -> None:
        """Of keys that are there; 0 takes them out."""
        written = tf.raw_ops.ResourceScatterNdUpdate(ref=self.buckets.handle, indices=places, updates=numbers)
        tell_of_rows(self.buckets, done([written]), places[:, 0])

    def count(self, more: tf.Tensor) -> tf.Operation | None:
        """So many keys more; or less."""
        return tf.raw_ops.ResourceScatterAdd(
            resource=self.counts.handle, indices=[ROWS], updates=tf.reshape(more, [1])
        )

    def entries(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys and their numbers, in a graph."""
        used = self.counts.read_value()[BUCKETS]
        keys, numbers = (tf.reshape(each, [-1]) for each in self._read(tf.range(used)[:, tf.newaxis]))
        there = where_true(numbers > 0)
        return tf.gather(keys, there), tf.gather(numbers, there)

    def _extent(self) -> Extent:
        counts = tf.unstack(tf.cast(self.counts.read_value(), tf.int32), num=COUNTS_SHAPE[0])
        return Extent(counts[BUCKETS], counts[MASK])

    def _find(self, keys: tf.Tensor, halves: tf.Tensor, extent: Extent) -> tf.Tensor:
        held, rows = self._read(extent.candidates(halves))
        is_key = tf.cast(tf.equal(held, tf.reshape(keys, [-1, 1, 1])), tf.int64)
        return tf.reduce_max(is_key * rows, axis=[1, 2])

    def _read(self, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The keys and the rows that buckets hold: [..., PLACES] each."""
        # Not tf.split, which copies the same bytes in twice the time.
        halves = tf.reshape(self.buckets.sparse_read(numbers), [-1, *numbers.shape[1:], 2, PLACES])
        keys, rows = tf.unstack(halves, axis=-2)
        return keys, rows

    def insert(self, keys: tf.Tensor, halves: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Enter new keys, which are counted already, in rounds: in each of them one key for each bucket.

        All are there when the result is.
        """
        wanted = self._wanted_buckets()

        def one_round(
            keys: tf.Tensor, halves: tf.Tensor, rows: tf.Tensor, wanted: tf.Tensor
        ) -> list[tf.Tensor]:
            extent = self._grow(wanted)
            candidates = extent.candidates(halves)
            held = self._read(candidates)[1]
            is_free = tf.cast(tf.equal(held, 0), tf.int32)
            num_free = tf.reduce_sum(is_free, axis=2)
            choice = tf.argmax(num_free, axis=1, output_type=tf.int32)
            bucket = tf.gather(candidates, choice, batch_dims=1)
            place = tf.argmax(tf.gather(is_free, choice, batch_dims=1), axis=1, output_type=tf.int32)
            has_room = tf.reduce_max(num_free, axis=1) > 0
            wins = tf.logical_and(has_room, _is_first(bucket))
            # Not tf.boolean_mask, which is twenty operations each time.
            winners, losers = where_true(wins), where_true(tf.logical_not(wins))
            entered = self._enter(*(tf.gather(each, winners) for each in (keys, rows, bucket, place)))
            with tf.control_dependencies(done(entered)):
                stuck = where_true(tf.logical_not(has_room))
                wanted = tf.cond(
                    tf.size(stuck) > 0,
                    lambda: self._make_room(tf.gather(candidates, stuck[0]), extent),
                    lambda: wanted,
                )
                return [*(tf.gather(each, losers) for each in (keys, halves, rows)), wanted]

        vector = tf.TensorShape([None])
        left = tf.while_loop(
            lambda keys, *_: tf.size(keys) > 0,
            one_round,
            [keys, halves, rows, wanted],
            shape_invariants=[vector, tf.TensorShape([None, 2]), vector, tf.TensorShape([])],
        )
        return left[0]

    def _wanted_buckets(self) -> tf.Tensor:
        """As many as the rows that are dealt need, rounded up."""
        needed = tf.cast(self.counts.read_value()[ROWS], tf.float64) / (PLACES * MOST_LOAD)
        rounded = tf.cast(tf.math.ceil(needed / SPLIT_AT_ONCE), tf.int32) * SPLIT_AT_ONCE
        return tf.minimum(rounded, self._most_buckets)

    def _enter(
        self, keys: tf.Tensor, rows: tf.Tensor, bucket: tf.Tensor, place: tf.Tensor
    ) -> list[tf.Operation]:
        """Write keys into empty places, each before the row that makes it an entry."""
        at = tf.stack([bucket, place], axis=1)
        written = tf.raw_ops.ResourceScatterNdUpdate(
            ref=self.buckets.handle,
            indices=tf.concat([at, at + tf.constant([0, PLACES])], axis=0),
            updates=tf.concat([keys, rows], axis=0),
        )
        tell_of_rows(self.buckets, done([written]), bucket)
        return [written]

    def _make_room(self, full: tf.Tensor, extent: Extent) -> tf.Tensor:
        """Move one entry of two full buckets to the other bucket of its key. How many buckets are wanted then.

        Where none can be moved, which is a matter of very bad luck, there have to be more of them.
        """
        keys, rows = (tf.reshape(each, [-1]) for each in self._read(full))
        own = tf.repeat(full, PLACES)
        candidates = extent.candidates(fingerprints(keys))
        other = tf.where(tf.equal(candidates[:, 0], own), candidates[:, 1], candidates[:, 0])
        is_free = tf.cast(tf.equal(self._read(other)[1], 0), tf.int32)
        num_free = tf.reduce_sum(is_free, axis=1)
        best = tf.argmax(num_free, axis=0, output_type=tf.int32)

        def move() -> tf.Tensor:
            place = tf.argmax(is_free[best], axis=0, output_type=tf.int32)
            moved = (keys[best], rows[best], other[best], place)
            entered = self._enter(*(each[tf.newaxis] for each in moved))
            at = tf.stack([own[best], PLACES + best % PLACES])
            with tf.control_dependencies(done(entered)):
                cleared = tf.raw_ops.ResourceScatterNdUpdate(
                    ref=self.buckets.handle, indices=at[tf.newaxis], updates=tf.zeros([1], tf.int64)
                )
            tell_of_rows(self.buckets, done([cleared]), own[best][tf.newaxis])
            with tf.control_dependencies(done([cleared])):
                return tf.identity(extent.buckets)

        more = extent.buckets + tf.maximum(extent.buckets // 8, 1)
        return tf.cond(num_free[best] > 0, move, lambda: more)

    def _grow(self, wanted: tf.Tensor) -> Extent:
        """Split buckets until there are so many."""
        is_possible = tf.debugging.Assert(
            wanted <= self._most_buckets,
            ["the index of a table has no room for more keys; raise its max_rows"],
        )
        with tf.control_dependencies(done([is_possible])):
            start = self._extent()
        buckets, mask = tf.while_loop(
            lambda buckets, _: buckets < wanted,
            lambda buckets, mask: self._split(Extent(buckets, mask), wanted),
            [start.buckets, start.mask],
        )
        return Extent(buckets, mask)

    def _split(self, old: Extent, wanted: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Take as many buckets into use as share a highest bit. What moves keeps its place in the bucket."""
        mask = tf.where(old.buckets > old.mask, 2 * old.mask + 1, old.mask)
        new = Extent(tf.minimum(wanted, mask + 1), mask)
        numbers = tf.range(old.buckets, new.buckets)
        sources = tf.bitwise.bitwise_and(numbers, tf.bitwise.right_shift(mask, 1))
        keys, rows = self._read(sources)
        candidates = tf.reshape(new.candidates(fingerprints(tf.reshape(keys, [-1]))), [-1, PLACES, 2])
        stays = tf.reduce_any(tf.equal(candidates, sources[:, tf.newaxis, tf.newaxis]), axis=2)
        kept = tf.where(stays, rows, 0)
        taken = self._write(numbers, tf.concat([keys, rows - kept], axis=1), [])
        left = self._write(sources, tf.concat([keys, kept], axis=1), taken)
        counts = tf.cast(tf.stack([new.buckets, new.mask]), tf.int64)
        with tf.control_dependencies(done(left)):
            counted = tf.raw_ops.ResourceScatterUpdate(
                resource=self.counts.handle, indices=[BUCKETS, MASK], updates=counts
            )
        with tf.control_dependencies(done([counted])):
            return tf.identity(new.buckets), tf.identity(new.mask)

    def _write(self, numbers: tf.Tensor, buckets: tf.Tensor, after: list[tf.Operation]) -> list[tf.Operation]:
        with tf.control_dependencies(done(after)):
            written = tf.raw_ops.ResourceScatterUpdate(
                resource=self.buckets.handle, indices=numbers, updates=buckets
            )
        tell_of_rows(self.buckets, done([written]), numbers)
        return [written]


class RowIndex(KeyIndex):
    """Its numbers are rows, which it deals to new keys."""

    def __init__(
        self, buckets: tf.Variable, counts: tf.Variable, *, growth: Growth, free: FreeRows, most_rows: int
    ) -> None:
        """`most_rows`: with row 0, which is dealt to nobody."""
        super().__init__(buckets, counts, growth=growth)
        self.free = free
        self._most_rows = most_rows

    def find_or_insert(self, keys: tf.Tensor, write_rows: WriteRows) -> tf.Tensor:
        """The row of each key; a vector of different ones. New keys get rows, as long as there are any.

        `write_rows(rows, keys)` writes what new rows begin with, and returns the writing operations. Nobody finds a
        row before that.
        """
        halves = fingerprints(keys)
        rows = self._find(keys, halves, self._extent())
        missing = where_true(tf.equal(rows, 0))

        def insert() -> tf.Tensor:
            dealt = self._deal(tf.gather(keys, missing), tf.gather(halves, missing), write_rows)
            return tf.tensor_scatter_nd_update(rows, missing[:, tf.newaxis], dealt)

        return tf.cond(tf.size(missing) > 0, insert, lambda: rows)

    def find_or_admit(
        self, keys: tf.Tensor, counts: tf.Tensor, write_rows: WriteRows, admit: Admit
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The same where not every new key gets a row; and how often each key was seen, if it gets one now.

        `admit(keys, halves, counts)` says of keys without a row which ones get one, and how often each was seen;
        `counts`: how often in this batch.
        """
        halves = fingerprints(keys)
        rows = self._find(keys, halves, self._extent())
        missing = where_true(tf.equal(rows, 0))

        def insert() -> tuple[tf.Tensor, tf.Tensor]:
            new_keys, new_halves = tf.gather(keys, missing), tf.gather(halves, missing)
            comes, seen = admit(new_keys, new_halves, tf.gather(counts, missing))
            coming = where_true(comes)

            def deal() -> tf.Tensor:
                dealt = self._deal(tf.gather(new_keys, coming), tf.gather(new_halves, coming), write_rows)
                return tf.tensor_scatter_nd_update(rows, tf.gather(missing, coming)[:, tf.newaxis], dealt)

            found = tf.cond(tf.size(coming) > 0, deal, lambda: rows)
            return found, tf.tensor_scatter_nd_update(counts, missing[:, tf.newaxis], seen)

        found, seen = tf.cond(tf.size(missing) > 0, insert, lambda: (rows, counts))
        return found, seen

    def _deal(self, keys: tf.Tensor, halves: tf.Tensor, write_rows: WriteRows) -> tf.Tensor:
        """Rows for new keys: 0 for those that come when all are dealt."""
        used, wanted = self.counts.read_value()[ROWS], tf.size(keys, out_type=tf.int64)
        with tf.control_dependencies(done([self.free.begin_dealing()])):
            again = self.free.take(wanted)
        further = tf.minimum(wanted - tf.size(again, out_type=tf.int64), self._most_rows - used)
        rows = tf.concat([again, tf.range(used, used + further)], axis=0)
        count = tf.size(rows, out_type=tf.int64)
        keys, halves, left_out = keys[:count], halves[:count], wanted - count
        with tf.control_dependencies(done(write_rows(rows, keys))):
            dealt = self.count(further)
        with tf.control_dependencies(done([dealt])):
            entered = self.insert(tf.identity(keys), halves, rows)
        with tf.control_dependencies([entered]):
            self.free.end_dealing()
        return tf.concat([rows, tf.zeros(left_out[tf.newaxis], tf.int64)], axis=0)


def where_true(is_one: tf.Tensor) -> tf.Tensor:
    """The places of a vector that are true."""
    return tf.reshape(tf.where(is_one), [-1])


def _is_first(values: tf.Tensor) -> tf.Tensor:
    """For each value of a vector whether no earlier one is equal."""
    _, groups = tf.unique(values)
    numbers = tf.range(tf.size(values))
    first = tf.math.unsorted_segment_min(numbers, groups, tf.size(values))
    return tf.equal(tf.gather(first, groups), numbers)


def done(operations: Sequence[tf.Operation | None]) -> list[tf.Operation]:
    """Those of a graph; what is run eagerly has happened."""
    return [operation for operation in operations if operation is not None]
