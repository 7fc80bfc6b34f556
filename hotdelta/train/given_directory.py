"""A directory as users give it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hotdelta.errors import ConfigurationError


def to_directory(given: Any, name: str = "checkpoint_dir") -> Path:
    """Raises ConfigurationError for what is no path; "" is none, though for Path it is the working directory."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"{name} is {given!r}", hint="give the path of a directory")
    return Path(text)
