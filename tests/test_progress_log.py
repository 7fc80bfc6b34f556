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
