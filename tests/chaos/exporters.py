"""A program that forks an exporter for each line on standard input: importing TensorFlow each time takes seconds.

A line is a JSON document: the socket of the SystemCalls that answer for the exporter, its arguments, and the file for
its standard error. The answer is its exit code, negative for the signal that ended it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from exporter import export  # noqa: F401 - imported before the first fork
from exporter.cli import main as run_exporter
from tests.chaos.launched import hand_over
from tests.chaos.seccomp import WRITES


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_export(json.loads(line)))
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)


def _export(order: dict[str, Any]) -> int:
    errors = os.open(order["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, sys.stdout.fileno())
    os.dup2(errors, sys.stderr.fileno())
    hand_over(Path(order["socket"]), WRITES)
    return run_exporter(order["arguments"])


if __name__ == "__main__":
    main()
