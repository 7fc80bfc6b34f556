"""How far something long is, is told every few seconds."""

from __future__ import annotations

import logging

import pytest

from hotdelta.logs import PROGRESS_SECONDS, ProgressLog


def test_progress_is_told_every_few_seconds_and_never_of_what_is_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hotdelta")
    now = 0.0
    progress = ProgressLog("reading deltas", of=30, clock=lambda: now)
    for done in range(30):
        progress.tell(done)
        now += PROGRESS_SECONDS / 10

    assert [record.message for record in caplog.records] == [
        "reading deltas done=10 of=30",
        "reading deltas done=20 of=30",
    ]


def test_bytes_are_told_with_the_fields_and_the_first_seconds_are_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hotdelta")
    now = 0.0
    progress = ProgressLog("writing bytes of values", of=200_000_000, clock=lambda: now, how="eagerly")
    for done in range(1, 11):
        now += 2.0
        progress.tell(done * 20_000_000)

    assert [record.message for record in caplog.records] == [
        f"writing bytes of values how=eagerly done={done}000000 of=200000000" for done in (60, 120, 180)
    ]
