"""What the demo shows, in 80 columns: a line per second, and the table at the end. Values in, text out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from examples.demo_client import Reading

COLUMNS = 80
_TRACK_WIDTH = 17
_TASTE_WIDTH = _TRACK_WIDTH + 14

HEADER = (
    f"{'':{COLUMNS - 14}}log loss of\n"
    f"{'time':>5}  {'position':>8}  {'lag ms':>6}  {'rows':>6}  "
    f"{'chance of a click, one taste':<{_TASTE_WIDTH}}  {'served':>6}  {'frozen':>6}"
)
LEGEND = (
    "S served now   T true now   F the same model, frozen at start\n"
    "lag: from the trainer's commit to the first answer that uses it\n"
    "rows: how many are in the last delta"
)


@dataclass(frozen=True, slots=True)
class Update:
    """One update as the server's log tells it."""

    position: str
    rows: int
    lag_ms: float


def note(seconds: float, text: str) -> str:
    """What happens on the way, with the time since the start."""
    return textwrap.fill(
        f"[{seconds:5.1f} s] {text}",
        COLUMNS,
        subsequent_indent=" " * 10,
        break_long_words=False,
        break_on_hyphens=False,
    )


def line(seconds: float, reading: Reading, update: Update | None) -> str:
    lag = f"{update.lag_ms:6.1f}" if update else f"{'-':>6}"
    rows = f"{update.rows:6,}" if update else f"{'-':>6}"
    taste = f"{track(reading)} S{reading.predicted:.2f} T{reading.true:.2f}"
    return (
        f"{seconds:4.0f}s  {reading.position:>8}  {lag}  {rows}  {taste:<{_TASTE_WIDTH}}  "
        f"{reading.served_loss:6.3f}  {reading.frozen_loss:6.3f}"
    )


def track(reading: Reading) -> str:
    """A scale from 0 to 1 with a letter where each of the three is; what is served is drawn over the others."""
    cells = ["·"] * _TRACK_WIDTH
    for letter, chance in (("F", reading.frozen), ("T", reading.true), ("S", reading.predicted)):
        cells[min(_TRACK_WIDTH - 1, int(chance * _TRACK_WIDTH))] = letter
    return f"0{''.join(cells)}1"


def summary(readings: Sequence[Reading], updates: Sequence[Update]) -> str:
    """The comparison over the whole run."""
    first, last = readings[0], readings[-1]
    served = float(np.mean([reading.served_loss for reading in readings]))
    frozen = float(np.mean([reading.frozen_loss for reading in readings]))
    best = float(np.mean([reading.best_loss for reading in readings]))
    rows = [
        ("", "log loss", "at the end"),
        (
            f"served, followed from {first.position} to {last.position}",
            f"{served:.3f}",
            f"{last.served_loss:.3f}",
        ),
        (f"the same model, frozen at {first.position}", f"{frozen:.3f}", f"{last.frozen_loss:.3f}"),
        ("who knows the true chances", f"{best:.3f}", f"{last.best_loss:.3f}"),
    ]
    width = max(len(row[0]) for row in rows)
    table = [f"  {name:<{width}}  {mean:>8}  {end:>10}" for name, mean, end in rows]
    return "\n".join([*table, "", *(f"  {text}" for text in _lags(updates))])


def _lags(updates: Sequence[Update]) -> list[str]:
    if not updates:
        return ["no update was served"]
    p50, p99 = np.percentile([update.lag_ms for update in updates], [50, 99])
    rows = int(np.median([update.rows for update in updates]))
    return [
        f"{len(updates)} updates of {rows:,} rows (median), without a reload",
        f"lag from commit to first answer: p50 {p50:.0f} ms, p99 {p99:.0f} ms",
    ]
