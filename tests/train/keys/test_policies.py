"""Which keys go: decisions from plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.policies import (
    Eviction,
    Examined,
    MostKeys,
    SmallRows,
    UntouchedSeconds,
    UntouchedSteps,
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
    ],
)
def test_what_is_no_policy_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
