"""Lets TensorFlow, which opens files by name and waits for pipes, read the very files that we have opened ourselves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hotdelta.chain import directory_of
from hotdelta.chain.history.verification import open_listed, unreadable
from loader.files.commit_files import SERVING_ROLES, VerifiedFiles
from loader.files.own_directory import OwnDirectory, remove_abandoned


@contextlib.contextmanager
def opened_prefix(files: VerifiedFiles) -> Iterator[Path]:
    """A prefix under which there is nothing but links to our descriptors. Raises DamagedError."""
    manifest, position = files.manifest, str(files.manifest.position)
    directory = directory_of(files.run_dir, manifest.kind)
    with _own_directory(files) as links, contextlib.ExitStack() as opened:
        for file in manifest.files:
            if file.role in SERVING_ROLES:
                descriptor = open_listed(directory / file.name, file, position)
                opened.callback(os.close, descriptor)
                _link(links / file.name, descriptor, files)
        yield links / manifest.prefix


def _link(path: Path, descriptor: int, files: VerifiedFiles) -> None:
    try:
        path.symlink_to(f"/dev/fd/{descriptor}")
    except OSError as error:
        raise unreadable(files.prefix, str(files.manifest.position), error) from error


@contextlib.contextmanager
def _own_directory(files: VerifiedFiles) -> Iterator[Path]:
    remove_abandoned()
    own = OwnDirectory()
    try:
        path = own.path()
    except OSError as error:
        raise unreadable(files.prefix, str(files.manifest.position), error) from error
    try:
        yield path
    finally:
        own.remove()
