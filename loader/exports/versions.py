"""Which export versions there are, which of them are complete, and which were tried in vain."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from hotdelta.errors import HotdeltaError
from hotdelta.logs import event
from hotdelta.signatures import METADATA_FILE
from loader.files.commit_files import Stamps, stamp

logger = logging.getLogger(__name__)

_MAX_DIGITS = 18
_FILES = ("saved_model.pb", "fingerprint.pb", METADATA_FILE)
_FOLDERS = ("variables", "assets")


@dataclass(frozen=True, slots=True)
class ExportVersion:
    """`export_dir/<number>/`. Another directory under the same number has other stamps."""

    number: int
    path: Path
    stamps: Stamps


class ExportWatch:
    """Lists the versions worth trying, the highest first. One thread at a time."""

    def __init__(self, export_dir: Path) -> None:
        self._export_dir = export_dir
        self._refused: dict[int, tuple[Stamps, str]] = {}

    def candidates(self, above: int) -> list[ExportVersion]:
        """Those with a higher number that were not refused as they are now."""
        versions = [version for version in list_versions(self._export_dir) if version.number > above]
        self._refused = {
            version.number: refused
            for version in versions
            if (refused := self._refused.get(version.number)) and refused[0] == version.stamps
        }
        return [version for version in versions if version.number not in self._refused]

    def refuse(self, version: ExportVersion, error: HotdeltaError) -> None:
        """Report it, and leave it alone until it changes."""
        self._refused[version.number] = (version.stamps, str(error))
        event(logger, logging.ERROR, "export cannot be served", version=version.number, reason=error)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(reason for _, reason in self._refused.values())


def list_versions(export_dir: Path) -> list[ExportVersion]:
    """Directories with a plain number for a name, the highest first. A missing export directory has none."""
    try:
        with os.scandir(export_dir) as entries:
            numbers = [entry.name for entry in entries if _is_number(entry.name) and _is_directory(entry)]
    except OSError:
        return []
    return [
        ExportVersion(int(name), export_dir / name, _stamps(export_dir / name))
        for name in sorted(numbers, key=int, reverse=True)
    ]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """One that cannot be looked at, as a link to itself, must not hide the others."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _stamps(path: Path) -> Stamps:
    inside = list(_FILES)
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            inside += sorted(f"{folder}/{entry.name}" for entry in os.scandir(path / folder))
    return stamp(path), *(stamp(path / name) for name in inside)
