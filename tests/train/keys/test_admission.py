"""Keys that get a row only when they were seen often enough: what counts, what is forgotten, and what is resumed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain.format import key_index, names
from hotdelta.train import Chance, MostKeys, SeenTimes, SeenTimesInFilter, UntouchedSteps
from tests.train.keys.keyed_training import Training

pytestmark = pytest.mark.I1

COUNTING = [SeenTimes(3), SeenTimesInFilter(3, keys=10_000)]


def waiting_counts(training: Training) -> dict[int, int]:
    """How often each key that waits was seen, when it is counted exactly."""
    key = f"{names.WAITING_PREFIX}keys/table/rows"
    variables = training.variables
    in_use = int(variables[key + names.WAITING_COUNTS_SUFFIX].numpy()[1])
    buckets = tf.gather(variables[key], tf.range(in_use)).numpy()
    keys, entries = key_index.items_of(buckets)
    return {int(key): int(entry) % (1 << 20) for key, entry in zip(keys, entries, strict=True)}


@pytest.mark.parametrize("policy", COUNTING)
def test_a_key_comes_when_it_was_seen_often_enough(tmp_path: Path, policy: Any) -> None:
    """Every occurrence in a batch counts; until then it reads the default and trains nothing."""
    training = Training(tmp_path, admission=policy, default=[7.0, 7.0])
    table = training.module.table
    seen: list[list[int]] = []
    records = []
    for keys in ([1, 1, 2], [2, 1], [3, 3, 3], [2, 4], [4, 4]):
        training.train(keys)
        records.append(training.save())
        seen.append(training.keys)
    assert seen == [[], [1], [1, 3], [1, 2, 3], [1, 2, 3, 4]]
    assert [record.keys_new for record in records] == [0, 1, 1, 1, 1]
    assert np.array_equal(table.look_up([5, 2])[0], [7.0, 7.0])
    # The step that admits a key trains it, with every occurrence in that batch and with no earlier one.
    alone = Training(tmp_path / "alone")
    for keys in ([1], [3, 3, 3], [2], [4, 4]):
        alone.train(keys)
    assert np.array_equal(table.items()[1], alone.module.table.items()[1])
    training.close()
    alone.close()


def test_who_only_asks_is_not_counted(tmp_path: Path) -> None:
    training = Training(tmp_path, admission=SeenTimes(2))
    for _ in range(3):
        training.module.table.look_up([1])
    training.train([1])
    assert (training.keys, waiting_counts(training)) == ([], {1: 1})
    training.close()


def test_an_evicted_key_waits_again(tmp_path: Path) -> None:
    training = Training(tmp_path, admission=SeenTimes(2), eviction=UntouchedSteps(2))
    for keys in ([1, 1, 9], [2], [3], [4], [5]):
        training.train(keys)
        training.save()
    assert training.keys == []
    training.train([1])
    assert (training.keys, waiting_counts(training)[1]) == ([], 1)
    training.train([1])
    assert training.keys == [1]
    training.close()


def test_what_was_seen_before_a_key_came_counts_for_those_that_are_used_least(tmp_path: Path) -> None:
    training = Training(tmp_path, admission=SeenTimes(3), eviction=MostKeys(400, least="count"))
    for keys in ([1], [1], [1, 1, 2], [2, 2]):
        training.train(keys)
    counts = training.by_key("usage/table/rows")
    assert {key: int(row[0]) for key, row in counts.items()} == {1: 4, 2: 3}
    training.close()


def test_counts_of_keys_that_never_make_it_are_forgotten(tmp_path: Path) -> None:
    training = Training(tmp_path, admission=SeenTimes(3, forget_steps=3))
    waiting = []
    for step in range(12):
        training.train([1_000, step] if step % 3 == 0 else [step])
        training.save()
        waiting.append(sorted(waiting_counts(training)))
    assert training.keys == [1_000]
    # At the end of a step what was last seen more than three steps before the commit goes: never too early.
    assert all(len(keys) <= 6 for keys in waiting)
    assert set(waiting[-1]) >= {8, 9, 10, 11}
    training.close()


def test_of_too_many_that_wait_those_that_were_not_seen_for_longest_go(tmp_path: Path) -> None:
    training = Training(tmp_path, admission=SeenTimes(2, most_waiting=10))
    for step in range(8):
        training.train(range(5 * step, 5 * step + 5))
        training.save()
    training.train([0])
    waiting = waiting_counts(training)
    assert len(waiting) == 10
    assert set(waiting) - {0} >= set(range(35, 40))
    # Between two commits twice as many may wait; further ones are not counted.
    training.train(range(1_000, 1_100))
    assert len(waiting_counts(training)) == 20
    training.close()


def test_a_filter_counts_never_too_little_and_seldom_too_much(tmp_path: Path) -> None:
    policy = SeenTimesInFilter(2, keys=5_000, error=0.02)
    training = Training(tmp_path, admission=policy)
    training.train([-1])  # after the first commit counters are set back
    random = np.random.default_rng(3)
    keys = random.choice(2**62, 5_000, replace=False)
    for first in range(0, len(keys), 500):
        training.train(keys[first : first + 500])
    too_early = len(training.keys)
    assert too_early <= 1.5 * policy.error * len(keys)
    training.train(keys[:400])
    assert set(keys[:400].tolist()) <= set(training.keys)
    training.close()


def test_a_filter_is_set_back_once_for_as_many_keys_as_it_is_made_for(tmp_path: Path) -> None:
    """It never fills up: of ever new keys a share comes too early that does not grow."""
    training = Training(tmp_path, admission=SeenTimesInFilter(2, keys=1_000, error=0.05))
    early = []
    for turn in range(6):
        before = len(training.keys)
        for first in range(0, 1_000, 100):
            training.train(range(1_000 * turn + first, 1_000 * turn + first + 100))
            training.save()
        early.append(len(training.keys) - before)
    assert max(early) <= 75
    training.close()


def test_by_chance_a_share_of_all_sights_brings_a_row(tmp_path: Path) -> None:
    training = Training(tmp_path, admission=Chance(0.25, seed=4))
    training.train(range(400))
    assert 70 <= len(training.keys) <= 130
    first = training.keys
    # Each occurrence in a batch draws: none of 40 hits in one of 100,000 cases.
    training.train([10_000] * 40)
    assert 10_000 in training.keys
    training.train(range(400))
    assert 140 <= len(training.keys) <= 215
    # The same keys come to whoever trains the same batches.
    other = Training(tmp_path / "other", admission=Chance(0.25, seed=4))
    other.train(range(400))
    assert other.keys == first
    training.close()
    other.close()


@pytest.mark.parametrize(
    "policy",
    [SeenTimes(3, forget_steps=6), SeenTimesInFilter(3, keys=60, error=0.1), Chance(0.3)],
)
def test_a_trainer_that_resumes_admits_as_if_it_had_never_stopped(tmp_path: Path, policy: Any) -> None:
    def batch(step: int) -> list[int]:
        return [int(key) for key in np.random.default_rng(step).integers(0, 60, 4)]

    options = {"admission": policy, "eviction": UntouchedSteps(8)}
    whole, part = Training(tmp_path / "whole", **options), Training(tmp_path / "part", **options)
    ever: set[int] = set()
    for step in range(24):
        if step in (9, 16):
            part.writer._trainer.release()
            part = Training(tmp_path / "part", **options)
        for training in (whole, part):
            training.train(batch(step))
            training.save()
        assert whole.keys == part.keys
        assert np.array_equal(whole.module.table.items()[1], part.module.table.items()[1])
        ever.update(whole.keys)
    assert len(ever) > 5
    whole.close()
    part.close()


def test_policies_may_come_change_and_go_between_runs(tmp_path: Path) -> None:
    def run(policy: Any, *batches: Iterable[int]) -> list[int]:
        training = Training(tmp_path, admission=policy)
        for keys in batches:
            training.train(keys)
            training.save()
        training.close()
        return training.keys

    assert run(None, [1]) == [1]
    # What has a row keeps it; nothing is known of other keys when counting begins.
    assert run(SeenTimes(2), [1, 2], [3]) == [1]
    # Counts are kept with another limit, and with room for fewer.
    assert run(SeenTimes(3, most_waiting=200), [2], [2], [3]) == [1, 2]
    # Not by another way of counting, and not by a filter of another size.
    assert run(SeenTimesInFilter(2, keys=100), [3], [4]) == [1, 2]
    assert run(SeenTimesInFilter(2, keys=10_000), [4], [3, 3]) == [1, 2, 3]
    # What was counted exactly is not in the newest commit any more.
    assert run(SeenTimes(2), [3, 2], *[range(1_000 + 90 * part, 1_090 + 90 * part) for part in range(5)]) == [
        1,
        2,
        3,
    ]
    # So few may wait now that what is saved has no room: it begins anew.
    assert run(SeenTimes(2, most_waiting=2), [1_000], [1_000]) == [1, 2, 3, 1_000]
    assert run(None, [6]) == [1, 2, 3, 6, 1_000]


def test_what_is_put_in_place_or_removed_is_not_waiting_any_more(tmp_path: Path) -> None:
    training = Training(tmp_path, admission=SeenTimes(2))
    training.train([1, 2])
    assert training.module.table.remove([2]) == 0
    training.train([2])
    assert training.keys == []
    training.train([2])
    assert training.keys == [2]
    training.train([3])
    training.module.table.assign([50], np.ones((1, 2), np.float32))
    assert waiting_counts(training) == {}
    training.train([3])
    assert training.keys == [50]
    training.save()
    training.close()


def test_a_step_that_was_broken_off_takes_no_room_for_ever(tmp_path: Path) -> None:
    """It counted keys that it did not enter: who resumes counts them."""
    training = Training(tmp_path, admission=SeenTimes(2))
    training.train([1, 2])
    counts = training.variables[f"{names.WAITING_PREFIX}keys/table/rows{names.WAITING_COUNTS_SUFFIX}"]
    tf.raw_ops.ResourceScatterAdd(resource=counts.handle, indices=[0], updates=tf.constant([40], tf.int64))
    training.save()
    training.close()
    training = Training(tmp_path, admission=SeenTimes(2))
    training.train([3])
    name = f"{names.WAITING_PREFIX}keys/table/rows{names.WAITING_COUNTS_SUFFIX}"
    assert int(training.variables[name].numpy()[0]) == 1 + 3
    training.close()
