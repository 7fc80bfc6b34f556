"""Objects into files: in pieces, several at a time, and what arrived is what was meant or it does not appear."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain.bundle.digest import digest_file
from hotdelta.chain.disk import Disk, create_anew
from hotdelta.errors import ObjectDamagedError
from hotdelta.remote.stores.contract import Store

# One request each: large enough that its way there and back does not count, small enough that memory does not either.
PIECE_BYTES = 8 * 1024 * 1024
_PUBLISH_AGAIN = "run `hotdelta verify` where it was written, and publish it again"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that is to lie at `path`: which object it is, how large, and its BLAKE3 digest."""

    name: str
    path: Path
    bytes: int
    digest: str


def fetch(
    store: Store,
    files: list[Wanted],
    *,
    pool: Executor,
    disk: Disk,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Brings these objects into new files, durable but for their names: sync their directories afterwards.

    A file that is there already makes way. `on_bytes` hears the size of each piece, in threads of `pool`.
    Raises StoreError (ObjectDamagedError when an object ended too soon or has another digest: it may have been read
    while it was put) and OSError; then some of the files may be there, and all may be fetched again.
    """
    opened: list[tuple[Wanted, int]] = []
    try:
        pieces: list[Future[None]] = []
        for file in files:
            descriptor = create_anew(disk, file.path)
            opened.append((file, descriptor))
            disk.allocate(descriptor, file.bytes)
            pieces += [
                pool.submit(_fetch_piece, store, file, descriptor, start, disk, on_bytes)
                for start in range(0, file.bytes, PIECE_BYTES)
            ]
        wait_for_all(pieces)
        for file, descriptor in opened:
            _require_digest(store, file, descriptor)
            disk.fsync(descriptor)
    finally:
        for _, descriptor in opened:
            disk.close(descriptor)


def wait_for_all(pieces: list[Future[None]]) -> None:
    """All are over when it returns or raises: none uses a file that is closed, or was opened anew."""
    try:
        for piece in pieces:
            piece.result()
    finally:
        for piece in pieces:
            piece.cancel()
        wait(pieces)


def _fetch_piece(
    store: Store,
    file: Wanted,
    descriptor: int,
    start: int,
    disk: Disk,
    on_bytes: Callable[[int], None] | None,
) -> None:
    length = min(PIECE_BYTES, file.bytes - start)
    piece = store.get_range(file.name, start, length)
    if len(piece) != length:
        raise ObjectDamagedError(
            f"{file.name} of {store.address} ends after {start + len(piece)} bytes", hint=_PUBLISH_AGAIN
        )
    disk.write_at(descriptor, piece, start)
    if on_bytes is not None:
        on_bytes(length)


def _require_digest(store: Store, file: Wanted, descriptor: int) -> None:
    if digest_file(descriptor) != (file.bytes, file.digest):
        raise ObjectDamagedError(
            f"{file.name} of {store.address} is not what its record says", hint=_PUBLISH_AGAIN
        )
