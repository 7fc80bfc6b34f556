"""What a store holds, as a scan of a directory tells it: every manifest, and every one that cannot be used and why.

Only reads. Files are not looked at, but by `verify_objects`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blake3 import blake3

from hotdelta.chain.format.manifest import FileRecord, Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Listing, Refused
from hotdelta.chain.history.signing import SigningKey
from hotdelta.chain.history.verification import require_digest
from hotdelta.errors import DamagedError, ManifestError, ObjectMissingError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.fetching import PIECE_BYTES
from hotdelta.remote.stores.contract import Store

_AT_ONCE = 16


def list_commits(store: Store) -> Listing:
    """With a signing key in the environment only what it signed is not refused. What vanishes meanwhile is left out.

    Raises StoreError, and ConfigurationError when the key cannot be read.
    """
    log, key = CommitLog(store), SigningKey.from_environment()
    wanted = [(kind, position) for kind in Kind for position in log.positions_after(kind, None)]
    with ThreadPoolExecutor(_AT_ONCE, "hotdelta-list") as pool:
        read = list(pool.map(lambda item: _read(log, key, *item), wanted))
    manifests = [found for found in read if isinstance(found, Manifest)]
    # A full before the delta that closes it.
    manifests.sort(key=lambda manifest: (manifest.position, manifest.kind is Kind.DELTA))
    return Listing(tuple(manifests), tuple(found for found in read if isinstance(found, Refused)))


def _read(
    log: CommitLog, key: SigningKey | None, kind: Kind, position: Position
) -> Manifest | Refused | None:
    path = Path(layout.log_name(kind, position))
    try:
        manifest, _ = log.read(kind, position)
    except ObjectMissingError:
        return None
    except ManifestError as error:
        return Refused(path, error.message, position)
    reason = key.distrust(manifest) if key is not None else ""
    return Refused(path, reason, position) if reason else manifest


def verify_objects(store: Store, manifest: Manifest, *, on_read: Callable[[int], None] | None = None) -> None:
    """Compares sizes and digests of the files of a commit with its manifest, without keeping them.

    Raises DamagedError for what is not as it should be, StoreError.
    """
    for file in manifest.files:
        _verify_object(store, manifest, file, on_read)


def _verify_object(
    store: Store, manifest: Manifest, file: FileRecord, on_read: Callable[[int], None] | None
) -> None:
    name, position = layout.data_name(manifest, file.name), str(manifest.position)
    hasher, size = blake3(), 0
    try:
        # One byte more than there should be, which tells of an object that is longer.
        while size <= file.bytes and (
            piece := store.get_range(name, size, min(PIECE_BYTES, file.bytes + 1 - size))
        ):
            hasher.update(piece)
            size += len(piece)
            if on_read is not None:
                on_read(len(piece))
    except ObjectMissingError as error:
        raise DamagedError(
            f"{error.message}, a file of {position}", path=Path(name), position=position
        ) from error
    if size != file.bytes:
        raise DamagedError(
            f"{name} has {'more' if size > file.bytes else 'only'} {size} bytes, its manifest says {file.bytes}",
            path=Path(name),
            position=position,
        )
    require_digest(name, file, position, hasher.hexdigest())
