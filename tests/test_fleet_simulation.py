"""The simulation of a fleet (benchmarks.scale): what must hold whatever the figures are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks._fleet_simulation import Deployment, Outcome, Prices, Watching, simulate

# No restarts, nobody slow: what is asked can be counted by hand.
CALM = Deployment(replicas=20, seconds=300, restarts_a_day=0, slow_share=0)
DELTAS = 299


def test_the_same_seed_is_the_same_day() -> None:
    assert simulate(CALM, seed=3) == simulate(CALM, seed=3)
    assert simulate(CALM, seed=3) != simulate(CALM, seed=4)


def test_every_replica_fetches_every_delta_once() -> None:
    outcome = simulate(CALM)
    assert outcome.fetched_bytes == 20 * DELTAS * CALM.requests.bytes_of_delta
    assert outcome.puts == 4 * DELTAS


@pytest.mark.parametrize("watching", Watching)
def test_a_delta_is_served_after_a_poll_and_its_requests(watching: Watching) -> None:
    outcome = simulate(replace(CALM, watching=watching, poll_seconds=1.0))
    assert 0.5 < outcome.served_p50_seconds < 1.0
    assert outcome.served_p50_seconds < outcome.served_p99_seconds <= outcome.served_worst_seconds
    assert outcome.all_p50_seconds > outcome.served_p50_seconds


def test_a_hint_that_names_commits_saves_the_listings() -> None:
    named, listed = (
        simulate(replace(CALM, watching=watching, poll_seconds=1.0))
        for watching in (Watching.HINT, Watching.LISTING)
    )
    assert named.lists < listed.lists / 10
    assert named.dollars(Prices()) < listed.dollars(Prices())


def test_after_an_outage_all_catch_up_and_what_waited_was_late() -> None:
    outcome = _day_with_outage()
    assert outcome.behind_at_end == 0
    assert outcome.served_worst_seconds > 60


def test_a_replica_that_restarts_fetches_a_full_and_is_not_late_with_what_was_before() -> None:
    calm = simulate(CALM)
    outcome = simulate(replace(CALM, restarts_a_day=86_400 / 300))
    assert outcome.behind_at_end == 0
    assert outcome.fetched_bytes > calm.fetched_bytes + CALM.requests.bytes_of_full
    assert outcome.served_worst_seconds < 5


def _day_with_outage() -> Outcome:
    return simulate(replace(CALM, outages=((100.0, 160.0),)))
