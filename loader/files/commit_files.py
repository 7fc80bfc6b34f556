"""The files of one commit as a server needs them: verified, and proven to be the same files after they were read."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain import Manifest, directory_of, verify
from hotdelta.chain.format import names
from hotdelta.errors import DamagedError

SERVING_ROLES = (names.ROLE_INDEX, names.ROLE_SERVING)

FileStamp = tuple[int, int, int] | None
Stamps = tuple[FileStamp, ...]


@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """Files whose digests were right, and what identifies them. A replaced or rewritten file has another stamp.

    `copy` is the directory of a private copy, which `close` removes.
    """

    run_dir: Path
    manifest: Manifest
    stamps: Stamps
    copy: Path | None = None

    def close(self) -> None:
        """Call when they are not read any more."""
        if self.copy is not None:
            shutil.rmtree(self.copy, ignore_errors=True)

    @property
    def prefix(self) -> Path:
        return directory_of(self.run_dir, self.manifest.kind) / self.manifest.prefix

    def require_unchanged(self) -> None:
        """Call after reading. Raises DamagedError (retryable) when what was read may not be what was verified."""
        if stamp_files(self.run_dir, self.manifest) != self.stamps:
            raise DamagedError(
                f"files of {self.manifest.position} changed after they were verified",
                path=self.prefix,
                position=str(self.manifest.position),
                retryable=True,
                hint="they are read again; let nobody but the trainer write to its directory",
            )


def verify_files(run_dir: Path, manifest: Manifest) -> VerifiedFiles:
    """Compares what serving reads of a commit with its manifest. Raises DamagedError."""
    stamps = stamp_files(run_dir, manifest)
    verify(run_dir, manifest, roles=SERVING_ROLES)
    return VerifiedFiles(run_dir, manifest, stamps)


def stamp_files(run_dir: Path, manifest: Manifest) -> Stamps:
    """Inode, size and change time of each file that serving reads; None for one that cannot be looked at."""
    directory = directory_of(run_dir, manifest.kind)
    return tuple(stamp(directory / file.name) for file in manifest.files if file.role in SERVING_ROLES)


def stamp(path: Path) -> FileStamp:
    try:
        # Not what a symbolic link leads to: the link itself can be turned elsewhere.
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_ctime_ns
