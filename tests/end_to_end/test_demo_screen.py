"""What the demo prints: fits a terminal of 80 columns, and stops when nobody reads it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from examples import demo_screen
from examples.demo_client import Reading
from examples.demo_screen import COLUMNS, Update

READING = Reading(
    position="12.34567",
    step=99_999,
    keys=98_765,
    new=1_234_567,
    gone=1_234_567,
    predicted=0.512,
    frozen=0.25,
    true=0.75,
    served_loss=0.6931,
    frozen_loss=0.7123,
    best_loss=0.5,
)
UPDATE = Update(position="12.34567", rows=99_999, lag_ms=1234.5)
SLOW_UPDATE = replace(UPDATE, lag_ms=123_456.7)


def test_everything_fits_a_terminal_of_80_columns() -> None:
    note = demo_screen.note(
        123.4, "starting trainer: python -m examples.train --checkpoint-dir run --save-secs 20"
    )
    shown = [
        demo_screen.introduction(users=10_000, items=200, limit_seconds=3600),
        demo_screen.invitation("http://127.0.0.1:65535"),
        demo_screen.FAREWELL,
        demo_screen.HEADER,
        demo_screen.LEGEND,
        note,
        demo_screen.line(3600, READING, UPDATE),
        demo_screen.line(3600, READING, SLOW_UPDATE),
        demo_screen.line(1, READING, None),
        demo_screen.summary([READING] * 2, [UPDATE]),
    ]

    assert max(len(line) for text in shown for line in text.splitlines()) == COLUMNS
    assert note.splitlines()[1] == "          --save-secs 20"


def test_the_columns_stand_under_their_names() -> None:
    names, values = demo_screen.HEADER.splitlines()[1], demo_screen.line(7, READING, UPDATE)

    for name, value in (
        ("position", "12.34567"),
        ("lag ms", "1234.5"),
        ("keys", "98,765"),
        ("served", "0.693"),
        ("frozen", "0.712"),
    ):
        assert names.index(name) + len(name) == values.index(value) + len(value)


def test_when_nobody_reads_on_it_stops_as_for_a_signal() -> None:
    code = (
        "import signal, sys; from examples.demo_stage import show; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        "[show('a line') for _ in range(100_000)]"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read() if process.stderr else b""

    assert (process.returncode, said) == (7, b"")
