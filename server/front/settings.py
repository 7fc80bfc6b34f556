"""The settings of a server as its front-ends are told them, and what each of them may take of what there is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from server.http.connection_limits import BufferedBytes, ConnectionLimits
from server.settings import Settings


def share_of(settings: Settings) -> ConnectionLimits:
    """Of connections, and of bytes that are held: as many as all of them may have, divided. One body always fits."""
    buffered = max(settings.max_body_bytes, math.ceil(settings.max_buffered_bytes / settings.front_ends))
    connections = math.ceil(settings.max_connections / settings.front_ends)
    return ConnectionLimits(connections, settings.client_timeout_seconds, BufferedBytes(buffered))


def told_settings(settings: Settings) -> dict[str, Any]:
    """As JSON has them."""
    values = {setting.name: getattr(settings, setting.name) for setting in fields(settings)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def read_settings(told: Mapping[str, Any]) -> Settings:
    paths = {setting.name for setting in fields(Settings) if str(setting.type).startswith("Path")}
    values: dict[str, Any] = {name: _read(value, is_path=name in paths) for name, value in told.items()}
    return Settings(**values)


def _read(value: Any, *, is_path: bool) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if is_path and value is not None else value
