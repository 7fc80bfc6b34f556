"""Remembers which commits could not be used and why, so that they are neither retried for ever nor forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain import Kind, Listing, Manifest, Position, Refused, directory_of
from hotdelta.chain.format import names
from hotdelta.errors import HotdeltaError
from loader.files.commit_files import Stamps, stamp_files

_Key = tuple[Kind, str, str]

_AGAIN_SECONDS = 10.0


@dataclass(slots=True)
class _Broken:
    manifest: Manifest
    error: HotdeltaError
    stamps: Stamps
    since: float
    tried: float
    is_final: bool
    failures: int
    """With these stamps."""


class BrokenLinks:
    """Commits that failed. A retryable failure is final only after `late_seconds`: its data may still be arriving.

    When the files of a commit change, it gets another chance. So does, now and then, one whose files could not be
    read: what was in the way may go without a trace on them. And once every other: its files may have been replaced
    after they were read and before we looked which ones they are. One thread at a time.
    """

    def __init__(self, run_dir: Path, *, late_seconds: float, clock: Callable[[], float]) -> None:
        self._run_dir = run_dir
        self._late_seconds = late_seconds
        self._clock = clock
        self._broken: dict[_Key, _Broken] = {}

    def add(self, manifest: Manifest, error: HotdeltaError) -> None:
        _let_go(error)
        now = self._clock()
        known = self._broken.get(_key(manifest))
        since = known.since if known else now
        is_final = not error.retryable or now - since >= self._late_seconds
        stamps = stamp_files(self._run_dir, manifest)
        failures = known.failures + 1 if known and known.stamps == stamps else 1
        self._broken[_key(manifest)] = _Broken(manifest, error, stamps, since, now, is_final, failures)

    def forget(self, manifest: Manifest) -> None:
        """It could be used after all."""
        self._broken.pop(_key(manifest), None)

    def late(self) -> HotdeltaError | None:
        """The failure of a commit that is still being retried."""
        return next((item.error for item in self._broken.values() if not item.is_final), None)

    def newest(self) -> tuple[Position, HotdeltaError] | None:
        """The newest commit that is not tried again as it is, and what is wrong with it."""
        final = [item for item in self._broken.values() if item.is_final]
        item = max(final, key=lambda item: item.manifest.position, default=None)
        return (item.manifest.position, item.error) if item else None

    @property
    def final(self) -> tuple[tuple[Manifest, HotdeltaError], ...]:
        """Every commit that is not tried again as it is."""
        return tuple((item.manifest, item.error) for item in self._broken.values() if item.is_final)

    def filter(self, listing: Listing) -> Listing:
        """The listing with the broken commits among the refused ones, and their reasons."""
        if not self._broken:
            return listing
        present = {_key(manifest): manifest for manifest in listing.manifests}
        # A manifest that says something else by now is another commit, whatever its name.
        self._broken = {key: item for key, item in self._broken.items() if present.get(key) == item.manifest}
        for item in self._broken.values():
            self._judge_anew(item)
        final = {key: item for key, item in self._broken.items() if item.is_final and not self._is_due(item)}
        return Listing(
            tuple(manifest for manifest in listing.manifests if _key(manifest) not in final),
            (*listing.refused, *(self._refused(item) for item in final.values())),
        )

    def _judge_anew(self, item: _Broken) -> None:
        stamps, now = stamp_files(self._run_dir, item.manifest), self._clock()
        if stamps != item.stamps:
            item.stamps, item.since, item.is_final = stamps, now, False
        elif now - item.since >= self._late_seconds:
            item.is_final = True

    def _is_due(self, item: _Broken) -> bool:
        can_help = item.error.retryable or item.failures == 1
        return can_help and self._clock() - item.tried >= _AGAIN_SECONDS

    def _refused(self, item: _Broken) -> Refused:
        manifest = item.manifest
        path = directory_of(self._run_dir, manifest.kind) / names.manifest_name(manifest.prefix)
        return Refused(path, item.error.message, manifest.position)


def _let_go(error: BaseException) -> None:
    """What is kept for its words must not keep what was at hand when it was raised: models, arrays, bytes of files."""
    at: BaseException | None = error
    while at is not None:
        earlier = at.__cause__ or at.__context__
        at.__traceback__ = at.__cause__ = at.__context__ = None
        at = earlier


def _key(manifest: Manifest) -> _Key:
    return manifest.kind, manifest.prefix, manifest.state_id
