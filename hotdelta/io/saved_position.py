"""Which full and which deltas a directory, a position or a file name means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotdelta.chain import names
from hotdelta.chain.manifest import Kind, Manifest
from hotdelta.chain.plan import ApplyDelta, RestoreFull, plan
from hotdelta.chain.position import Position
from hotdelta.chain.scan import Listing, Scanner
from hotdelta.chain.signing import trusted_listing
from hotdelta.errors import ChainError, ConfigurationError, HoleError


def named_prefix(step: int, filename: str) -> str:
    """The prefix of a save that the user gave a name."""
    return f"{names.FULL_STEM}{step}-{filename}"


def list_until(
    directory: Path, *, position: Position | str | None = None, filename: str | None = None
) -> Listing:
    """What was committed up to a position, or up to the newest save of that name; by default everything.

    Raises ConfigurationError when there is nothing, or not that.
    """
    listing = trusted_listing(directory, Scanner(directory).scan())
    if not listing.manifests and not listing.refused:
        raise ConfigurationError(
            f"nothing is saved in {directory}",
            hint="give the directory that save_persistables, or a trainer, wrote to",
        )
    if filename is not None:
        position = _find_named(listing, filename, directory)
    if position is None:
        return listing
    wanted = _as_position(position)
    kept = tuple(manifest for manifest in listing.manifests if manifest.position <= wanted)
    if not kept or kept[-1].position != wanted:
        raise ConfigurationError(
            f"{directory} holds no position {wanted}", hint=f"it holds {_show_positions(listing)}"
        )
    return Listing(kept, ())


def route(directory: Path, listing: Listing) -> Sequence[Manifest]:
    """The full and the deltas that lead to the newest position of a listing; files are not verified.

    Raises ChainError when no full leads there.
    """
    found = plan(None, listing.manifests, refused=listing.refused)
    steps = [step.manifest for step in found.steps if isinstance(step, RestoreFull | ApplyDelta)]
    if not steps:
        raise found.problem or ChainError(f"{directory} holds no full checkpoint that can be used")
    return steps


def refuse_other_position(newest: Manifest, listing: Listing) -> None:
    """A position that was asked for by name is given or refused, never replaced by an earlier one."""
    wanted = listing.manifests[-1].position
    if newest.position != wanted:
        raise HoleError(
            f"position {wanted} cannot be reached: the newest that can is {newest.position}",
            missing="a link before it",
            wanted_by=str(wanted),
            hint="choose another position, or leave it out for the newest that can be used",
        )


def _as_position(given: Position | str) -> Position:
    if not isinstance(given, Position | str):
        raise ConfigurationError(
            f"position is {given!r}", hint='give text, as "3.10": the number 3.10 is the number 3.1'
        )
    return Position.parse(given) if isinstance(given, str) else given


def _find_named(listing: Listing, filename: str, directory: Path) -> Position:
    for manifest in reversed(listing.manifests):
        plain = named_prefix(manifest.step, filename)
        if manifest.kind is Kind.FULL and manifest.prefix in (plain, f"{plain}-{manifest.position}"):
            return manifest.position
    saved = ", ".join(manifest.prefix for manifest in listing.manifests if manifest.kind is Kind.FULL)
    raise ConfigurationError(f"{directory} holds no save named {filename!r}", hint=f"it holds {saved}")


def _show_positions(listing: Listing) -> str:
    positions = list(dict.fromkeys(str(manifest.position) for manifest in listing.manifests))
    return ", ".join(positions[-10:])
