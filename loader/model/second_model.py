"""A full in a second model, which then takes the place of the served one. It is loaded from the same export."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from hotdelta.chain import Manifest, directory_of
from hotdelta.errors import ApplyError, DamagedError
from loader.files.commit_files import VerifiedFiles
from loader.model.full_filling import fill_model
from loader.model.live_model import LiveModel


def load_beside(served: LiveModel, files: VerifiedFiles, *, slice_bytes: int) -> LiveModel:
    """The same export with what a full holds, ready to serve. Raises ChainError, ApplyError."""
    with waiting_for_export(files.run_dir, files.manifest):
        model = served.load_again()
    try:
        fill_model(model, files, slice_bytes=slice_bytes)
        model.warm_up()
    except BaseException:
        model.close()
        raise
    return model


@contextlib.contextmanager
def waiting_for_export(run_dir: Path, manifest: Manifest) -> Iterator[None]:
    """The full is in order, and can be taken as soon as the export is there again. Raises DamagedError."""
    try:
        yield
    except ApplyError as error:
        raise DamagedError(
            f"{manifest.position} needs a second model: {error.message}",
            path=directory_of(run_dir, manifest.kind) / manifest.prefix,
            position=str(manifest.position),
            retryable=True,
            hint="bring the export back, or export again",
        ) from error
