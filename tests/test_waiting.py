"""Waiting ends when it is so, and says what is not so in time."""

from __future__ import annotations

import itertools

import pytest

from tests.waiting import wait_until


def test_waiting_ends_when_it_is_so() -> None:
    counter = itertools.count()
    wait_until(lambda: next(counter) == 3, "three", poll_seconds=0.0)
    assert next(counter) == 4


@pytest.mark.parametrize("what", ["an egg", lambda: "an egg"])
def test_what_is_not_so_in_time_is_told(what: object) -> None:
    with pytest.raises(AssertionError, match="still not so after 0 s: an egg"):
        wait_until(lambda: False, what, limit_seconds=0.0)  # type: ignore[arg-type]
