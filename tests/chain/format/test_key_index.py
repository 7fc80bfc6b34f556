from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain.format.key_index import (
    BUCKET_COLUMNS,
    PLACES,
    BucketsFullError,
    Counts,
    Integers,
    candidate_buckets,
    find,
    fingerprints,
    items_of,
    mask_of,
    place_keys,
    why_malformed,
)

EXTREMES = [0, -1, 1, -(2**63), 2**63 - 1]
KNOWN = ["14397a23417af284", "2fffe7a41fb59155", "523be90bb03b5a61", "692dbaa42bc69d1a", "e307b80e687e7dd2"]
INT64 = st.integers(-(2**63), 2**63 - 1)


def random_keys(count: int) -> Integers:
    return np.random.default_rng(3).integers(-(2**63), 2**63, count, np.int64)


def test_fingerprints_are_those_of_tensorflow() -> None:
    import tensorflow as tf

    strides = np.arange(1000, dtype=np.int64) << 20
    keys = np.concatenate([np.array(EXTREMES, np.int64), strides, random_keys(10_000)])
    theirs = tf.raw_ops.Fingerprint(data=keys[:, None], method="farmhash64").numpy()
    assert (fingerprints(keys) == theirs.view("<u8")[:, 0]).all()


def test_fingerprints_are_what_they_were() -> None:
    """A chain on disk depends on them."""
    assert [f"{value:016x}" for value in fingerprints(np.array(EXTREMES, np.int64))] == KNOWN


@pytest.mark.parametrize("buckets, mask", [(1, 0), (2, 1), (3, 3), (4, 3), (5, 7), (8, 7), (9, 15)])
def test_mask_is_that_of_the_next_power_of_two(buckets: int, mask: int) -> None:
    assert mask_of(buckets) == mask


def test_a_key_stays_or_goes_to_the_new_bucket_when_the_index_grows_by_one() -> None:
    keys = random_keys(2000)
    before = candidate_buckets(keys, 1)
    for buckets in range(2, 70):
        after = candidate_buckets(keys, buckets)
        assert (after < buckets).all()
        assert ((after == before) | (after == buckets - 1)).all()
        assert (after == buckets - 1).any()
        before = after


