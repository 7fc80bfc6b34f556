"""The Session below a MonitoredSession."""

from __future__ import annotations

from typing import Any

from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import session_below


def raw_session(session: Any) -> Any:
    """Its hooks do not run when variables are read and written: one that saves would save a half-loaded model.

    Raises ConfigurationError when the MonitoredSession has ended.
    """
    raw = session_below(session)
    if raw is None:
        raise ConfigurationError(
            "the MonitoredSession has ended", hint="save and load inside of its with block"
        )
    return raw
