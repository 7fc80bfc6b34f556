"""The chain that a command is asked about: scanned, trusted, and really there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain import Listing, Manifest, Position, Scanner
from hotdelta.chain.history.signing import trusted_listing
from hotdelta.errors import ConfigurationError, ManifestError
from hotdelta.given_directory import to_directory

NEWEST = "newest"
_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class OpenedChain:
    """What a directory held when it was looked at."""

    directory: Path
    listing: Listing

    def commits_at(self, position: Position) -> tuple[Manifest, ...]:
        """The full, the delta, or both that are at a position. Raises ConfigurationError when there is none."""
        found = tuple(m for m in self.listing.manifests if m.position == position)
        if not found:
            known = list(dict.fromkeys(str(manifest.position) for manifest in self.listing.manifests))
            held = f"it holds {', '.join(known[-_MAX_SHOWN:])}" if known else "it holds none that can be used"
            raise ConfigurationError(f"{self.directory} holds no position {position}", hint=held)
        return found

    def position(self, given: str | None) -> Position:
        """The one that is written so; `newest`, or nothing, is the newest there is. Raises ConfigurationError."""
        if given in (None, NEWEST):
            if not self.listing.manifests:
                raise ConfigurationError(
                    f"nothing in {self.directory} can be used", hint="see: hotdelta verify"
                )
            return max(manifest.position for manifest in self.listing.manifests)
        return parse_position(given or "")


def require_directory(given: str) -> Path:
    """Raises ConfigurationError."""
    directory = to_directory(given, "DIR")
    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise ConfigurationError(
            f"{directory} {problem}", hint="give the directory that the trainer writes to"
        )
    return directory


def open_chain(given: str) -> OpenedChain:
    """Raises ConfigurationError when there is no chain to look at."""
    directory = require_directory(given)
    listing = trusted_listing(directory, Scanner(directory).scan())
    if not listing.manifests and not listing.refused:
        raise ConfigurationError(
            f"nothing is committed in {directory}",
            hint=_why_empty(directory),
        )
    return OpenedChain(directory, listing)


def parse_position(text: str) -> Position:
    """Raises ConfigurationError."""
    try:
        return Position.parse(text)
    except ManifestError as error:
        raise ConfigurationError(error.message, hint=error.hint) from error


def _why_empty(directory: Path) -> str:
    """What was given instead, when that can be told."""
    inner = [path.name for path in _list(directory) if (path / ".incremental_checkpoint").is_dir()]
    if inner:
        return f"did you mean {directory / sorted(inner)[0]}?"
    if any(path.name == "saved_model.pb" for version in _list(directory) for path in _list(version)):
        return "it is an export: give the checkpoint directory of its trainer"
    return "give the checkpoint directory of a trainer that has saved"


def _list(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir()) if directory.is_dir() else []
    except OSError:
        return []
