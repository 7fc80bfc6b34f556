"""The index of a table with an open vocabulary: in which bucket a key lies, and what a bucket may hold.

A bucket is a row of 16 integers: 8 keys, then their 8 row numbers. Row number 0 is an empty place, because row 0 of the
table is the answer to unknown keys and never dealt to one. Linear hashing: bucket by bucket the index grows from one
power of two to the next. docs/chain-format.md, section 9. Never reads a file and never uses TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PLACES = 8
BUCKET_COLUMNS = 2 * PLACES
COUNTS_SHAPE = (3,)

Integers = npt.NDArray[np.int64]
Fingerprints = npt.NDArray[np.uint64]

# Constants of farmhash's Fingerprint64 for texts of 8 bytes.
_K2 = np.uint64(0x9AE16A3B2F90404F)
_MULTIPLIER = _K2 + np.uint64(16)
# Keys are looked up so many at a time, because each one brings two whole buckets into memory.
_KEYS_AT_A_TIME = 65_536


class BucketsFullError(ValueError):
    """Keys were left over because both of their buckets are full: take more buckets."""

    def __init__(self, leftover: int, num_buckets: int) -> None:
        super().__init__(f"{leftover} keys find no place in {num_buckets} buckets")
        self.leftover = leftover


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of a key table is in use, as its third variable says: [rows, buckets, mask], int64."""

    rows: int
    buckets: int
    mask: int

    @classmethod
    def of(cls, value: npt.NDArray[np.int64]) -> Counts:
        """Raises ValueError for another shape."""
        rows, buckets, mask = (int(number) for number in value)
        return cls(rows, buckets, mask)

    def why_wrong(self, *, max_rows: int, max_buckets: int) -> str:
        """Empty when nothing is."""
        if not 1 <= self.rows <= max_rows:
            return f"{self.rows} rows are in use of {max_rows}"
        if not 1 <= self.buckets <= max_buckets:
            return f"{self.buckets} buckets are in use of {max_buckets}"
        if self.mask != mask_of(self.buckets):
            return f"the mask of {self.buckets} buckets is {mask_of(self.buckets)}, and not {self.mask}"
        return ""


def mask_of(num_buckets: int) -> int:
    """The smallest power of two that is not less, minus one."""
    return (1 << (num_buckets - 1).bit_length()) - 1


def fingerprints(keys: Integers) -> Fingerprints:
    """farmhash's Fingerprint64 of the 8 little-endian bytes of each key, as tf.raw_ops.Fingerprint computes it."""
    second: Fingerprints = np.ascontiguousarray(keys, "<i8").view(np.uint64)
    first = second + _K2
    third = _rotate(second, 37) * _MULTIPLIER + first
    fourth = (_rotate(first, 25) + second) * _MULTIPLIER
    mixed: Fingerprints = (third ^ fourth) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(47)
    mixed = (fourth ^ mixed) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(47)
    mixed *= _MULTIPLIER
    return mixed


def candidate_buckets(keys: Integers, num_buckets: int) -> Integers:
    """The two buckets of each key, as int64[n, 2]; they may be the same one."""
    mask = mask_of(num_buckets)
    halves = fingerprints(keys).astype("<u8").view("<u4").reshape(-1, 2).astype(np.int64)
    found = halves & mask
    return np.where(found < num_buckets, found, halves & (mask >> 1))


def place_keys(keys: Integers, row_numbers: Integers, num_buckets: int) -> Integers:
    """An index with these keys, which are unique, as int64[num_buckets, 16]; the same one for the same order of keys.

    Each round puts at most one key into a bucket, so that the less loaded one is known. Raises BucketsFullError.
    """
    index = np.zeros((num_buckets, BUCKET_COLUMNS), np.int64)
    used = np.zeros(num_buckets, np.int64)
    candidates = candidate_buckets(keys, num_buckets)
    pending = np.arange(len(keys))
    while len(pending):
        loads = used[candidates[pending]]
        if (loads.min(axis=1) >= PLACES).any():
            raise BucketsFullError(int((loads.min(axis=1) >= PLACES).sum()), num_buckets)
        chosen = candidates[pending, loads.argmin(axis=1)]
        is_placed = _one_of_each(chosen, num_buckets)
        buckets, placed = chosen[is_placed], pending[is_placed]
        index[buckets, used[buckets]] = keys[placed]
        index[buckets, PLACES + used[buckets]] = row_numbers[placed]
        used[buckets] += 1
        pending = pending[~is_placed]
    return index


