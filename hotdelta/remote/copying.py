"""A chain from one place to another, each a directory or a store: commit by commit, verified, and resumed at its end.

A manifest is copied byte for byte, so its name, its state id and its signature stay. At the target a commit exists when
all that it needs is there; whatever was interrupted is done again. Never changes the source.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Listing, Scanner
from hotdelta.chain.history.signing import trusted_listing
from hotdelta.chain.store.lock import TrainerLock
from hotdelta.chain.store.retention import delete
from hotdelta.errors import ConfigurationError, DamagedError, NameTakenError, ObjectMissingError
from hotdelta.remote.arrivals import fetch_commit, fetch_schema, fetch_serving_graph
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.departures import Departures
from hotdelta.remote.directory_as_store import DirectoryAsStore
from hotdelta.remote.listing import list_commits
from hotdelta.remote.stores.contract import Store

_PIECES_AT_ONCE = 8


@dataclass(slots=True)
class Copied:
    """What was done. `gone`: commits that vanished from the source meanwhile, as its trainer deletes old ones."""

    copied: list[Manifest] = field(default_factory=list)
    there: list[Manifest] = field(default_factory=list)
    gone: list[Manifest] = field(default_factory=list)
    deleted: list[Manifest] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(manifest.total_bytes for manifest in self.copied)


class _Target(Protocol):
    """Where a commit is to be. One thread uses it."""

    def listing(self) -> Listing: ...

    def take(self, manifest: Manifest, on_bytes: Callable[[int], None]) -> bool:
        """False when it was there. Raises ObjectMissingError, DamagedError when the source has lost it."""
        ...

    def remove(self, manifest: Manifest) -> None: ...

    def finish(self) -> None: ...


def copy_chain(
    source: Path | Store,
    found: Listing,
    target: Path | Store,
    *,
    is_deleting: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> Copied:
    """Copies the commits that were found in the source, in the order of their positions.

    `is_deleting`: then the target loses what the source has not, also a commit whose name another one now has.
    `on_bytes` hears of progress, in any thread. May be called again after any error, and goes on where it ended.

    Raises StoreError, CommitError, DirectoryBusyError when a trainer writes to the target, ConfigurationError.
    """
    done = Copied()
    with _opened_target(source, found, target) as place:
        before = {(m.kind, m.position): m for m in place.listing().manifests}
        wanted = _last_of_each_name(found.manifests) if isinstance(target, Path) else found.manifests
        if is_deleting:
            _require_whole(found)
        for manifest in wanted:
            for other in _in_the_way(before.values(), manifest):
                if not is_deleting:
                    raise _taken(target, other, manifest)
                place.remove(other)
                done.deleted.append(other)
            try:
                is_new = place.take(manifest, on_bytes or _ignore)
            except (ObjectMissingError, DamagedError):
                if _is_still_there(source, manifest):
                    raise
                done.gone.append(manifest)
            else:
                (done.copied if is_new else done.there).append(manifest)
        if is_deleting:
            for manifest in _superfluous(before.values(), [*wanted, *done.deleted]):
                place.remove(manifest)
                done.deleted.append(manifest)
        place.finish()
    return done


def look_at(source: Path | Store) -> Listing:
    """What is there, and with a signing key in the environment only what it signed. Raises StoreError."""
    if isinstance(source, Path):
        return trusted_listing(source, Scanner(source).scan())
    return list_commits(source)


@contextmanager
def _opened_target(source: Path | Store, found: Listing, target: Path | Store) -> Iterator[_Target]:
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(_PIECES_AT_ONCE, "hotdelta-copy"))
        if isinstance(target, Path):
            stack.enter_context(TrainerLock(target))
            readable = DirectoryAsStore(source, found) if isinstance(source, Path) else source
            yield _IntoDirectory(readable, target, pool)
        elif isinstance(source, Path):
            yield _IntoStore(source, target, pool)
        else:
            spool = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hotdelta-copy-")))
            yield _ThroughSpool(_IntoDirectory(source, spool, pool), _IntoStore(spool, target, pool))


class _IntoDirectory:
    def __init__(self, source: Store, run_dir: Path, pool: Executor) -> None:
        self._source = source
        self._log = CommitLog(source)
        self._run_dir = run_dir
        self._pool = pool
        self._disk = Disk()
        self._schemas: set[str] = set()

    def listing(self) -> Listing:
        return Scanner(self._run_dir).scan()

    def take(self, manifest: Manifest, on_bytes: Callable[[int], None]) -> bool:
        self._take_companions(manifest.schema)
        _, content = self._log.read(manifest.kind, manifest.position)
        return fetch_commit(
            self._source,
            manifest,
            content,
            self._run_dir,
            pool=self._pool,
            disk=self._disk,
            on_bytes=on_bytes,
        )

    def remove(self, manifest: Manifest) -> None:
        delete(self._run_dir, manifest, self._disk)

    def finish(self) -> None:
        """All is durable."""

    def _take_companions(self, schema: str) -> None:
        """Before the first commit that needs them."""
        if schema not in self._schemas:
            fetch_schema(self._source, schema, self._run_dir, disk=self._disk)
            fetch_serving_graph(self._source, schema, self._run_dir, pool=self._pool, disk=self._disk)
            self._schemas.add(schema)


class _IntoStore:
    def __init__(self, run_dir: Path, target: Store, pool: Executor) -> None:
        self._target = target
        self._log = CommitLog(target)
        self._departures = Departures(target, run_dir, pool=pool)
        self._there: set[tuple[Kind, Position]] = set()

    def listing(self) -> Listing:
        listing = list_commits(self._target)
        self._there = {(manifest.kind, manifest.position) for manifest in listing.manifests}
        return listing

    def has(self, manifest: Manifest) -> bool:
        """Its name is put last, so all else is there as well."""
        return (manifest.kind, manifest.position) in self._there

    def take(self, manifest: Manifest, on_bytes: Callable[[int], None]) -> bool:
        if self.has(manifest):
            return False
        self._departures.send_rest(manifest)
        on_bytes(manifest.total_bytes)
        return True

    def remove(self, manifest: Manifest) -> None:
        self._log.remove(manifest)
        self._there.discard((manifest.kind, manifest.position))

    def finish(self) -> None:
        newest = {kind: max(self._log.positions_after(kind, None), default=None) for kind in Kind}
        head = Head(full=newest[Kind.FULL], delta=newest[Kind.DELTA])
        if head != self._log.head():
            self._log.tell_head(head)


class _ThroughSpool:
    """From store to store: a commit at a time lies in a directory between them."""

    def __init__(self, spool: _IntoDirectory, target: _IntoStore) -> None:
        self._spool = spool
        self._target = target
        self.listing = target.listing
        self.remove = target.remove
        self.finish = target.finish

    def take(self, manifest: Manifest, on_bytes: Callable[[int], None]) -> bool:
        if self._target.has(manifest):
            return False
        try:
            self._spool.take(manifest, _ignore)
            return self._target.take(manifest, on_bytes)
        finally:
            self._spool.remove(manifest)


def _ignore(count: int) -> None:
    """Nobody asks how far it is."""


def _last_of_each_name(manifests: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """Two branches may have used a name, which says only the step; in a directory the later one has it."""
    last = {(manifest.kind, manifest.prefix): manifest for manifest in manifests}
    return tuple(m for m in manifests if last[m.kind, m.prefix].node == m.node)


def _superfluous(there: Iterable[Manifest], wanted: Sequence[Manifest]) -> list[Manifest]:
    """In the order in which a trainer deletes."""
    kept = {(manifest.kind, manifest.node) for manifest in wanted}
    going = [manifest for manifest in there if (manifest.kind, manifest.node) not in kept]
    return sorted(going, key=lambda manifest: (manifest.position, manifest.kind is Kind.DELTA))


def _require_whole(found: Listing) -> None:
    if found.refused:
        raise ConfigurationError(
            f"{found.refused[0].path} of the source cannot be used: {found.refused[0].reason}",
            hint="nothing is deleted at the target while that is so: copy without --delete, or mend the source",
        )


def _in_the_way(there: Iterable[Manifest], manifest: Manifest) -> list[Manifest]:
    """Another commit that has the position, or the name in a directory."""
    return [
        other
        for other in there
        if other.kind is manifest.kind
        and other.node != manifest.node
        and (other.position == manifest.position or other.prefix == manifest.prefix)
    ]


def _taken(target: Path | Store, other: Manifest, manifest: Manifest) -> NameTakenError:
    place = target if isinstance(target, Path) else target.address
    return NameTakenError(
        f"{place} has another {other.kind} ({other.node}) in the place of {manifest.node}",
        hint="it is another chain, or was continued there: copy to an empty place, or let --delete remove it",
    )


def _is_still_there(source: Path | Store, manifest: Manifest) -> bool:
    return any(
        found.node == manifest.node and found.kind is manifest.kind for found in look_at(source).manifests
    )
