"""Removes what crashes left behind: temporary files, and files of commits that never got, or have lost, a manifest.

Only with the trainer's lock held. Never touches what may be somebody else's: a bundle without a manifest is ours
only when its index holds our identity tensor (a tf.train.Saver writes model.ckpt files into the same directory).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from hotdelta.chain.bundle.index import read_index
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.scan import Listing
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.write_failure import translated
from hotdelta.errors import DamagedError

_STEMS = "|".join(re.escape(stem) for stem in (names.FULL_STEM, names.DELTA_STEM))
_BUNDLE_FILE = re.compile(rf"(?P<prefix>(?:{_STEMS})[0-9].*?)\.(?:index|data-\d{{5}}-of-\d{{5}})")
_TENSORFLOW_TEMPORARY = re.compile(rf"(?:{_STEMS})[0-9].*\.tempstate[0-9]+")
_OWN_NAMES = "|".join(
    [_STEMS, names.SCHEMA_PREFIX, names.SERVING_GRAPH_PREFIX, names.CLAIM_PREFIX, f"{names.STATE_FILE}$"]
)
_TEMPORARY = re.compile(rf"{re.escape(names.TEMPORARY_PREFIX)}(?:{_OWN_NAMES}).*")


def sweep(run_dir: Path, listing: Listing, disk: Disk) -> list[str]:
    """Removes leftovers, and returns their names. Raises CommitError.

    Files of a refused manifest stay: a newer hotdelta may know what they are.
    """
    removed: list[str] = []
    for kind in Kind:
        directory = directory_of(run_dir, kind)
        known = {manifest.prefix for manifest in listing.manifests if manifest.kind is kind}
        with translated("sweeping", directory), contextlib.suppress(FileNotFoundError):
            data, rest = _find_leftovers(directory, known)
            for path in data:
                disk.unlink(path)
            if data:
                # Before the index goes, which tells whose they are.
                disk.sync_directory(directory)
            for path in rest:
                disk.unlink(path)
            removed += [path.name for path in (*data, *rest)]
    return removed


def _find_leftovers(directory: Path, known_prefixes: Iterable[str]) -> tuple[list[Path], list[Path]]:
    """The data files that go first, and all other files that go."""
    with os.scandir(directory) as entries:
        # Names alone: a chain may have 80,000 of them, of which none is left over.
        files = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    suffix = names.MANIFEST_SUFFIX
    protected = {name.removesuffix(suffix) for name in files if name.endswith(suffix)}
    protected.update(known_prefixes)
    groups: dict[str, list[Path]] = defaultdict(list)
    for name in files:
        match = _BUNDLE_FILE.fullmatch(name)
        if match and match["prefix"] not in protected:
            groups[match["prefix"]].append(directory / name)
    orphans = [path for prefix, group in groups.items() if _is_ours(directory, prefix) for path in group]
    indexes = [path for path in orphans if path.suffix == ".index"]
    temporaries = [
        directory / name
        for name in files
        if _TEMPORARY.fullmatch(name) or _TENSORFLOW_TEMPORARY.fullmatch(name)
    ]
    return [path for path in orphans if path not in indexes], [*indexes, *temporaries]


def _is_ours(directory: Path, prefix: str) -> bool:
    """Whether an index of this prefix, final or temporary, holds the identity that every commit has."""
    name = names.index_name(prefix)
    for path in (directory / name, directory / f"{names.TEMPORARY_PREFIX}{name}"):
        with contextlib.suppress(DamagedError):
            if names.IDENTITY_TENSOR in read_index(path).entries:
                return True
    return False
