"""What a mirror is told, once, at its start."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hotdelta.errors import ConfigurationError

_BOUNDS: dict[str, tuple[float, float]] = {
    "poll_seconds": (0.01, 3600),
    "list_seconds": (0.1, 86400),
    "exports_seconds": (0.1, 86400),
    "max_bytes": (2**20, 2**50),
    "retry_seconds": (0.01, 3600),
    "damage_seconds": (0, 86400),
}


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """Raises ConfigurationError out of bounds."""

    poll_seconds: float = 0.2
    """The hint in the store is read this often."""
    list_seconds: float = 30.0
    """Everything is listed this often, because the hint decides nothing."""
    exports_seconds: float = 5.0
    """Exports are listed this often: there is no hint for them."""
    max_bytes: int = 64 * 2**30
    """What is kept here, unless the follower needs more."""
    retry_seconds: float = 5.0
    """The longest pause between two tries while the store is away."""
    damage_seconds: float = 10.0
    """So long an object that is damaged may be arriving; then a full steps over it, if there is one."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            low, high = _BOUNDS[setting.name]
            value = getattr(self, setting.name)
            if not low <= value <= high:
                raise ConfigurationError(
                    f"{setting.name} is {value}", hint=f"give a number from {low} to {high}"
                )
