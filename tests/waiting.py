"""Waiting until something is so: what another thread or process does takes as long as a busy machine lets it."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_SECONDS = 180.0


def wait_until(
    condition: Callable[[], object],
    what: str | Callable[[], object],
    *,
    limit_seconds: float = LIMIT_SECONDS,
    poll_seconds: float = 0.01,
) -> None:
    """Asks again and again. `what` is told when it is not so in time; a function is asked for it then."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        # A machine that stands still takes the time of the one who waits: what has happened meanwhile counts.
        if time.monotonic() > deadline and not condition():
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"still not so after {limit_seconds:.0f} s: {told}")
        time.sleep(poll_seconds)
