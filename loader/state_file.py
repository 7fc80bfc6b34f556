"""How a server writes the small files of its own state directory: the old content or the new one, never a torn one."""

from __future__ import annotations

from pathlib import Path

from hotdelta.chain import Disk, names
from hotdelta.chain.disk import write_durably


def replace_file(disk: Disk, path: Path, content: bytes) -> None:
    """Durable when it returns. Raises OSError."""
    temporary = path.with_name(f"{names.TEMPORARY_PREFIX}{path.name}")
    write_durably(disk, temporary, content)
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
