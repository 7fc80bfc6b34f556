"""The one translation from OSError to CommitError, with what to do next."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotdelta.errors import CommitError

_HINTS = {
    errno.ENOSPC: "the disk is full: free space or keep fewer fulls",
    errno.EDQUOT: "the disk quota is used up: free space or keep fewer fulls",
    errno.EACCES: "give the trainer's user permission to write to the directory",
    errno.EPERM: "give the trainer's user permission to write; the file system must support hard links",
    errno.ENOTSUP: "the file system must support hard links and fsync: use a local disk or NFS",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOENT: "the directory was removed while the trainer used it: create it again",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.EEXIST: "a file of this name exists and is not part of the chain: move it away",
    errno.EIO: "the disk reports an input/output error: check it",
}


@contextmanager
def translated(doing: str, path: Path) -> Iterator[None]:
    """Raises CommitError for every OSError of its block."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
        where = Path(name) if name else path
        hint = _HINTS.get(error.errno or 0, "the next save tries again")
        raise CommitError(f"{doing} failed at {where}: {reason}", path=where, hint=hint) from error
