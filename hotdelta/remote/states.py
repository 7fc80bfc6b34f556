"""Bringing a state of a store into a local directory: its full, and the deltas that lead on from there.

Chooses by the rules of any reader (`chain/history/plan`), from the newest full backwards, so that of a long log only
the end is read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.plan import ApplyDelta, RestoreFull, plan
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.signing import SigningKey
from hotdelta.chain.store.retention import delete
from hotdelta.errors import ChainError, ManifestError, ObjectMissingError
from hotdelta.logs import ProgressLog, event
from hotdelta.remote.arrivals import fetch_commit, fetch_schema, fetch_serving_graph
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.stores.contract import Store

logger = logging.getLogger(__name__)

_PIECES_AT_ONCE = 8

_Key = tuple[Kind, Position]


def fetch_state(
    store: Store,
    run_dir: Path,
    *,
    there: Mapping[Kind, Collection[Position]],
    disk: Disk,
    floor: Position | None = None,
    until: Position | None = None,
    roles: Collection[str] = names.ROLES,
) -> Position | None:
    """Brings the newest state that can be had, with schema and serving graph, and returns its position.

    `there`: what is in the log. `floor`: a state that is here already; None is returned when nothing is newer. `until`:
    nothing behind this position counts. A commit that lies here under a name of those that come makes way: its branch
    was passed over.

    Raises StoreError, CommitError; ChainError when there are commits and no state can be had.
    """
    if until is not None:
        there = {kind: {position for position in there[kind] if position <= until} for kind in Kind}
    with ThreadPoolExecutor(_PIECES_AT_ONCE, "hotdelta-fetch") as pool:
        fetching = _Fetching(store, run_dir, there, disk=disk, roles=roles, pool=pool)
        for full in sorted(there[Kind.FULL], reverse=True):
            if (position := fetching.fetch_from(full, floor)) is not None:
                return position
    if floor is None and any(there.values()):
        raise ChainError(
            f"no state in {store.address} can be had: {'; '.join(fetching.problems) or 'there is no full'}",
            hint="run `hotdelta verify` on it, or use another address",
        )
    return None


class _Fetching:
    """Reads each manifest once, and remembers which commits cannot be had. Belongs to one thread."""

    def __init__(
        self,
        store: Store,
        run_dir: Path,
        there: Mapping[Kind, Collection[Position]],
        *,
        disk: Disk,
        roles: Collection[str],
        pool: ThreadPoolExecutor,
    ) -> None:
        self.problems: list[str] = []
        self._store = store
        self._log = CommitLog(store)
        self._run_dir = run_dir
        self._there = there
        self._disk = disk
        self._roles = roles
        self._pool = pool
        self._key = SigningKey.from_environment()
        self._read: dict[_Key, tuple[Manifest, bytes] | None] = {}

    def fetch_from(self, full: Position, floor: Position | None) -> Position | None:
        """The newest state that this full, or a later one, leads to."""
        while wanted := self._plan(full):
            newest = wanted[-1]
            if floor is not None and newest.position <= floor:
                return None
            if self._fetch_all(wanted):
                fetch_schema(self._store, newest.schema, self._run_dir, disk=self._disk)
                fetch_serving_graph(
                    self._store, newest.schema, self._run_dir, pool=self._pool, disk=self._disk
                )
                return newest.position
        return None

    def _plan(self, full: Position) -> list[Manifest]:
        """The full to begin with and the deltas in order; empty when nothing leads anywhere."""
        keys = [(kind, position) for kind in Kind for position in self._there[kind] if position >= full]
        new = [key for key in keys if key not in self._read]
        self._read.update(zip(new, self._pool.map(self._read_manifest, new), strict=True))
        known = [read[0] for key in sorted(keys) if (read := self._read[key]) is not None]
        steps = plan(None, known).steps
        return [step.manifest for step in steps if isinstance(step, RestoreFull | ApplyDelta)]

    def _read_manifest(self, key: _Key) -> tuple[Manifest, bytes] | None:
        try:
            manifest, content = self._log.read(*key)
        except (ManifestError, ObjectMissingError) as error:
            self.problems.append(str(error))
            return None
        reason = self._key.distrust(manifest) if self._key is not None else ""
        if reason:
            self.problems.append(f"{manifest.kind} {manifest.position}: {reason}")
        return None if reason else (manifest, content)

    def _fetch_all(self, wanted: Sequence[Manifest]) -> bool:
        """False when one of them cannot be had; then it is not planned with again."""
        self._make_way(wanted)
        progress = ProgressLog("fetching commits", of=len(wanted), store=self._store.address)
        for done, manifest in enumerate(wanted):
            # One after the other, as a trainer commits: only the pieces of their files come side by side.
            if not self._fetch(manifest):
                return False
            progress.tell(done + 1)
        return True

    def _fetch(self, manifest: Manifest) -> bool:
        key = (manifest.kind, manifest.position)
        read = self._read[key]
        if read is None:
            return False
        try:
            fetch_commit(
                self._store, *read, self._run_dir, pool=self._pool, disk=self._disk, roles=self._roles
            )
        except (ObjectMissingError, ManifestError) as error:
            self.problems.append(str(error))
            self._read[key] = None
            return False
        return True

    def _make_way(self, wanted: Sequence[Manifest]) -> None:
        """Two branches may have used a name, which says only the step: the one that was passed over gives it up."""
        coming = {(manifest.kind, manifest.prefix): manifest for manifest in wanted}
        for manifest in Scanner(self._run_dir).scan().manifests:
            other = coming.get((manifest.kind, manifest.prefix))
            if other is not None and other.node != manifest.node:
                phrase = "a commit of a branch that was passed over is removed"
                event(logger, logging.WARNING, phrase, position=manifest.position, name=manifest.prefix)
                delete(self._run_dir, manifest, self._disk)