@settings(max_examples=100, deadline=None)
@given(keys=st.lists(INT64 | st.sampled_from(EXTREMES), unique=True, max_size=200), spare=st.integers(1, 40))
def test_placed_keys_are_found_with_their_rows_and_no_others(keys: list[int], spare: int) -> None:
    held = np.array(keys, np.int64)
    row_numbers = np.arange(1, len(held) + 1)
    num_buckets = -(-len(held) * 2 // PLACES) + spare
    index = place_keys(held, row_numbers, num_buckets)

    assert index.shape == (num_buckets, BUCKET_COLUMNS)
    assert (find(index, held) == row_numbers).all()
    others = np.setdiff1d(np.array([*EXTREMES, *(held ^ 1)], np.int64), held)
    assert (find(index, others) == 0).all()
    found, numbers = items_of(index)
    assert dict(zip(found.tolist(), numbers.tolist(), strict=True)) == dict(
        zip(keys, row_numbers.tolist(), strict=True)
    )
    counts = Counts(len(held) + 1, num_buckets, mask_of(num_buckets))
    assert why_malformed(np.arange(num_buckets), index, counts) == ""


@pytest.mark.parametrize("num_buckets", [8192, 9000, 12_288, 13_107, 16_000])
def test_index_takes_its_keys_up_to_a_load_of_one_half(num_buckets: int) -> None:
    """Between two powers of two the buckets that were not split yet have twice as many keys as the others."""
    keys = random_keys(num_buckets * PLACES // 2)
    index = place_keys(keys, np.arange(1, len(keys) + 1), num_buckets)
    assert (find(index, keys) == np.arange(1, len(keys) + 1)).all()


def test_keys_that_find_no_place_are_counted() -> None:
    with pytest.raises(BucketsFullError, match="keys find no place in 1 buckets") as raised:
        place_keys(np.arange(10), np.arange(1, 11), 1)
    assert raised.value.leftover == 2


def test_key_of_an_empty_place_is_not_found_whatever_it_is() -> None:
    index = place_keys(np.array([7]), np.array([1]), 1)
    index[0, 1:PLACES] = [0, 5, 5, -1, 7, 9, 9]
    assert find(index, np.array([0, 5, -1, 9, 7])).tolist() == [0, 0, 0, 0, 1]
    assert why_malformed(np.array([0]), index, Counts(2, 1, 0)) == ""


COUNTS = Counts(rows=21, buckets=5, mask=7)
KEYS = np.arange(100, 120)


def test_buckets_of_an_update_that_belong_together_are_well_formed() -> None:
    index = place_keys(KEYS, np.arange(1, 21), 5)
    some = np.array([1, 4])
    assert why_malformed(some, index[some], COUNTS) == ""
    assert why_malformed(some[:0], index[:0], COUNTS) == ""


def test_key_in_a_bucket_where_nobody_looks_is_malformed() -> None:
    index = place_keys(KEYS, np.arange(1, 21), 5)
    lost = next(key for key in KEYS.tolist() if 0 not in candidate_buckets(np.array([key]), 5))
    index[0, 0], index[0, PLACES] = lost, 20
    assert f"key {lost} lies in bucket 0" in why_malformed(np.array([0]), index[:1], COUNTS)


def test_index_of_fewer_buckets_is_malformed_where_a_bucket_was_split() -> None:
    index = place_keys(KEYS, np.arange(1, 21), 4)
    assert "where nobody looks" in why_malformed(np.arange(4), index, COUNTS)


@pytest.mark.parametrize("number", [21, -1, 2**62])
def test_row_that_is_not_in_use_is_malformed(number: int) -> None:
    index = place_keys(KEYS, np.arange(1, 21), 5)
    where = np.argwhere(index[:, PLACES:] == 20)[0]
    index[where[0], PLACES + where[1]] = number
    assert f"has row {number}, and 21 are in use" in why_malformed(np.arange(5), index, COUNTS)


def test_key_or_row_that_occurs_twice_is_malformed() -> None:
    index = place_keys(KEYS, np.arange(1, 21), 5)
    bucket = int((index[:, PLACES:] != 0).sum(axis=1).argmin())
    used = int((index[bucket, PLACES:] != 0).sum())
    index[bucket, used], index[bucket, PLACES + used] = index[bucket, 0], 20
    assert (
        why_malformed(np.array([bucket]), index[[bucket]], COUNTS) == f"key {index[bucket, 0]} occurs twice"
    )
    index[bucket, used] = next(
        key for key in range(1000) if bucket in candidate_buckets(np.array([key]), 5) and key not in KEYS
    )
    index[bucket, PLACES + used] = index[bucket, PLACES]
    said = why_malformed(np.array([bucket]), index[[bucket]], COUNTS)
    assert said == f"row {index[bucket, PLACES]} occurs twice"


@pytest.mark.parametrize("bucket", [5, -1])
def test_bucket_that_is_not_in_use_is_malformed(bucket: int) -> None:
    rows = np.zeros((1, BUCKET_COLUMNS), np.int64)
    assert "outside the 5 in use" in why_malformed(np.array([bucket]), rows, COUNTS)


@pytest.mark.parametrize(
    "value, wrong",
    [
        ([21, 5, 7], ""),
        ([1, 1, 0], ""),
        ([0, 5, 7], "0 rows"),
        ([31, 5, 7], "31 rows"),
        ([21, 0, 7], "0 buckets"),
        ([21, 9, 15], "9 buckets"),
        ([21, 5, 3], "is 7, and not 3"),
    ],
    ids=str,
)
def test_counts_that_cannot_be_say_why(value: list[int], wrong: str) -> None:
    said = Counts.of(np.array(value)).why_wrong(max_rows=30, max_buckets=8)
    assert wrong in said if wrong else said == ""
