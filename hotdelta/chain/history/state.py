"""Finding a state in a run directory: the full and the deltas that lead to it, trusted and verified.

Everybody who reads values begins here, so that nobody can forget what comes before: with a signing key in the
environment only what it signed counts, and every file that is to be read has the digest that its manifest says.
Nothing is changed on disk, and no value is read: see state_reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.bundle.file_bytes import read_plainly
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node, Position
from hotdelta.chain.format.schema import MAX_SCHEMA_BYTES, Schema
from hotdelta.chain.history.plan import ApplyDelta, RestoreFull, plan
from hotdelta.chain.history.scan import Listing, Scanner, collecting_later
from hotdelta.chain.history.signing import trusted_listing
from hotdelta.chain.history.verification import directory_of, verify
from hotdelta.errors import ChainError, ConfigurationError, DamagedError, HoleError, ManifestError
from hotdelta.logs import ProgressLog

_THREADS = min(4, os.cpu_count() or 1)
# Less is hashed in less time than another thread needs to begin.
_LARGE_BYTES = 1024 * 1024
_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class ChainState:
    """A full and the deltas after it, in order; and what kept it from being newer, if anything did."""

    run_dir: Path
    full: Manifest
    deltas: tuple[Manifest, ...] = ()
    problems: tuple[ChainError, ...] = ()

    @property
    def newest(self) -> Manifest:
        return self.deltas[-1] if self.deltas else self.full

    @property
    def node(self) -> Node:
        return self.newest.node

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        return (self.full, *self.deltas)

    def full_alone(self) -> ChainState:
        return ChainState(self.run_dir, self.full)

    def newest_alone(self) -> ChainState:
        """The full and the newest delta: enough to ask for names, not for values."""
        return replace(self, deltas=self.deltas[-1:])

    def path(self, manifest: Manifest) -> str:
        """The prefix that RestoreV2 takes."""
        return str(directory_of(self.run_dir, manifest.kind) / manifest.prefix)


def find_state(
    run_dir: Path,
    *,
    listing: Listing | None = None,
    position: Position | Callable[[Listing], Position] | None = None,
    roles: Collection[str] = names.ROLES,
    has_one_schema: bool = False,
    otherwise: str = "",
) -> ChainState | None:
    """The newest state whose files (of these roles) are all as their manifests say, or the one at `position`.

    None when nothing was ever committed. `listing`: what a scan found, when there was one already. `position` may be
    chosen by a function of what can be trusted. `has_one_schema`: only links of the newest one's schema are used.
    Damage and holes are gone around as far as possible.

    Raises ConfigurationError when no such position was committed; ChainError when something was committed and none of
    it can be used (its hint ends with `otherwise`, what else the caller lets one do), or `position` cannot be reached.
    """
    found = trusted_listing(run_dir, Scanner(run_dir).scan() if listing is None else listing)
    if callable(position):
        position = position(found) if found.manifests else None
    _require_listable(run_dir, found)
    manifests = found.manifests if position is None else _until(position, run_dir, found)
    problems: list[ChainError] = []
    broken: set[tuple[Kind, str]] = set()
    while True:
        usable = [m for m in manifests if (m.kind, m.prefix) not in broken]
        state, problem = _reach(run_dir, replace(found, manifests=tuple(usable)), has_one_schema)
        if problem is not None:
            problems.append(problem)
        if state is None:
            _refuse_to_start_over(run_dir, found, problems, otherwise)
            return None
        damage = first_damage(run_dir, state.manifests, roles=roles)
        if damage is None:
            break
        problems.append(damage[1])
        broken.add((damage[0].kind, damage[0].prefix))
    if position is not None:
        _require_position(state, position, problems)
        return replace(state, problems=tuple(problems))
    return replace(state, problems=(*problems, *_refused_after(state.newest, found)))


def find_full_state(run_dir: Path, prefix: str, *, listing: Listing | None = None) -> ChainState | None:
    """This very full, whatever was committed after it, verified. None when there is no manifest of it.

    Raises ChainError as `find_full` does, and when a file is not what the manifest says.
    """
    full = find_full(run_dir, prefix, listing=listing)
    damage = first_damage(run_dir, [full]) if full else None
    if damage is not None:
        raise damage[1]
    return ChainState(run_dir, full) if full else None


def find_full(run_dir: Path, prefix: str, *, listing: Listing | None = None) -> Manifest | None:
    """The full of this name, which may be used; its files are not checked. None when there is no manifest of it.

    Raises ChainError when its manifest cannot be used; with a signing key, when that did not sign it.
    """
    trusted = trusted_listing(run_dir, Scanner(run_dir).scan() if listing is None else listing)
    for refused in trusted.refused:
        if refused.path.name == names.manifest_name(prefix):
            raise ChainError(
                f"{run_dir / prefix} cannot be used: {refused.reason}",
                hint="take another checkpoint, or bring the manifest back that its trainer wrote",
            )
    return next((m for m in trusted.manifests if m.kind is Kind.FULL and m.prefix == prefix), None)


def peek_state(run_dir: Path, *, listing: Listing | None = None) -> ChainState | None:
    """The newest state by the manifests alone, which are trusted; no file is verified: for names, never for values.

    None when there is none. Raises ChainError when something was committed and no full leads anywhere.
    """
    found = trusted_listing(run_dir, Scanner(run_dir).scan() if listing is None else listing)
    state, problem = _reach(run_dir, found, has_one_schema=False)
    if state is None and problem is not None:
        raise problem
    return state


def read_schema(run_dir: Path, manifest: Manifest) -> Schema | None:
    """What the model of a commit is made of; None when the file is not there, or another than the manifest means."""
    path = directory_of(run_dir, Kind.DELTA) / names.schema_name(manifest.schema)
    try:
        content = read_plainly(path, MAX_SCHEMA_BYTES)
        return Schema.from_json(content) if digest_bytes(content) == manifest.schema else None
    except (OSError, ManifestError):
        return None


def _reach(
    run_dir: Path, listing: Listing, has_one_schema: bool
) -> tuple[ChainState | None, ChainError | None]:
    """As far as the manifests lead, and why not further."""
    manifests = listing.manifests
    schema = manifests[-1].schema if has_one_schema and manifests else None
    with collecting_later():
        found = plan(None, manifests, schema=schema, refused=listing.refused)
    fulls = [step.manifest for step in found.steps if isinstance(step, RestoreFull)]
    deltas = tuple(step.manifest for step in found.steps if isinstance(step, ApplyDelta))
    return ChainState(run_dir, fulls[0], deltas) if fulls else None, found.problem


def _until(position: Position, run_dir: Path, listing: Listing) -> tuple[Manifest, ...]:
    kept = tuple(manifest for manifest in listing.manifests if manifest.position <= position)
    if listing.manifests and (not kept or kept[-1].position != position):
        known = list(dict.fromkeys(str(manifest.position) for manifest in listing.manifests))
        raise ConfigurationError(
            f"{run_dir} holds no position {position}",
            hint=f"it holds {', '.join(known[-_MAX_SHOWN:])}; leave `position` out for the newest",
        )
    return kept


def _require_position(state: ChainState, position: Position, problems: Sequence[ChainError]) -> None:
    """A position that was asked for by name is given or refused, never replaced by an earlier one."""
    if state.newest.position != position:
        for problem in problems:
            if isinstance(problem, DamagedError):
                raise problem
        raise HoleError(
            f"position {position} cannot be reached: the newest that can is {state.newest.position}",
            missing="a link before it",
            wanted_by=str(position),
            hint="choose another position, or leave `position` out for the newest",
        )


def _refused_after(newest: Manifest, listing: Listing) -> Iterator[ChainError]:
    """What would be newer if it could be used: it is left out, but not without a word."""
    for item in listing.refused:
        if item.position is not None and item.position > newest.position:
            yield ChainError(f"{item.path.name} of {item.position}: {item.reason}")


def _require_listable(run_dir: Path, listing: Listing) -> None:
    """What nobody can list may hold newer commits; going on without them would throw them away."""
    directories = [directory_of(run_dir, kind) for kind in Kind]
    for item in listing.refused:
        if item.path in directories:
            raise ChainError(
                f"{item.path}: {item.reason}, and newer commits may be in it",
                hint="make it readable, or use another directory",
            )


def _refuse_to_start_over(
    run_dir: Path, listing: Listing, problems: Sequence[ChainError], otherwise: str
) -> None:
    """Servers would follow an untrained model: that needs a human."""
    if listing.manifests or listing.refused:
        reasons = [*map(str, problems), *(f"{item.path.name}: {item.reason}" for item in listing.refused)]
        raise ChainError(
            f"no full checkpoint in {run_dir} can be used: {'; '.join(dict.fromkeys(reasons))}",
            hint=f"bring the files back, or use another directory{otherwise}",
        )


def first_damage(
    run_dir: Path, manifests: Sequence[Manifest], *, roles: Collection[str] = names.ROLES
) -> tuple[Manifest, DamagedError] | None:
    """The first of them of which a file of these roles is not as its manifest says, and why.

    Large commits are hashed in several threads, beside the small ones.
    """
    progress = ProgressLog("checking files", of=len(manifests))
    with ThreadPoolExecutor(_THREADS, "hotdelta-verifying") as pool:
        # The files of one role each: a full has two large ones, and is not to keep a single thread busy.
        beside = {
            at: [pool.submit(_find_damage, run_dir, manifest, [role]) for role in roles]
            for at, manifest in enumerate(manifests)
            if manifest.total_bytes >= _LARGE_BYTES
        }
        for done, manifest in enumerate(manifests):
            progress.tell(done)
            futures = beside.get(done)
            error = _first_of(futures) if futures else _find_damage(run_dir, manifest, roles)
            if error is not None:
                pool.shutdown(cancel_futures=True)
                return manifest, error
    return None


def _first_of(futures: Sequence[Future[DamagedError | None]]) -> DamagedError | None:
    return next((error for future in futures if (error := future.result()) is not None), None)


def _find_damage(run_dir: Path, manifest: Manifest, roles: Collection[str]) -> DamagedError | None:
    try:
        verify(run_dir, manifest, roles=roles)
    except DamagedError as error:
        return error
    return None