def items_of(buckets: Integers) -> tuple[Integers, Integers]:
    """The keys of these buckets and their row numbers, in the order of the buckets."""
    keys, row_numbers = buckets[:, :PLACES], buckets[:, PLACES:]
    is_used = row_numbers != 0
    return keys[is_used], row_numbers[is_used]


def find(buckets: Integers, keys: Integers) -> Integers:
    """The row number of each key in an index, all of whose buckets are given; 0 for a key that it does not hold."""
    found = np.zeros(len(keys), np.int64)
    for first in range(0, len(keys), _KEYS_AT_A_TIME):
        some = keys[first : first + _KEYS_AT_A_TIME]
        held = buckets[candidate_buckets(some, len(buckets))]
        is_key = held[:, :, :PLACES] == some[:, None, None]
        found[first : first + len(some)] = (held[:, :, PLACES:] * is_key).max(axis=(1, 2), initial=0)
    return found


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What became of keys between two states of the same buckets. `dealt`: the rows that other keys have now."""

    come: Integers
    gone: Integers
    dealt: Integers


def changes(old: Integers, new: Integers) -> KeyChanges:
    """Exact when all buckets are given that differ: an entry that only moved is in two of them."""
    (old_keys, old_rows), (new_keys, new_rows) = items_of(old), items_of(new)
    _, among_old, among_new = np.intersect1d(old_keys, new_keys, return_indices=True)
    is_kept = np.zeros(len(new_keys), np.bool_)
    is_kept[among_new] = old_rows[among_old] == new_rows[among_new]
    return KeyChanges(
        come=np.setdiff1d(new_keys, old_keys),
        gone=np.setdiff1d(old_keys, new_keys),
        dealt=np.sort(new_rows[~is_kept]),
    )


def why_malformed(bucket_ids: Integers, buckets: Integers, counts: Counts) -> str:
    """What is wrong with buckets that an update brings to a table with these counts; empty when nothing is.

    A key lies in a bucket of its own, and among these buckets once; its row is in use, and that of no other key.
    """
    if len(bucket_ids) and not 0 <= bucket_ids.min() <= bucket_ids.max() < counts.buckets:
        return f"it has buckets outside the {counts.buckets} in use"
    keys, row_numbers = items_of(buckets)
    homes = np.repeat(bucket_ids, (buckets[:, PLACES:] != 0).sum(axis=1))
    is_outside = (row_numbers < 0) | (row_numbers >= counts.rows)
    if is_outside.any():
        at = int(is_outside.argmax())
        return f"key {keys[at]} has row {row_numbers[at]}, and {counts.rows} are in use"
    is_lost = (candidate_buckets(keys, counts.buckets) != homes[:, None]).all(axis=1)
    if is_lost.any():
        at = int(is_lost.argmax())
        return f"key {keys[at]} lies in bucket {homes[at]}, where nobody looks for it"
    for what, values in (("key", keys), ("row", row_numbers)):
        twice = _find_twice(values)
        if twice is not None:
            return f"{what} {twice} occurs twice"
    return ""


def _rotate(values: Fingerprints, bits: int) -> Fingerprints:
    return (values >> np.uint64(bits)) | (values << np.uint64(64 - bits))


def _one_of_each(chosen: Integers, num_buckets: int) -> npt.NDArray[np.bool_]:
    """Which of the keys that chose a bucket gets it: numpy keeps the last value that is assigned to an element."""
    order = np.arange(len(chosen))
    winners = np.empty(num_buckets, np.int64)
    winners[chosen] = order
    return np.equal(winners[chosen], order)


def _find_twice(values: Integers) -> int | None:
    ordered = np.sort(values)
    is_again = ordered[1:] == ordered[:-1]
    return int(ordered[1:][is_again.argmax()]) if is_again.any() else None
