"""`make demo`: a model that learns while it serves, on this machine, with real processes.

A trainer learns from a stream of clicks whose tastes drift and commits a delta every half second; the exporter makes
one SavedModel of it; the server applies each delta to its live tables; a client asks over HTTP. Runs until Ctrl-C, or
for DEMO_SECONDS.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from examples.interruption import Interruption
from examples.processes import ChildFailedError, Children


def main() -> int:
    try:
        limit = float(os.environ.get("DEMO_SECONDS") or "inf")
    except ValueError:
        print(
            f"demo: DEMO_SECONDS is {os.environ['DEMO_SECONDS']!r}, not a number of seconds", file=sys.stderr
        )
        return 2
    interruption = Interruption()
    interruption.listen()
    try:
        _run(limit, interruption)
    except KeyboardInterrupt:
        print("\nstopped before there was something to show", file=sys.stderr)
        return 130
    except ChildFailedError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    return 0


def _run(limit: float, interruption: Interruption) -> None:
    # Only now, when Ctrl-C is heard: it imports numpy and an HTTP client, which takes a moment.
    from examples import demo_screen, demo_stage

    with tempfile.TemporaryDirectory(prefix="hotdelta-demo-") as name:
        directory = Path(name)
        with Children(temporary=directory) as children:
            demo_stage.run(directory, children, limit, interruption)
    demo_stage.show(f"  {demo_screen.FAREWELL}")


if __name__ == "__main__":
    sys.exit(main())
