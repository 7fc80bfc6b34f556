"""How a process tells a test what it did: one line of JSON for each thing that it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def say(report: str, what: str, value: Any) -> None:
    with Path(report).open("a") as file:
        file.write(json.dumps([what, value]) + "\n")
