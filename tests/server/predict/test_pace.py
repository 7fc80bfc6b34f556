from __future__ import annotations

from dataclasses import dataclass

from server.predict.pace import QUICK_SECONDS, Pace

SHORT, LONG = QUICK_SECONDS / 6, 30 * QUICK_SECONDS


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def seen_in_threads(pace: Pace, seconds: float, *, calls: int = 100) -> Pace:
    for _ in range(calls):
        pace.observe_in_thread(seconds)
    return pace


def calls_until_slow(pace: Pace, seconds: float) -> int:
    calls = 0
    while pace.is_quick:
        pace.observe_in_loop(seconds)
        calls += 1
    return calls


def test_nothing_is_quick_before_it_is_known_and_what_takes_long_never_is() -> None:
    assert not Pace().is_quick
    assert not seen_in_threads(Pace(), SHORT, calls=1).is_quick
    assert seen_in_threads(Pace(), SHORT).is_quick
    assert not seen_in_threads(Pace(), LONG).is_quick


def test_one_call_that_was_held_up_changes_nothing_and_several_do() -> None:
    pace = seen_in_threads(Pace(Clock()), SHORT)

    pace.observe_in_loop(1000 * LONG)
    assert pace.is_quick

    assert 1 <= calls_until_slow(pace, LONG) < 10


def test_a_model_that_waits_holds_up_the_event_loop_less_and_less_often() -> None:
    """Of its processor time it looks quick again and again."""
    clock = Clock()
    pace = seen_in_threads(Pace(clock), SHORT)
    rests = []
    for _ in range(4):
        calls_until_slow(pace, LONG)
        slow_since = clock.now
        while not pace.is_quick:
            clock.now += 0.5
            seen_in_threads(pace, SHORT, calls=20)
        rests.append(clock.now - slow_since)

    assert rests == sorted(rests)
    assert rests[-1] >= 4 * rests[0]


def test_after_a_long_time_of_being_right_a_rest_is_short_again() -> None:
    clock = Clock()
    pace = seen_in_threads(Pace(clock), SHORT)
    for _ in range(5):
        calls_until_slow(pace, LONG)
        clock.now += 1000
        seen_in_threads(pace, SHORT)
    clock.now += 100_000
    calls_until_slow(pace, LONG)

    clock.now += 1.5
    assert seen_in_threads(pace, SHORT).is_quick
