"""When to save: a small policy, values in, a decision out. No clock of its own."""

from __future__ import annotations

from dataclasses import dataclass

from hotdelta.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training has come since the last save of a kind."""

    seconds: float
    steps: int
    epochs: int
    touched_rows: int


@dataclass(frozen=True, slots=True)
class SaveEvery:
    """A save is due when any one of the given amounts has passed since the last; with none given, only by hand."""

    seconds: float | None = None
    steps: int | None = None
    epochs: int | None = None
    touched_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "steps", "epochs", "touched_rows"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(
                    f"cannot save every {value} {name}", hint=f"give a number of {name} above 0, or None"
                )

    def is_due(self, progress: Progress) -> bool:
        pairs = (
            (self.seconds, progress.seconds),
            (self.steps, progress.steps),
            (self.epochs, progress.epochs),
            (self.touched_rows, progress.touched_rows),
        )
        return any(limit is not None and passed >= limit for limit, passed in pairs)
