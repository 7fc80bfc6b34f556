"""The chain that a command is asked about, here or in a store: listed, trusted, and really there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hotdelta.chain import Disk, Listing, Manifest, Position, Scanner, verify
from hotdelta.chain.history.signing import trusted_listing
from hotdelta.chain.history.state import peek_state
from hotdelta.errors import ChainError, ConfigurationError, ManifestError
from hotdelta.given_directory import to_directory
from hotdelta.remote.arrivals import fetch_commit, fetch_schema
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.listing import list_commits, verify_objects
from hotdelta.remote.stores.address import is_address
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store

NEWEST = "newest"
_MAX_SHOWN = 10
_PIECES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class OpenedChain:
    """What a place held when it was looked at.

    `place`: as people know it. `directory`: where it lies, or for a store a temporary one, in which nothing lies but
    what a block of `files_of` or `schema_of` has brought.
    """

    place: str
    directory: Path
    listing: Listing
    store: Store | None = None

    def commits_at(self, position: Position) -> tuple[Manifest, ...]:
        """The full, the delta, or both that are at a position. Raises ConfigurationError when there is none."""
        found = tuple(m for m in self.listing.manifests if m.position == position)
        if not found:
            known = list(dict.fromkeys(str(manifest.position) for manifest in self.listing.manifests))
            held = f"it holds {', '.join(known[-_MAX_SHOWN:])}" if known else "it holds none that can be used"
            raise ConfigurationError(f"{self.place} holds no position {position}", hint=held)
        return found

    def position(self, given: str | None) -> Position:
        """The one that is written so; `newest`, or nothing, is the newest there is. Raises ConfigurationError."""
        if given in (None, NEWEST):
            if not self.listing.manifests:
                raise ConfigurationError(f"nothing in {self.place} can be used", hint="see: hotdelta verify")
            return max(manifest.position for manifest in self.listing.manifests)
        return parse_position(given or "")

    def way_to(self, position: Position) -> tuple[Manifest, ...]:
        """What has to be brought from a store for that state; of a directory all is there, and damage is gone around.

        Raises ConfigurationError, and ChainError when no full leads there.
        """
        if self.store is None:
            return ()
        self.commits_at(position)
        until = tuple(manifest for manifest in self.listing.manifests if manifest.position <= position)
        state = peek_state(self.directory, listing=replace(self.listing, manifests=until))
        if state is None or state.newest.position != position:
            raise ChainError(f"no full leads to {position} in {self.place}", hint="see: hotdelta verify")
        return state.manifests

    def schema_of(self, manifest: Manifest) -> Path:
        """The directory in which the schema of a commit lies, as far as there is one. Raises StoreError."""
        if self.store is not None:
            fetch_schema(self.store, manifest.schema, self.directory, disk=Disk())
        return self.directory

    @contextmanager
    def files_of(self, manifests: Sequence[Manifest], *, roles: Collection[str]) -> Iterator[Path]:
        """A directory in which files of these roles of these commits lie, and the schema of the last one.

        Of a store they are brought, and are gone when the block is left: no more disk is needed than for them.
        Raises StoreError, CommitError when the disk is full.
        """
        if self.store is None:
            yield self.directory
            return
        with (
            tempfile.TemporaryDirectory(dir=self.directory) as place,
            ThreadPoolExecutor(_PIECES_AT_ONCE, "hotdelta-fetch") as pool,
        ):
            run_dir, log, disk = Path(place), CommitLog(self.store), Disk()
            for manifest in manifests:
                _, content = log.read(manifest.kind, manifest.position)
                fetch_commit(self.store, manifest, content, run_dir, pool=pool, disk=disk, roles=roles)
            fetch_schema(self.store, manifests[-1].schema, run_dir, disk=disk)
            yield run_dir

    def verify(self, manifest: Manifest, *, on_read: Callable[[int], None] | None = None) -> None:
        """Raises DamagedError when a file is not what the manifest says, StoreError."""
        if self.store is None:
            verify(self.directory, manifest, on_read=on_read)
        else:
            verify_objects(self.store, manifest, on_read=on_read)


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
    """Of a directory. Raises ConfigurationError when there is no chain to look at."""
    directory = require_directory(given)
    listing = trusted_listing(directory, Scanner(directory).scan())
    if not listing.manifests and not listing.refused:
        raise ConfigurationError(
            f"nothing is committed in {directory}",
            hint=_why_empty(directory),
        )
    return OpenedChain(str(directory), directory, listing)


@contextmanager
def opened_chain(given: str) -> Iterator[OpenedChain]:
    """Of a directory or a store. Raises ConfigurationError when there is no chain to look at, StoreError."""
    if not is_address(given):
        yield open_chain(given)
        return
    store = open_store(given)
    try:
        listing = list_commits(store)
        if not listing.manifests and not listing.refused:
            raise ConfigurationError(
                f"nothing was published in {store.address}",
                hint="give the address that the trainer publishes to",
            )
        with tempfile.TemporaryDirectory(prefix="hotdelta-") as directory:
            yield OpenedChain(store.address, Path(directory), listing, store)
    finally:
        store.close()


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
