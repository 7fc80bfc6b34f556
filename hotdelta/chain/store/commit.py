"""Makes a prepared bundle part of the chain: everything durable first, the manifest last.

Before the manifest has its name nothing of the commit exists for readers; after it everything does.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk, write_durably
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Manifest
from hotdelta.chain.store import checkpoint_file
from hotdelta.chain.write_failure import translated
from hotdelta.errors import CommitError


def commit(prepared: PreparedBundle, manifest: Manifest, *, disk: Disk) -> None:
    """Publishes a bundle under its final names, then its manifest. The caller holds the trainer's lock.

    Raises CommitError; then all files of the bundle are removed and readers see none of it. After a failure
    take another position: a reader may have seen the manifest for a moment.
    """
    if manifest.prefix != prepared.prefix or set(manifest.files) != set(prepared.files):
        raise ValueError(
            f"the manifest of {manifest.position} does not describe the bundle {prepared.prefix}"
        )
    commit_as_written(prepared, manifest, manifest.to_json(), disk=disk)


def commit_as_written(prepared: PreparedBundle, manifest: Manifest, content: bytes, *, disk: Disk) -> None:
    """`commit` of what was committed elsewhere: `content` is its manifest, byte for byte, so that a signature holds.

    Of its files `prepared` has those that are wanted here and not here yet. Raises CommitError.
    """
    name = names.manifest_name(manifest.prefix)
    made = [prepared.directory / temporary for temporary in prepared.temporary_names.values()]
    with translated(f"committing {manifest.position} ({manifest.prefix})", prepared.directory):
        try:
            _publish_bundle(prepared, made, disk)
            publish_new_file(prepared.directory, name, content, disk)
        except BaseException:
            # A manifest that could not be taken back keeps its files: readers may be on them.
            if not _is_published(prepared.directory / name, content):
                _unlink_quietly(made, disk)
            raise
    checkpoint_file.refresh(prepared.directory, manifest, disk=disk)


def publish_file(directory: Path, name: str, content: bytes, disk: Disk) -> None:
    """Makes a small file durable under a name of its own; it may be there already with the same content.

    Raises CommitError, also when the name is taken by other content.
    """
    with translated(f"writing {name}", directory):
        if _has_content(directory / name, content):
            disk.sync_directory(directory)
        else:
            publish_new_file(directory, name, content, disk)


def publish_new_file(directory: Path, name: str, content: bytes, disk: Disk) -> None:
    """Makes a small file appear under its name completely and durably, or not at all."""
    temporary, final = directory / f"{names.TEMPORARY_PREFIX}{name}", directory / name
    try:
        write_durably(disk, temporary, content)
        # Readers measure their lag from the change time. Linux gives an exact one only where somebody asked for the
        # last one; else it may be a timer tick old, which is as long as an update takes.
        temporary.stat()
        disk.link(temporary, final)
    except BaseException:
        _unlink_quietly([temporary], disk)
        raise
    try:
        disk.unlink(temporary)
        # fsync the directory too: the name is not durable before that.
        disk.sync_directory(directory)
    except BaseException:
        _unlink_quietly([final, temporary], disk)
        with contextlib.suppress(OSError):
            disk.sync_directory(directory)
        raise


def _publish_bundle(prepared: PreparedBundle, made: list[Path], disk: Disk) -> None:
    """Gives the files their final names.

    The index goes first, durably: after a crash it tells sweep whose the data files are.
    """
    index = names.index_name(prepared.prefix)
    if index in prepared.temporary_names:
        _rename_to_final(prepared, index, made, disk)
    # Also of an index that was there: it may have been renamed right before a crash.
    disk.sync_directory(prepared.directory)
    for name in prepared.temporary_names:
        if name != index:
            _rename_to_final(prepared, name, made, disk)
    disk.sync_directory(prepared.directory)


def _rename_to_final(prepared: PreparedBundle, name: str, made: list[Path], disk: Disk) -> None:
    final = prepared.directory / name
    if os.path.lexists(final):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))
    disk.rename(prepared.directory / prepared.temporary_names[name], final)
    made.append(final)


def _unlink_quietly(paths: Sequence[Path], disk: Disk) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            disk.unlink(path)


def _is_published(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _has_content(path: Path, content: bytes) -> bool:
    """Raises CommitError when the name is taken by other content."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return False
    if found != content:
        raise CommitError(
            f"{path.name} exists with other content", path=path, hint="move it away, or use another directory"
        )
    return True
