"""Which position a directory, a position or a file name means."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Listing
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.errors import ConfigurationError


def named_prefix(step: int, filename: str) -> str:
    """The prefix of a save that the user gave a name."""
    return f"{names.FULL_STEM}{step}-{filename}"


def find_saved(
    directory: Path, *, position: Position | str | None = None, filename: str | None = None
) -> ChainState:
    """The state at a position, or at the newest save of that name; by default the newest, and why it is not newer.

    Raises ConfigurationError when there is nothing, or not that; ChainError when it is damaged.
    """
    wanted = as_position(position) if position is not None else None
    chosen = partial(find_named, filename, directory) if filename is not None else wanted
    state = find_state(directory, position=chosen)
    if state is None:
        raise ConfigurationError(
            f"nothing is saved in {directory}",
            hint="give the directory that save_persistables, or a trainer, wrote to",
        )
    return state


def as_position(given: Position | str) -> Position:
    if not isinstance(given, Position | str):
        raise ConfigurationError(
            f"position is {given!r}", hint='give text, as "3.10": the number 3.10 is the number 3.1'
        )
    return Position.parse(given) if isinstance(given, str) else given


def find_named(filename: str, place: Path | str, listing: Listing) -> Position:
    for manifest in reversed(listing.manifests):
        plain = named_prefix(manifest.step, filename)
        if manifest.kind is Kind.FULL and manifest.prefix in (plain, f"{plain}-{manifest.position}"):
            return manifest.position
    saved = ", ".join(manifest.prefix for manifest in listing.manifests if manifest.kind is Kind.FULL)
    raise ConfigurationError(f"{place} holds no save named {filename!r}", hint=f"it holds {saved}")
