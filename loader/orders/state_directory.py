"""The directory of a server's own, with what it has to know after a restart: orders, and what updates are usual."""

from __future__ import annotations

from pathlib import Path

from hotdelta.directory_lock import STATE_WORDING, LockedDirectory
from hotdelta.errors import ConfigurationError
from loader.settings import LoaderSettings


class StateDirectory:
    """Made and locked: of two servers that write into one, each would forget what the other was ordered.

    The lock ends with `close`, with the object or with the process, whichever is first.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        """Without a directory in the settings there is nothing to lock. Raises ConfigurationError."""
        self._in_use = None
        if settings.state_dir is not None:
            _require_apart(settings.state_dir, settings)
            self._in_use = LockedDirectory(settings.state_dir, STATE_WORDING)

    def close(self) -> None:
        """Let the next server have it. May be called again."""
        if self._in_use is not None:
            self._in_use.close()


def _require_apart(directory: Path, settings: LoaderSettings) -> None:
    for followed in (settings.checkpoint_dir, settings.export_dir):
        if directory.resolve().is_relative_to(followed.resolve()):
            raise ConfigurationError(
                f"the state directory {directory} is in {followed}, which is only read",
                hint="give a directory of the server's own",
            )
