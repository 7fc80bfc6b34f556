"""Copies of files that nobody else can write to: what is verified is what is read, whoever owns the directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hotdelta.chain import FileRecord, Manifest, directory_of, verify
from hotdelta.chain.bundle.file_bytes import open_plainly
from hotdelta.errors import DamagedError
from loader.files.commit_files import SERVING_ROLES, VerifiedFiles, stamp_files
from loader.files.own_directory import OwnDirectory, remove_abandoned

_CHUNK_BYTES = 2**20


class PrivateCopies:
    """Verifies copies in a directory of its own (mode 0700); each is removed when its files are closed.

    Copies what a manifest lists, and no more bytes than it says. One thread at a time.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self._root = OwnDirectory()

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
