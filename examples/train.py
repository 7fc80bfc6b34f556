"""An online trainer: learns from clicks as they come and commits what changed, second by second.

    python -m examples.train --checkpoint-dir run

Stop it with Ctrl-C, or kill it: started again it resumes at its last commit, and reads on where that commit stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from examples.click_stream import Clicks, ClickStream, ids_of
from hotdelta.quiet_import import quiet_import

BATCH_SIZE = 256
HISTORY_SECONDS = 30.0


class ClickReader:
    """Batches of a stream with so many clicks a second: what has happened comes at once, the rest when it happens."""

    def __init__(
        self,
        clicks_per_second: float,
        *,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], object],
    ) -> None:
        self._batch_seconds = BATCH_SIZE / clicks_per_second
        self._clock = clock
        self._pause = pause
        self._stream = ClickStream(seed=os.getpid())
        self.read_until = clock() - HISTORY_SECONDS

    def resume(self, read_until: float) -> None:
        """Go on where another reader stopped, unless that is too long ago."""
        self.read_until = max(float(read_until), self._clock() - HISTORY_SECONDS)

    def batches(self) -> Iterator[Clicks]:
        while True:
            self.read_until += self._batch_seconds
            ahead = self.read_until - self._clock()
            if ahead > 0:
                self._pause(ahead)
            yield self._stream.draw(BATCH_SIZE, self.read_until)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    print("importing TensorFlow", flush=True)
    reader = ClickReader(options.clicks_per_second, pause=threading.Event().wait)
    try:
        train(reader, options)
    except KeyboardInterrupt:
        print("stopped; everything is committed", flush=True)
    return 0


def train(reader: ClickReader, options: argparse.Namespace) -> None:
    """Until the time is over, or for ever."""
    with quiet_import():
        from examples.click_model import build_model
        from hotdelta.keras import DeltaCheckpoint

    model = build_model()
    checkpoint = DeltaCheckpoint(
        options.checkpoint_dir,
        save_secs=options.save_secs,
        save_incremental_secs=options.save_incremental_secs,
        metrics_port=options.metrics_port,
    )
    checkpoint.register_state("read_until", lambda: reader.read_until, reader.resume)
    with checkpoint:
        resumed = checkpoint.resume(model)
        print(
            f"resumed at {resumed.position}" if resumed else f"new run at {checkpoint.position}", flush=True
        )
        deadline = time.monotonic() + options.seconds if options.seconds else float("inf")
        say = _EverySecond()
        for clicks in reader.batches():
            batch = {"user": ids_of(clicks.users), "item": ids_of(clicks.items)}
            loss = model.train_on_batch(batch, clicks.clicked)
            checkpoint.watermark(clicks.at)
            checkpoint.step()
            say.line(step=int(model.optimizer.iterations), loss=float(loss), position=checkpoint.position)
            if time.monotonic() > deadline:
                return


class _EverySecond:
    """Prints what it is told, but not more often than once a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def line(self, *, step: int, loss: float, position: Any) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1
            print(f"step {step}  loss {loss:.3f}  committed {position}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.train",
        description="Learn from a stream of clicks whose tastes drift, for ever.",
    )
    parser.add_argument("--checkpoint-dir", required=True, metavar="DIR_OR_URL", help="where commits go")
    parser.add_argument(
        "--save-incremental-secs",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds between deltas (default: 1)",
    )
    parser.add_argument(
        "--save-secs", type=float, default=60.0, metavar="S", help="seconds between fulls (default: 60)"
    )
    parser.add_argument(
        "--clicks-per-second",
        type=float,
        default=12_000,
        metavar="N",
        help="speed of the stream (default: 12000)",
    )
    parser.add_argument(
        "--seconds", type=float, default=0, metavar="S", help="stop after so long (default: never)"
    )
    parser.add_argument(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="where Prometheus asks how saving goes (default: nowhere)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
