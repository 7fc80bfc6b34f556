"""One trainer per directory: a lock that dies with its process, and a run number that no other start took."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import weakref
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Manifest
from hotdelta.chain.format.position import MAX_NUMBER
from hotdelta.chain.history.signing import SigningKey
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.write_failure import translated
from hotdelta.errors import ChainError, DirectoryBusyError

# Each leaves its claim in place of the one before.
_MOST_STARTS_WITHOUT_COMMIT = 2**20

_CLAIM = re.compile(re.escape(names.CLAIM_PREFIX) + r"([1-9][0-9]{0,9})" + re.escape(names.CLAIM_SUFFIX))
_held: weakref.WeakSet[TrainerLock] = weakref.WeakSet()


class TrainerLock:
    """The right to write to a run directory. The kernel holds it (flock), so kill -9 releases it.

    What the file says is for people only. A child made by fork does not inherit the lock.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = run_dir / names.DELTA_DIRECTORY / names.LOCK_FILE
        self._fd: int | None = None

    def acquire(self) -> None:
        """Raises DirectoryBusyError when another trainer holds it, CommitError when the directory is unusable."""
        if self._fd is not None:
            return
        with translated("locking", self._path):
            Disk().make_directory(self._path.parent)
            self._fd = self._open_locked()
            _held.add(self)
        # For people only: a full disk does not keep a trainer from starting.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, _describe_self(), 0)

    def release(self) -> None:
        if self._fd is not None:
            # Closing is not enough: a process that another thread starts has a copy until its program runs.
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Without unlocking: what a child does with its copy of a lock that is its parent's."""
        fd, self._fd = self._fd, None
        _held.discard(self)
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _open_locked(self) -> int:
        while True:
            fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            try:
                self._lock(fd)
                if _is_same_file(fd, self._path):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            # The directory was replaced between open and lock: what is locked has no name any more.
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 1024, 0).decode(errors="replace").strip() or "unknown"
            raise DirectoryBusyError(
                f"another trainer writes to {self._run_dir}: {holder}",
                directory=self._run_dir,
                hint="stop it, or give this one a directory of its own",
            ) from None


def next_run(run_dir: Path, manifests: Sequence[Manifest]) -> int:
    """The number that `claim_run` would take. Raises as that."""
    directory = run_dir / names.DELTA_DIRECTORY
    with translated("claiming a run number", directory):
        return _next_run(run_dir, max(_claims(directory), default=0), manifests)


def claim_run(run_dir: Path, manifests: Sequence[Manifest], disk: Disk, *, least: int = 1) -> int:
    """Takes a run number above any in the directory, durably: no later start gets it again. Needs the lock.

    `least`: this one or above, where not only the trainers of this directory count. What a configured key did not sign
    does not count: whoever can put a file here could use up the numbers with it.
    Raises CommitError, and ChainError for a file whose number leaves none to later starts, or cannot be true.
    """
    directory = run_dir / names.DELTA_DIRECTORY
    with translated("claiming a run number", directory):
        claims = _claims(directory)
        run = _next_run(run_dir, max(claims, default=0), manifests, least=least)
        fd = disk.create(directory / names.claim_name(run))
        disk.close(fd)
        disk.sync_directory(directory)
        for claim in claims:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(directory / names.claim_name(claim))
    return run


def _claims(directory: Path) -> list[int]:
    return [int(match[1]) for path in directory.iterdir() if (match := _CLAIM.fullmatch(path.name))]


def _next_run(run_dir: Path, claimed: int, manifests: Sequence[Manifest], *, least: int = 1) -> int:
    newest = _newest_trusted(manifests)
    committed = newest.position.run if newest else 0
    if claimed > committed + _MOST_STARTS_WITHOUT_COMMIT:
        raise _unlikely_number(run_dir / names.DELTA_DIRECTORY / names.claim_name(claimed), claimed)
    run = max(least, 1 + max(claimed, committed))
    taken = {manifest.position.run for manifest in manifests}
    while run in taken:
        run += 1
    if newest and run > MAX_NUMBER:
        raise _unlikely_number(
            directory_of(run_dir, newest.kind) / names.manifest_name(newest.prefix), committed
        )
    return run


def _newest_trusted(manifests: Sequence[Manifest]) -> Manifest | None:
    key = SigningKey.from_environment()
    newest_first = sorted(manifests, key=lambda manifest: manifest.position, reverse=True)
    return next((item for item in newest_first if key is None or key.has_signed(item)), None)


def _unlikely_number(path: Path, run: int) -> ChainError:
    return ChainError(
        f"{path} has the run number {run}, and no trainer is started that often",
        hint="remove the file, or use another directory",
    )


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _describe_self() -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}).encode()


def _close_in_child() -> None:
    """Closing the copy keeps the parent's lock, and frees it when the parent dies before its data workers."""
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)
