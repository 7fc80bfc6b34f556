"""Entries of an index, examined bucket by bucket in turn, and taken out. Between steps, on the training thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hotdelta.chain.format import key_index
from hotdelta.chain.format.key_index import PLACES
from hotdelta.train.keys.index import KeyIndex
from hotdelta.train.rows.outside_writes import tell_now
from hotdelta.train.tables.cells import cells_of
from hotdelta.train.tables.key_upkeep import Ids

# After each commit so many buckets are examined, or one in so many: all of them within so many commits.
LEAST_BUCKETS = 1024
SWEEP_COMMITS = 100
# To find those that were used least, so many keys are examined for each one that has to go.
EXAMINED_FOR_EACH = 8
# Odd, so that each bucket has its turn, and near the golden ratio of 2**32, so that neighbours in turn lie far apart.
_STRIDE = 0x9E3779B1


@dataclass(frozen=True, slots=True)
class Entries:
    """Where each lies, its key and its number."""

    buckets: Ids
    places: Ids
    keys: Ids
    numbers: Ids

    def only(self, which: npt.NDArray[np.bool_]) -> Entries:
        return Entries(self.buckets[which], self.places[which], self.keys[which], self.numbers[which])


class EntrySweep:
    """Goes through the buckets of one index in turn."""

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._cursor = 0

    def next_entries(self, *, live: int, excess: int) -> Entries:
        """Those of the buckets whose turn it is. `excess`: how many of the `live` keys are too many.

        Not in the order of their numbers: the first ones were split, and hold fewer keys than those that are still to
        be split, so that of few keys the least used would go, and soon after of many.
        """
        buckets = self._index.growth.in_use()
        wanted = max(LEAST_BUCKETS, -(-buckets // SWEEP_COMMITS))
        if excess:
            wanted = max(wanted, -(-EXAMINED_FOR_EACH * excess * buckets // live))
        mask = key_index.mask_of(buckets)
        count = min(-(-wanted * (mask + 1) // buckets), mask + 1)
        numbers = (self._cursor + np.arange(count, dtype=np.int64)) * _STRIDE & mask
        self._cursor = (self._cursor + count) & mask
        return self.entries_in(np.sort(numbers[numbers < buckets]))

    def entries_in(self, buckets: Ids) -> Entries:
        held = cells_of(self._index.buckets).gather(buckets)
        at, places = np.nonzero(held[:, PLACES:])
        return Entries(buckets[at], places, held[at, places], held[at, PLACES + places])

    def entries_of(self, keys: Ids) -> Entries:
        """Of those of the keys that are there."""
        entries = self.entries_in(np.unique(key_index.candidate_buckets(keys, self._index.growth.in_use())))
        return entries.only(np.isin(entries.keys, keys))

    def take_out(self, entries: Entries) -> None:
        """Empty their places. Whoever counts keys counts them."""
        at = np.stack([entries.buckets, PLACES + entries.places], axis=1)
        cells_of(self._index.buckets).write_at(at, np.zeros(len(at), np.int64))
        tell_now(self._index.buckets, np.unique(entries.buckets))
