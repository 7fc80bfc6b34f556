"""How a small file is written anew: whoever reads it finds the old content or the new one, never a torn one."""

from __future__ import annotations

from pathlib import Path

from hotdelta.chain.disk import Disk, write_durably
from hotdelta.chain.format import names


def replace_file(disk: Disk, path: Path, content: bytes) -> None:
    """Durable when it returns. For one writer at a time. Raises OSError."""
    temporary = path.with_name(f"{names.TEMPORARY_PREFIX}{path.name}")
    write_durably(disk, temporary, content)
    disk.rename(temporary, path)
    # Of the directory too: the rename is not durable before that.
    disk.sync_directory(path.parent)
