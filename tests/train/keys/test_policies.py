"""Which keys go: decisions from plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.policies import (
    Chance,
    Eviction,
    Examined,
    MostKeys,
    SeenTimes,
    SeenTimesInFilter,
    SmallRows,
    UntouchedSeconds,
    UntouchedSteps,
    admission_of,
    config_of,
    filter_error,
)
from hotdelta.train.tables.key_upkeep import Moment


def examined(*rows: tuple[int, int, int, float]) -> Examined:
    counts, steps, seconds, halves = zip(*rows, strict=True)
    return Examined(np.array(counts), np.array(steps), np.array(seconds), np.array(halves))


# (count, step, second, 0.5 * sum(w^2)) of five keys.
KEYS = examined((9, 10, 100, 1.0), (1, 20, 200, 0.1), (5, 30, -1, 0.5), (3, -1, 400, 0.01), (2, 40, 500, 9.0))


@pytest.mark.parametrize(
    "given, now, live, expected",
    [
        (None, Moment(99), 5, []),
        (UntouchedSteps(30), Moment(40), 5, []),
        (UntouchedSteps(20), Moment(40), 5, [0]),
        (UntouchedSteps(19), Moment(40), 5, [0, 1]),
        (UntouchedSteps(1), Moment(40), 5, [0, 1, 2]),
        (UntouchedSeconds(100), Moment(99), 5, []),
        (UntouchedSeconds(100), Moment(99, 500), 5, [0, 1]),
        (UntouchedSeconds(99), Moment(99, 500), 5, [0, 1, 3]),
        (SmallRows(0.1), Moment(0), 5, [3]),
        (SmallRows(0.5), Moment(0), 5, [1, 3]),
        (MostKeys(5), Moment(0), 5, []),
        (MostKeys(5), Moment(0), 7, [0, 3]),
        (MostKeys(5, least="count"), Moment(0), 7, [1, 4]),
        (MostKeys(1), Moment(0), 100, [0, 1, 2, 3, 4]),
        ([UntouchedSteps(19), MostKeys(5)], Moment(40), 7, [0, 1]),
        ([UntouchedSteps(19), MostKeys(5)], Moment(40), 8, [0, 1, 3]),
        ([SmallRows(0.1), UntouchedSteps(19)], Moment(40), 5, [0, 1, 3]),
    ],
)
def test_decisions(given: Any, now: Moment, live: int, expected: list[int]) -> None:
    eviction = Eviction.of(given)
    assert np.flatnonzero(eviction.decide(KEYS, now, live=live)).tolist() == expected
    again = Eviction.of(eviction.as_config())
    assert again == eviction


def test_of_equal_ones_the_first_goes() -> None:
    keys = examined(*[(1, 5, 5, 1.0)] * 4)
    assert np.flatnonzero(Eviction.of(MostKeys(2)).decide(keys, Moment(9), live=4)).tolist() == [0, 1]


def test_what_they_need() -> None:
    assert Eviction.of(MostKeys(5, least="count")).needs_counts
    assert not Eviction.of(MostKeys(5)).needs_counts
    assert Eviction.of([MostKeys(5), SmallRows(1)]).needs_rows
    assert Eviction.of(UntouchedSeconds(5)).needs_event_times


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: UntouchedSteps(0), "UntouchedSteps is given 0. give a whole number above 0"),
        (lambda: UntouchedSeconds(True), "UntouchedSeconds is given True"),
        (lambda: SmallRows(0.0), "SmallRows is given 0.0. give a limit above 0"),
        (lambda: SmallRows(float("nan")), "SmallRows is given nan"),
        (lambda: MostKeys(5, least="often"), "least is 'often'. say one of last_touch, count"),
        (lambda: Eviction.of("lru"), "eviction is 'lru'"),
        (lambda: Eviction.of([UntouchedSteps(1), UntouchedSteps(2)]), "eviction has UntouchedSteps twice"),
        (lambda: Eviction.of({"policy": "Unknown"}), "eviction is {'policy': 'Unknown'}"),
        (lambda: SeenTimes(0), "SeenTimes is given 0. give a whole number above 0, up to 1,000,000"),
        (lambda: SeenTimes(2, forget_steps=0), "forget_steps of SeenTimes is given 0"),
        (lambda: SeenTimes(2, most_waiting=-1), "most_waiting of SeenTimes is given -1"),
        (lambda: SeenTimesInFilter(256, keys=5), "SeenTimesInFilter is given 256. .* up to 255"),
        (lambda: SeenTimesInFilter(2, keys=0), "keys of SeenTimesInFilter is given 0"),
        (lambda: SeenTimesInFilter(2, keys=5, error=0.9), "error of SeenTimesInFilter is 0.9"),
        (lambda: Chance(0), "Chance is given 0. give a probability above 0, up to 1"),
        (lambda: Chance(float("nan")), "Chance is given nan"),
        (lambda: Chance(0.5, seed=True), "seed of Chance is True. give a whole number"),
        (lambda: admission_of(3), "admission is 3. give SeenTimes, SeenTimesInFilter or Chance"),
        (lambda: admission_of(UntouchedSteps(3)), "admission is UntouchedSteps"),
    ],
)
def test_what_is_no_policy_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    "policy", [SeenTimes(3, forget_steps=5), SeenTimesInFilter(2, keys=10), Chance(0.1, seed=3)]
)
def test_admission_is_made_again_from_its_configuration(policy: Any) -> None:
    assert admission_of(config_of(policy)) == policy
    assert admission_of(None) is None


@pytest.mark.parametrize("error", [0.5, 0.1, 0.02, 0.01, 0.001, 0.0001])
def test_a_filter_is_as_wrong_as_it_says(error: float) -> None:
    """Drawn at random: a new key finds all of its counters in use as often as it is computed."""
    policy = SeenTimesInFilter(2, keys=40_000, error=error)
    in_a_block = policy.keys / policy.blocks
    assert filter_error(in_a_block, policy.counters) <= error
    random = np.random.default_rng(1)
    in_use = np.zeros((policy.blocks, 64), np.bool_)
    blocks = random.integers(0, policy.blocks, policy.keys)
    in_use[np.repeat(blocks, policy.counters), random.integers(0, 64, policy.keys * policy.counters)] = True
    asked = random.integers(0, policy.blocks, 200_000)
    found = in_use[asked[:, np.newaxis], random.integers(0, 64, (len(asked), policy.counters))].all(axis=1)
    assert 0.6 * error - 2e-4 <= found.mean() <= 1.4 * error + 2e-4


def test_what_a_filter_takes_is_stated() -> None:
    """Bytes for each key that it is made for: the figures of docs/open-vocabulary.md."""
    sizes = {
        error: SeenTimesInFilter(2, keys=10**8, error=error).nbytes / 1e8 for error in (0.1, 0.01, 0.001)
    }
    assert sizes == pytest.approx({0.1: 5.0, 0.01: 12.1, 0.001: 24.0}, abs=0.05)
