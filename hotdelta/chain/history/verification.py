"""Whether the files of a commit are there, and are those that its manifest lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from hotdelta.chain.bundle.digest import digest_bytes, digest_file
from hotdelta.chain.bundle.file_bytes import open_regular
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import FileRecord, Kind, Manifest
from hotdelta.errors import DamagedError

_ARRIVING = "it may still be arriving; if not, a later full steps over it"
# What is not larger is read in one piece: of a long chain that is every file but those of the full.
_SMALL_BYTES = 1024 * 1024
_COPY_AGAIN = "copy it again, or wait for a full"


def directory_of(run_dir: Path, kind: Kind) -> Path:
    return run_dir if kind is Kind.FULL else run_dir / names.DELTA_DIRECTORY


def verify(
    run_dir: Path,
    manifest: Manifest,
    *,
    roles: Collection[str] | None = None,
    on_read: Callable[[int], None] | None = None,
) -> None:
    """Compares sizes and digests of the files of a commit (of those roles) with its manifest.

    `on_read` hears the bytes of each piece that was read. Raises DamagedError, retryable when a file is missing or too
    short: it may still be arriving.
    """
    directory = directory_of(run_dir, manifest.kind)
    for file in manifest.files:
        if roles is None or file.role in roles:
            _verify_file(directory, file, str(manifest.position), on_read)


def _verify_file(
    directory: Path, file: FileRecord, position: str, on_read: Callable[[int], None] | None
) -> None:
    # Not a Path each: of 60,000 files they take longer than reading them.
    path = f"{directory}{os.sep}{file.name}"
    descriptor = open_listed(path, file, position)
    try:
        content = os.read(descriptor, file.bytes + 1) if file.bytes <= _SMALL_BYTES else b""
        if len(content) == file.bytes:
            size, digest = file.bytes, digest_bytes(content)
            if on_read is not None:
                on_read(size)
        else:
            size, digest = digest_file(descriptor, on_read=on_read)
    except OSError as error:
        raise unreadable(Path(path), position, error) from error
    finally:
        os.close(descriptor)
    _require_size(path, file, position, size)
    require_digest(path, file, position, digest)


def open_listed(path: Path | str, file: FileRecord, position: str) -> int:
    """A descriptor of a file that has the size that its manifest says. Raises DamagedError."""
    try:
        descriptor, size = open_regular(path)
    except OSError as error:
        raise unreadable(Path(path), position, error) from error
    try:
        _require_size(path, file, position, size)
    except DamagedError:
        os.close(descriptor)
        raise
    return descriptor


def _require_size(path: Path | str, file: FileRecord, position: str, size: int) -> None:
    if size != file.bytes:
        raise DamagedError(
            f"{file.name} of {position} has {size} bytes, its manifest says {file.bytes}",
            path=Path(path),
            position=position,
            retryable=size < file.bytes,
            hint="it may still be arriving" if size < file.bytes else _COPY_AGAIN,
        )


def require_digest(path: Path | str, file: FileRecord, position: str, digest: str) -> None:
    """Raises DamagedError: another digest than that of the manifest does not get better by waiting."""
    if digest != file.digest:
        raise DamagedError(
            f"{file.name} of {position} does not have the digest that its manifest says",
            path=Path(path),
            position=position,
            hint=_COPY_AGAIN,
        )


def unreadable(path: Path, position: str, error: OSError) -> DamagedError:
    return DamagedError(
        f"{path.name} of {position} cannot be read: {error.strerror}",
        path=path,
        position=position,
        retryable=True,
        hint=_ARRIVING,
    )
