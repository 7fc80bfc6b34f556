"""The index of a table with keys: like a dictionary, whatever keys come in whatever order."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given

from hotdelta.chain.format import key_index
from hotdelta.train.keys.index import FEWEST_BUCKETS
from hotdelta.train.keys.initial_rows import UniformRows
from hotdelta.train.keys.table import KeyedTable, TableSettings
from hotdelta.train.tables.growth import growth_of

pytestmark = pytest.mark.optimized

EXTREMES = [0, -1, 1, 2**63 - 1, -(2**63)]
VECTOR = [tf.TensorSpec([None], tf.int64)]


class Watched:
    """A table, its graphs, and what a dictionary would say."""

    def __init__(self, max_rows: int = 4000) -> None:
        settings = TableSettings(4, max_rows, UniformRows(-1.0, 1.0), (0.0,) * 4)
        counts = tf.Variable(settings.first_counts, trainable=False)
        self.table = KeyedTable(
            settings,
            counts=counts,
            index=settings.make_index(counts, name="index"),
            rows=settings.make_rows(counts, name="rows"),
        )
        self.rows_of: dict[int, int] = {}
        index = self.table.index
        self._insert = tf.function(
            lambda keys: index.find_or_insert(keys, self.table._write_first_rows), VECTOR, autograph=False
        )
        self._find = tf.function(index.find, VECTOR, autograph=False)

    def clear(self) -> None:
        """As it was made: `assign` would leave what was in use in use."""
        self.table.counts.assign(self.table.settings.first_counts)
        tf.raw_ops.ResourceScatterUpdate(
            resource=self.table.index.buckets.handle,
            indices=range(FEWEST_BUCKETS),
            updates=np.zeros((FEWEST_BUCKETS, key_index.BUCKET_COLUMNS), np.int64),
        )
        self.rows_of.clear()

    def insert(self, keys: Iterable[int]) -> None:
        unique = list(dict.fromkeys(keys))
        rows = self._insert(tf.constant(unique, tf.int64)).numpy().tolist()
        for key, row in zip(unique, rows, strict=True):
            assert self.rows_of.setdefault(key, row) == row

    def find(self, keys: Iterable[int]) -> list[int]:
        found: list[int] = self._find(tf.constant(list(keys), tf.int64)).numpy().tolist()
        return found

    def buckets(self) -> Any:
        growth = growth_of(self.table.index.buckets)
        assert growth is not None
        return tf.gather(self.table.index.buckets, range(growth.in_use())).numpy()

    def check(self) -> None:
        known = list(self.rows_of)
        assert self.find(known) == list(self.rows_of.values())
        assert 0 not in self.rows_of.values()
        assert len(set(self.rows_of.values())) == len(self.rows_of)
        counts = key_index.Counts.of(self.table.counts.numpy())
        assert counts.rows == len(self.rows_of) + 1
        buckets = self.buckets()
        assert key_index.why_malformed(np.arange(len(buckets)), buckets, counts) == ""
        assert sorted(key_index.items_of(buckets)[0].tolist()) == sorted(known)


@cache
def watched() -> Watched:
    """One for all examples: tracing is what takes time."""
    return Watched()


KEYS = st.one_of(
    st.sampled_from(EXTREMES),
    st.integers(0, 40),
    st.integers(0, 200).map(lambda number: number << 20),
    st.integers(-(2**63), 2**63 - 1),
)


@given(st.lists(st.lists(KEYS, max_size=300), max_size=6), st.lists(KEYS, max_size=30))
def test_it_is_a_dictionary(batches: list[list[int]], others: list[int]) -> None:
    index = watched()
    index.clear()
    for keys in batches:
        index.insert(keys)
    index.check()
    assert index.find(others) == [index.rows_of.get(key, 0) for key in others]


@pytest.mark.parametrize("stride", [1, 2**20, -(2**40)])
def test_many_keys_keep_their_rows_while_it_grows(stride: int) -> None:
    index = Watched(max_rows=20_000)
    for first in range(0, 20_000, 1_000):
        index.insert(range(first * stride, (first + 1_000) * stride, stride))
    index.check()
    assert len(index.buckets()) > 4_000


def test_keys_that_all_want_the_same_buckets_find_a_place() -> None:
    """More than two buckets hold: entries move to their other bucket, and then buckets are split."""
    index = watched()
    index.clear()
    keys = np.arange(4_000_000)
    wanted = key_index.candidate_buckets(keys, 64)
    crowded = keys[(wanted == wanted[0]).all(axis=1)][:200].tolist()
    for first in range(0, len(crowded), 7):
        index.insert(crowded[first : first + 7])
    index.check()
    assert len(crowded) == 200


def test_a_full_table_deals_no_more_rows() -> None:
    index = Watched(max_rows=100)
    index.insert(range(90))
    found = index._insert(tf.range(80, 120, dtype=tf.int64)).numpy()
    assert (found[:20] > 0).all()
    assert not found[20:].any()
    assert index.find(range(100, 120)) == [0] * 20


def test_readers_never_find_the_row_of_another_key() -> None:
    """While keys are inserted, whoever looks up finds no row, or the one with the values of the key."""
    index = Watched(max_rows=30_000)
    initial = index.table.settings.initial
    stop = threading.Event()

    @tf.function(autograph=False)
    def look(keys: tf.Tensor) -> tf.Tensor:
        rows = index.table.index.find(keys)
        values = tf.gather(index.table.rows, rows)
        right = tf.reduce_all(tf.equal(values, initial.rows(keys, 4)), axis=1)
        return tf.reduce_sum(tf.cast((rows > 0) & ~right, tf.int32))

    keys = tf.range(0, 30_000, dtype=tf.int64)

    def read() -> int:
        wrong = rounds = 0
        while not stop.is_set() or not rounds:
            wrong += int(look(keys))
            rounds += 1
        return wrong

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            for first in range(0, 30_000, 500):
                index.insert(range(first, first + 500))
        finally:
            stop.set()
        assert reader.result() == 0
    index.check()
