"""What the directory holds now: every committed manifest, and every one that cannot be used with the reason.

Scanning only reads. Files may come and go meanwhile: retention deletes, trainers commit.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain import names
from hotdelta.chain.digest import digest_file
from hotdelta.chain.manifest import MAX_MANIFEST_BYTES, FileRecord, Kind, Manifest
from hotdelta.chain.position import Position
from hotdelta.errors import DamagedError, ManifestError


@dataclass(frozen=True, slots=True)
class Refused:
    """A manifest that cannot be used; its position when it could be read so far."""

    path: Path
    reason: str
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The committed manifests by position, a full before its closing delta, and those that are refused."""

    manifests: tuple[Manifest, ...] = ()
    refused: tuple[Refused, ...] = ()


# Inode, size and time of modification: what tells whether a file is still the one that was parsed.
_Version = tuple[int, int, int]


def directory_of(run_dir: Path, kind: Kind) -> Path:
    return run_dir if kind is Kind.FULL else run_dir / names.DELTA_DIRECTORY


class Scanner:
    """Lists a run directory again and again; what was parsed once is kept. One thread at a time.

    With an `is_trusted` (the check of a signature) manifests that it does not trust are refused.
    """

    def __init__(self, directory: Path, *, is_trusted: Callable[[Manifest], bool] | None = None) -> None:
        self._directory = directory
        self._is_trusted = is_trusted
        self._parsed: dict[str, tuple[_Version, Manifest | Refused]] = {}
        self._listing = Listing()

    def scan(self) -> Listing:
        """Never raises because files vanish meanwhile; a directory that is missing is empty."""
        found: dict[str, tuple[_Version, Manifest | Refused]] = {}
        for kind in Kind:
            for path, version in _list_manifests(directory_of(self._directory, kind)):
                known = self._parsed.get(path)
                parsed = known[1] if known and known[0] == version else self._read(Path(path), kind)
                if parsed is not None:
                    found[path] = (version, parsed)
        if found != self._parsed:
            self._parsed = found
            self._listing = _build_listing({path: parsed for path, (_, parsed) in found.items()})
        return self._listing

    def _read(self, path: Path, kind: Kind) -> Manifest | Refused | None:
        parsed = _parse(path, kind)
        if self._is_trusted is None or not isinstance(parsed, Manifest) or self._is_trusted(parsed):
            return parsed
        reason = "its signature is wrong" if parsed.signature else "it is not signed, and a key is configured"
        return Refused(path, reason, parsed.position)


def verify(run_dir: Path, manifest: Manifest, *, roles: Collection[str] | None = None) -> None:
    """Compares sizes and digests of the files of a commit (of those roles) with its manifest.

    Raises DamagedError, retryable when a file is missing or too short: it may still be arriving.
    """
    directory = directory_of(run_dir, manifest.kind)
    for file in manifest.files:
        if roles is None or file.role in roles:
            _verify_file(directory / file.name, file, str(manifest.position))


def _verify_file(path: Path, file: FileRecord, position: str) -> None:
    try:
        fd = open_plainly(path)
        try:
            size = os.fstat(fd).st_size
            size, digest = digest_file(fd) if size == file.bytes else (size, "")
        finally:
            os.close(fd)
    except OSError as error:
        raise DamagedError(
            f"{path.name} of {position} cannot be read: {error.strerror}",
            path=path,
            position=position,
            retryable=True,
            hint="it may still be arriving; if not, a later full steps over it",
        ) from error
    if size != file.bytes:
        raise DamagedError(
            f"{path.name} of {position} has {size} bytes, its manifest says {file.bytes}",
            path=path,
            position=position,
            retryable=size < file.bytes,
            hint="it may still be arriving" if size < file.bytes else "copy it again, or wait for a full",
        )
    if digest != file.digest:
        raise DamagedError(
            f"{path.name} of {position} does not have the digest that its manifest says",
            path=path,
            position=position,
            hint="copy it again, or wait for a full",
        )


def _list_manifests(directory: Path) -> Iterator[tuple[str, _Version]]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not is_manifest_name(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                yield entry.path, (status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError:
        return


def open_plainly(path: Path) -> int:
    """A descriptor for reading a regular file.

    Raises OSError for anything else: a symbolic link could lead out of the directory and be turned elsewhere after it
    was verified, and a pipe would let its reader wait for ever.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return fd


def is_manifest_name(name: str) -> bool:
    return name.startswith((names.FULL_STEM, names.DELTA_STEM)) and name.endswith(names.MANIFEST_SUFFIX)


def _parse(path: Path, kind: Kind) -> Manifest | Refused | None:
    try:
        with os.fdopen(open_plainly(path), "rb") as file:
            manifest = Manifest.from_json(file.read(MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Refused(path, f"it cannot be read: {error.strerror}")
    except ManifestError as error:
        return Refused(path, str(error))
    if manifest.kind is not kind:
        return Refused(path, f"it is a {manifest.kind} in the directory of {kind}s", manifest.position)
    if path.name != names.manifest_name(manifest.prefix):
        return Refused(path, f"it says that its prefix is {manifest.prefix!r}", manifest.position)
    return manifest


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
    manifests.sort(key=lambda manifest: (manifest.position, manifest.kind is Kind.DELTA, manifest.prefix))
    return Listing(tuple(manifests), tuple(sorted(refused, key=lambda item: item.path)))
