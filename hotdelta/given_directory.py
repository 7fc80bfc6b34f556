"""Directories as users give them: what is none of this machine, or lies where it must not, is refused in one place."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hotdelta.errors import ConfigurationError

# One slash is left of two when somebody made a Path of it. Of drives (C:/) Linux knows nothing, but people do.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_ESTIMATOR_EXPORTS = "export"


def to_directory(given: Any, name: str = "checkpoint_dir") -> Path:
    """Raises ConfigurationError for what is no path; "" is none, though for Path it is the working directory.

    Nor is `gs://bucket/run`, of which the system would make a directory `gs:` here, nor what the system cannot follow.
    """
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"{name} is {given!r}", hint="give the path of a directory")
    if (address := _ADDRESS.match(text)) is not None:
        raise ConfigurationError(
            f"{name} is {text!r}, an address, and only directories that the system has mounted can be used",
            hint="write the path alone" if address[1].lower() == "file" else "mount it, and give its path",
        )
    path = Path(text)
    try:
        path.resolve().stat()
    except (FileNotFoundError, NotADirectoryError):
        # It may come, and who needs it now says so.
        pass
    except (OSError, RuntimeError) as error:
        # A circle of symbolic links is a RuntimeError for pathlib before Python 3.13.
        raise ConfigurationError(
            f"{name} is {text!r}, which cannot be used: {getattr(error, 'strerror', error)}",
            hint="give the path of a directory",
        ) from error
    return path


def refuse_nested(export_dir: Path, checkpoint_dir: Path) -> None:
    """Exports and the files of a trainer do not mix: each side removes what it takes for its own leftovers.

    But an estimator's exporters write to `<model_dir>/export/<name>`, as everybody's do.
    Raises ConfigurationError.
    """
    exports, run = export_dir.resolve(), checkpoint_dir.resolve()
    if exports == run:
        problem = "is also the checkpoint directory"
    elif run in exports.parents and not _is_of_estimator(exports.relative_to(run)):
        problem = f"is inside the checkpoint directory {checkpoint_dir}"
    elif exports in run.parents and run.relative_to(exports).parts[0].isdigit():
        problem = f"holds the checkpoint directory {checkpoint_dir} in one of its versions"
    else:
        return
    raise ConfigurationError(
        f"the export directory {export_dir} {problem}", hint="give exports a directory of their own"
    )


def _is_of_estimator(path: Path) -> bool:
    return path.parts[0] == _ESTIMATOR_EXPORTS and len(path.parts) > 1
