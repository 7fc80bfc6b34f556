"""TensorFlow's own `checkpoint` file, so that tf.train.latest_checkpoint works. It decides nothing here."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hotdelta.chain.bundle.file_bytes import open_plainly
from hotdelta.chain.disk import Disk, write_durably
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import MAX_MANIFEST_BYTES, Kind, Manifest
from hotdelta.errors import ManifestError

logger = logging.getLogger(__name__)


def refresh(directory: Path, newest: Manifest, *, disk: Disk) -> None:
    """After a commit: names the newest delta, or every full there is, the newest last."""
    if newest.kind is Kind.DELTA:
        _replace(directory, lambda _: [newest.prefix], disk)
    else:
        _replace(directory, list_fulls, disk)


def refresh_fulls(directory: Path, *, disk: Disk) -> None:
    """After a full was deleted: names the fulls that are left."""
    _replace(directory, list_fulls, disk)


def list_fulls(directory: Path) -> list[str]:
    """The prefixes of the committed fulls in the order of their positions, without those that are unreadable."""
    found = []
    for path in directory.glob(f"{names.FULL_STEM}*{names.MANIFEST_SUFFIX}"):
        with contextlib.suppress(OSError, ManifestError):
            # Not path.open: a trainer would wait for ever for what comes out of a pipe.
            with os.fdopen(open_plainly(path), "rb") as file:
                manifest = Manifest.from_json(file.read(MAX_MANIFEST_BYTES + 1))
            found.append((manifest.position, manifest.prefix))
    return [prefix for _, prefix in sorted(found)]


def _replace(directory: Path, list_prefixes: Callable[[Path], Sequence[str]], disk: Disk) -> None:
    """Never raises OSError: the commit is already made, and readers of the chain do not look here."""
    temporary = directory / f"{names.TEMPORARY_PREFIX}{names.STATE_FILE}"
    try:
        prefixes = list_prefixes(directory)
        if prefixes:
            write_durably(disk, temporary, _text(prefixes))
            disk.rename(temporary, directory / names.STATE_FILE)
    except OSError as error:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        logger.warning(
            "state file not written", extra={"path": str(directory / names.STATE_FILE), "error": str(error)}
        )


def _text(prefixes: Sequence[str]) -> bytes:
    lines = [f'model_checkpoint_path: "{prefixes[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{prefix}"' for prefix in prefixes]
    return ("\n".join(lines) + "\n").encode()
