"""Copies of files that nobody else can write to: what is verified is what is read, whoever owns the directory."""

from __future__ import annotations

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


class PrivateCopies:
    """Verifies copies in a directory of its own (mode 0700); each is removed when its files are closed.

    Copies what a manifest lists, and no more bytes than it says. One thread at a time.
    """

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="hotdelta-verified-"))

    def verify_files(self, run_dir: Path, manifest: Manifest) -> VerifiedFiles:
        """Raises DamagedError."""
        copy = Path(tempfile.mkdtemp(dir=self._root))
        target = directory_of(copy, manifest.kind)
        target.mkdir(parents=True, exist_ok=True)
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
        shutil.rmtree(self._root, ignore_errors=True)


def _copy(source: Path, target: Path, file: FileRecord, manifest: Manifest) -> None:
    try:
        with os.fdopen(open_plainly(source), "rb") as reader, target.open("xb") as writer:
            left = file.bytes
            while left and (chunk := reader.read(min(left, _CHUNK_BYTES))):
                writer.write(chunk)
                left -= len(chunk)
    except OSError as error:
        raise DamagedError(
            f"{source.name} of {manifest.position} cannot be copied: {error.strerror}",
            path=source,
            position=str(manifest.position),
            retryable=True,
            hint="it may still be arriving; if not, a later full steps over it",
        ) from error
