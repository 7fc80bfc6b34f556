"""What the directory holds now: every committed manifest, and every one that cannot be used with the reason.

Scanning only reads. Files may come and go meanwhile: retention deletes, trainers commit.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hotdelta.chain.bundle.file_bytes import read_plainly
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import MAX_MANIFEST_BYTES, Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ManifestError


@dataclass(frozen=True, slots=True)
class Refused:
    """A manifest that cannot be used, and its position if that is known. `is_unread`: the next scan tries again."""

    path: Path
    reason: str
    position: Position | None = None
    is_unread: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The committed manifests by position, a full before its closing delta, and those that are refused."""

    manifests: tuple[Manifest, ...] = ()
    refused: tuple[Refused, ...] = ()


@contextmanager
def collecting_later() -> Iterator[None]:
    """No garbage is collected while thousands of objects are made that stay: to look for it among them, and among
    those of TensorFlow, again and again, takes a quarter of the time.

    Several threads may be inside, and one may enter it again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Inode, size and time of modification: what tells whether a file is still the one that was parsed.
_Version = tuple[int, int, int]
_Parsed = tuple[_Version, Manifest | Refused]

_UNKNOWN: _Version = (0, 0, 0)


class Scanner:
    """Lists a run directory again and again; what was parsed once is kept. One thread at a time.

    `distrust` (the check of a signature) says why a manifest must not be used, or nothing.
    """

    def __init__(self, directory: Path, *, distrust: Callable[[Manifest], str] | None = None) -> None:
        self._directory = directory
        self._distrust = distrust
        self._parsed: dict[str, _Parsed] = {}
        self._listing = Listing()

    def scan(self) -> Listing:
        """Never raises because files vanish meanwhile; a directory that is missing is empty."""
        found: dict[str, _Parsed] = {}
        with collecting_later():
            for kind in Kind:
                found.update(self._scan_directory(kind))
            if found != self._parsed:
                self._parsed = found
                self._listing = self._rebuilt()
        return self._listing

    def _scan_directory(self, kind: Kind) -> dict[str, _Parsed]:
        directory = directory_of(self._directory, kind)
        try:
            listed = list(_list_manifests(directory))
        except FileNotFoundError:
            return {}
        except OSError as error:
            # What was there is not gone because nobody can look.
            refused = Refused(directory, f"it cannot be listed: {error.strerror}", is_unread=True)
            return {**self._known_in(directory), str(directory): (_UNKNOWN, refused)}
        found: dict[str, _Parsed] = {}
        for path, version in listed:
            known = self._parsed.get(path)
            parsed = known[1] if known and _is_valid(known, version) else self._read(path, kind)
            if parsed is not None:
                found[path] = (version, parsed)
        return found

    def _known_in(self, directory: Path) -> dict[str, _Parsed]:
        return {
            path: known
            for path, known in self._parsed.items()
            if Path(path).parent == directory and is_manifest_name(Path(path).name)
        }

    def add(self, paths: Iterable[Path]) -> Listing:
        """Add these manifests to the last listing, without listing anything. Other paths are ignored."""
        added = [found for path in paths if (found := self._find_news(path)) is not None]
        if added:
            are_new = not any(key in self._parsed for key, _ in added)
            self._parsed.update(added)
            extended = _extended(self._listing, [parsed for _, (_, parsed) in added]) if are_new else None
            self._listing = extended or self._rebuilt()
        return self._listing

    def _find_news(self, path: Path) -> tuple[str, _Parsed] | None:
        """A manifest that is new, or has changed since it was parsed; None for any other path."""
        kind, version = self._kind_of(path), _version(path)
        if kind is None or version is None:
            return None
        # Spelled as a scan does: of the directory "." it is "./name", which Path makes "name".
        key = os.path.join(directory_of(self._directory, kind), path.name)  # noqa: PTH118
        known = self._parsed.get(key)
        parsed = None if known and _is_valid(known, version) else self._read(str(path), kind)
        return (key, (version, parsed)) if parsed is not None else None

    def _kind_of(self, path: Path) -> Kind | None:
        if not is_manifest_name(path.name):
            return None
        return next((kind for kind in Kind if directory_of(self._directory, kind) == path.parent), None)

    def _rebuilt(self) -> Listing:
        return _build_listing({path: parsed for path, (_, parsed) in self._parsed.items()})

    def _read(self, path: str, kind: Kind) -> Manifest | Refused | None:
        parsed = _parse(path, kind)
        reason = self._distrust(parsed) if self._distrust and isinstance(parsed, Manifest) else ""
        return Refused(Path(path), reason, parsed.position) if reason and parsed else parsed


def _is_valid(known: _Parsed, version: _Version) -> bool:
    """A file that could not be read may be readable next time, and nothing of it need change for that."""
    return known[0] == version and not (isinstance(known[1], Refused) and known[1].is_unread)


def _list_manifests(directory: Path) -> Iterator[tuple[str, _Version]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_manifest_name(entry.name):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except OSError:
                    yield entry.path, _UNKNOWN
                else:
                    yield entry.path, (status.st_ino, status.st_size, status.st_mtime_ns)


def _version(path: Path) -> _Version | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_manifest_name(name: str) -> bool:
    """A name that cannot be printed is none: no trainer writes one, and no log or answer could show it."""
    has_form = name.startswith((names.FULL_STEM, names.DELTA_STEM)) and name.endswith(names.MANIFEST_SUFFIX)
    return has_form and name.isprintable()


def _parse(path: str, kind: Kind) -> Manifest | Refused | None:
    try:
        manifest = Manifest.from_json(read_plainly(path, MAX_MANIFEST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Refused(Path(path), f"it cannot be read: {error.strerror}", is_unread=True)
    except ManifestError as error:
        return Refused(Path(path), str(error))
    if manifest.kind is not kind:
        return Refused(Path(path), f"it is a {manifest.kind} in the directory of {kind}s", manifest.position)
    if os.path.basename(path) != names.manifest_name(manifest.prefix):  # noqa: PTH119
        return Refused(Path(path), f"it says that its prefix is {manifest.prefix!r}", manifest.position)
    return manifest


def _extended(listing: Listing, added: Sequence[Manifest | Refused]) -> Listing | None:
    """The listing with more manifests when these are simply the newest; None when it takes more than that.

    What is refused for good must not make every new manifest cost as much as all the old ones.
    """
    if not listing.manifests or any(isinstance(item, Refused) for item in added):
        return None
    newer = sorted((item for item in added if isinstance(item, Manifest)), key=lambda item: item.position)
    positions = [manifest.position for manifest in (listing.manifests[-1], *newer)]
    is_line = all(before < after for before, after in itertools.pairwise(positions))
    is_disputed = any(item.position in positions for item in listing.refused)
    if not is_line or is_disputed:
        return None
    return replace(listing, manifests=(*listing.manifests, *newer))


def _build_listing(parsed: Mapping[str, Manifest | Refused]) -> Listing:
    state_ids: dict[Position, set[str]] = defaultdict(set)
    for item in parsed.values():
        if isinstance(item, Manifest):
            state_ids[item.position].add(item.state_id)
    manifests, refused = [], []
    for path, item in parsed.items():
        if isinstance(item, Refused):
            refused.append(item)
        elif len(state_ids[item.position]) > 1:
            reason = (
                f"two different states say that they are {item.position}: two histories lie in one directory"
            )
            refused.append(Refused(Path(path), reason, item.position))
        else:
            manifests.append(item)
    # By numbers: comparing 20,000 positions as such takes half a second.
    manifests.sort(
        key=lambda m: (m.position.run, m.position.seq, m.kind is Kind.DELTA, m.prefix),
    )
    return Listing(tuple(manifests), tuple(sorted(refused, key=lambda item: item.path)))
