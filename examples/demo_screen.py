"""What the demo shows, in 80 columns: a line per second, and the table at the end. Values in, text out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from examples.click_stream import FORGET_SECONDS
from examples.demo_client import Reading

COLUMNS = 80
_TRACK_WIDTH = 17
_TASTE_WIDTH = _TRACK_WIDTH + 14

HEADER = (
    f"{'':33}{'chance of a click':<{_TASTE_WIDTH}}{'log loss of':>16}\n"
    f"{'time':>5}  {'position':>8}  {'lag ms':>6}  {'keys':>6}  "
    f"{'among pairs of one taste':<{_TASTE_WIDTH}}  {'served':>6}  {'frozen':>6}"
)
HEADER_EVERY_LINES = 20
LEGEND = """\
Each second a client asks the server who clicks on what, 2,000 pairs at a time.
  position    which commit of the trainer has answered: run.seq
  lag ms      of the newest delta, from its commit to the first answer with it
  keys        how many users and items the served tables know
  S, T, F     the chance of a click: served, true, and what the server's first
              model, frozen, still says
  log loss    how wrong the answers are about the clicks of now: less is better"""

FAREWELL = "All is stopped, its files are removed. Your own model: README.md, quick start."


@dataclass(frozen=True, slots=True)
class Update:
    """One update as the server's log tells it."""

    position: str
    rows: int
    lag_ms: float


def introduction(*, users: int, items: int, limit_seconds: float) -> str:
    """What a visitor is about to see."""
    end = "Ctrl-C ends it" if limit_seconds == float("inf") else f"it ends after {limit_seconds:.0f} s"
    text = (
        f"{users:,} users click on {items} items by taste, tastes drift, and new users and items appear all the "
        "time. A trainer learns from the clicks as they come and commits the rows that changed, twice a second. A "
        "server applies each of these deltas to its live tables. Three processes on this machine; figures come in "
        f"about 15 s, {end}."
    )
    return f"hotdelta: a model that learns while it serves\n\n{textwrap.fill(text, COLUMNS)}\n"


def invitation(url: str) -> str:
    """What to look at, and a command to try in another terminal."""
    return f"Look at it in a browser:\n  {url}\nAsk it yourself, in another terminal:\n  curl {url}/model/version"


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
    lag = f"{_milliseconds(update.lag_ms):>6}" if update else f"{'-':>6}"
    taste = f"{track(reading)} S{reading.predicted:.2f} T{reading.true:.2f}"
    return (
        f"{seconds:4.0f}s  {reading.position:>8}  {lag}  {reading.keys:>6,}  {taste:<{_TASTE_WIDTH}}  "
        f"{reading.served_loss:6.3f}  {reading.frozen_loss:6.3f}"
    )


def _milliseconds(value: float) -> str:
    """With tenths while there is room for them."""
    return f"{value:.1f}" if value < 9_999 else f"{value:.0f}"


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
        ("log loss, less is better", "all the time", "at the end"),
        (
            f"served, followed from {first.position} to {last.position}",
            f"{served:.3f}",
            f"{last.served_loss:.3f}",
        ),
        (f"the same model, frozen at {first.position}", f"{frozen:.3f}", f"{last.frozen_loss:.3f}"),
        ("the best there is: the true chances", f"{best:.3f}", f"{last.best_loss:.3f}"),
    ]
    width = max(len(row[0]) for row in rows)
    table = [f"  {name:<{width}}  {mean:>12}  {end:>10}" for name, mean, end in rows]
    keys = (
        f"{last.new:,} users and items were new, and served by their next commit",
        f"{last.gone:,} were not seen for {FORGET_SECONDS} s, and forgotten, in serving too: {last.keys:,} now",
    )
    return "\n".join([*table, "", *(f"  {text}" for text in (*_lags(updates), *keys))])


def _lags(updates: Sequence[Update]) -> list[str]:
    if not updates:
        return ["no update was served"]
    p50, p99 = np.percentile([update.lag_ms for update in updates], [50, 99])
    rows = int(np.median([update.rows for update in updates]))
    return [
        f"{len(updates)} updates of {rows:,} rows (median) in one server process, without a reload",
        f"lag from the trainer's commit to the first answer: p50 {p50:.0f} ms, p99 {p99:.0f} ms",
    ]
