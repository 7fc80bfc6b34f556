"""Which model a path or a message names."""

from __future__ import annotations

from dataclasses import dataclass

from hotdelta.errors import UnknownModelError


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a request names, by its name or a label, and the version or label of it, if it names one."""

    name: str
    version: int | None = None
    label: str | None = None

    def require_version(self, served: int) -> None:
        """Of an answer, too: another export may have taken over meanwhile. Raises UnknownModelError."""
        if self.version not in (None, served):
            raise UnknownModelError(
                f"there is no version {self.version} of model {self.name!r}",
                hint=f"version {served} is served",
            )
