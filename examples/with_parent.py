"""Runs a Python module as `python -m` does, and ends it when its parent is gone, also after kill -9 of the parent.

    python -m examples.with_parent server.cli --help

The parent holds the other end of our standard input, and never writes: whatever ends it closes that end. This needs
nothing of the system but pipes, and a parent that is gone before we look is noticed, too.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

_STOP_SECONDS = 10.0


def end_with_parent() -> None:
    """From now on: SIGTERM when the parent is gone, and SIGKILL when that does not help."""
    threading.Thread(target=_outlive_no_parent, name="parent", daemon=True).start()


def _outlive_no_parent() -> None:
    # Not sys.stdin: its lock would be held when Python ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
