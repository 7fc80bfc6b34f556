"""Copies of files that nobody else can write to: what is verified is what is read, whoever owns the directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hotdelta.chain import FileRecord, Manifest, directory_of, verify
from hotdelta.chain.verification import open_plainly
from hotdelta.errors import DamagedError
from loader.commit_files import SERVING_ROLES, VerifiedFiles, stamp_files

_CHUNK_BYTES = 2**20
_PREFIX = "hotdelta-verified-"
# What file systems without locks answer: there nobody can tell an abandoned directory, so none is removed.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class PrivateCopies:
    """Verifies copies in a directory of its own (mode 0700); each is removed when its files are closed.

    Copies what a manifest lists, and no more bytes than it says. One thread at a time.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        self._root = _OwnDirectory()

    def verify_files(self, run_dir: Path, manifest: Manifest) -> VerifiedFiles:
        """Raises DamagedError."""
        try:
            copy = Path(tempfile.mkdtemp(dir=self._root.path()))
            target = directory_of(copy, manifest.kind)
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_copied(run_dir / manifest.prefix, manifest, error) from error
        served = tuple(file for file in manifest.files if file.role in SERVING_ROLES)
        try:
            for file in served:
                _copy(directory_of(run_dir, manifest.kind) / file.name, target / file.name, file, manifest)
            verify(copy, replace(manifest, files=served))
        except DamagedError:
            shutil.rmtree(copy, ignore_errors=True)
            raise
        return VerifiedFiles(copy, manifest, stamp_files(copy, manifest), copy)

    def close(self) -> None:
        self._root.remove()


class _OwnDirectory:
    """A temporary directory with a lock on it, which ends with the process: it tells a used one from an abandoned one.

    (systemd's cleaner of /tmp leaves a directory with a lock alone, too.)
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1

    def path(self) -> Path:
        """Made when it is needed, and again when somebody removed it. Raises OSError."""
        if self._path is None or not self._is_ours(self._path):
            self.remove()
            made = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                self._lock = _open_locked(made, is_lock_needed=False)
            except OSError:
                made.rmdir()
                raise
            self._path = made
        return self._path

    def _is_ours(self, path: Path) -> bool:
        """Whether it still is the directory that we locked: somebody else may have taken its name since."""
        try:
            return os.path.samestat(path.lstat(), os.fstat(self._lock))
        except OSError:
            return False

    def remove(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(self._lock)


def _remove_abandoned() -> None:
    """What a server that was killed has left would else stay for ever, and a full is large."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid():
                lock = _open_locked(path)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _open_locked(directory: Path, *, is_lock_needed: bool = True) -> int:
    """Raises OSError when somebody else has the lock, when it is no directory, or on a file system without locks."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if is_lock_needed or error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    return descriptor


def _copy(source: Path, target: Path, file: FileRecord, manifest: Manifest) -> None:
    try:
        with os.fdopen(open_plainly(source), "rb") as reader, target.open("xb") as writer:
            left = file.bytes
            while left and (chunk := reader.read(min(left, _CHUNK_BYTES))):
                writer.write(chunk)
                left -= len(chunk)
    except OSError as error:
        raise _not_copied(source, manifest, error) from error


def _not_copied(source: Path, manifest: Manifest, error: OSError) -> DamagedError:
    return DamagedError(
        f"{source.name} of {manifest.position} cannot be copied: {error.strerror}",
        path=source,
        position=str(manifest.position),
        retryable=True,
        hint="it may still be arriving; if not, a later full steps over it",
    )
