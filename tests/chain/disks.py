"""Disks that fail, die or remember: each stands for one thing that happens to a trainer."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hotdelta.chain.disk import Disk


class PoweredDisk(Disk):
    """A real disk that never loses its power: nothing waits until it is durable, which takes longer than most tests.

    What outlives a process is all the same: kill -9 loses nothing that was written. See RecordingDisk for the rest.
    """

    def fsync(self, fd: int) -> None:
        os.fstat(fd)

    def sync_directory(self, path: Path) -> None:
        path.stat()


class CountingDisk(PoweredDisk):
    """A disk that counts its calls; subclasses say what happens before and after the call of a number."""

    def __init__(self) -> None:
        self.calls = 0

    def before(self) -> None:
        """Runs when call number `self.calls` begins."""

    def after(self) -> None:
        """Runs when it has ended."""

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.calls += 1
        self.before()
        yield
        self.after()

    def create(self, path: Path) -> int:
        with self._counted():
            return super().create(path)

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        with self._counted():
            super().write_at(fd, data, offset)

    def allocate(self, fd: int, size: int) -> None:
        with self._counted():
            super().allocate(fd, size)

    def fsync(self, fd: int) -> None:
        with self._counted():
            super().fsync(fd)

    def close(self, fd: int) -> None:
        super().close(fd)

    def sync_directory(self, path: Path) -> None:
        with self._counted():
            super().sync_directory(path)

    def link(self, source: Path, target: Path) -> None:
        with self._counted():
            super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        with self._counted():
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._counted():
            super().unlink(path)

    def make_directory(self, path: Path) -> None:
        with self._counted():
            super().make_directory(path)


class KillingDisk(CountingDisk):
    """Kills its own process, as kill -9 does, right after call number `kill_after`."""

    def __init__(self, kill_after: int) -> None:
        super().__init__()
        self._kill_after = kill_after

    def after(self) -> None:
        if self.calls == self._kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


class Crash(BaseException):
    """The process is gone: nothing catches this, and nothing is cleaned up."""


class CrashingDisk(CountingDisk):
    """From call number `crash_at` on nothing reaches the disk any more, not even a clean-up."""

    def __init__(self, crash_at: int) -> None:
        super().__init__()
        self._crash_at = crash_at

    def before(self) -> None:
        if self.calls >= self._crash_at:
            raise Crash


class FailingDisk(CountingDisk):
    """Fails once, at call number `fail_at`."""

    def __init__(self, fail_at: int, error_number: int) -> None:
        super().__init__()
        self._fail_at = fail_at
        self._error_number = error_number

    def before(self) -> None:
        if self.calls == self._fail_at:
            raise OSError(self._error_number, os.strerror(self._error_number))


@dataclass
class _Inode:
    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class _Names:
    """A change to the names of one directory: those that go, and those that come."""

    directory: Path
    gone: tuple[str, ...] = ()
    come: tuple[tuple[str, _Inode], ...] = ()


class RecordingDisk(PoweredDisk):
    """A disk that knows what of it a power loss would leave: bytes are safe after fsync, names after a sync."""

    def __init__(self) -> None:
        self.snapshots: list[tuple[dict[Path, _Inode], list[_Names]]] = []
        self._open: dict[int, _Inode] = {}
        self._inodes: dict[Path, _Inode] = {}
        self._durable: dict[Path, _Inode] = {}
        self._pending: list[_Names] = []

    def adopt(self, directory: Path) -> None:
        """Takes what is there as durable."""
        for path in directory.rglob("*"):
            if path.is_file():
                self._inodes[path] = self._durable[path] = _Inode(path.read_bytes())

    def rebuild(self, moment: int, target: Path, source: Path, random_source: random.Random) -> None:
        """Makes the directory as it may be found when the power fails after call number `moment`."""
        durable, pending = self.snapshots[moment]
        files = dict(durable)
        for change in pending:
            if random_source.random() < 0.5:
                _apply(files, change)
        for path, inode in files.items():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_survivor(inode, random_source))

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._open[fd] = self._inodes[path] = _Inode()
        self._change(_Names(path.parent, come=((path.name, self._inodes[path]),)))
        return fd

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        super().write_at(fd, data, offset)
        self._open[fd].pending.append((offset, bytes(data)))
        self._remember()

    def allocate(self, fd: int, size: int) -> None:
        super().allocate(fd, size)
        self._open[fd].pending.append((0, bytes(size)))
        self._remember()

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        inode = self._open[fd]
        inode.durable = _write(inode.durable, inode.pending)
        inode.pending = []
        self._remember()

    def close(self, fd: int) -> None:
        super().close(fd)
        del self._open[fd]

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        for change in self._pending:
            if change.directory == path:
                _apply(self._durable, change)
        self._pending = [change for change in self._pending if change.directory != path]
        self._remember()

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self._inodes[target] = self._inodes[source]
        self._change(_Names(target.parent, come=((target.name, self._inodes[target]),)))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        inode = self._inodes[target] = self._inodes.pop(source)
        self._change(_Names(target.parent, gone=(source.name,), come=((target.name, inode),)))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._inodes.pop(path)
        self._change(_Names(path.parent, gone=(path.name,)))

    def _change(self, change: _Names) -> None:
        self._pending.append(change)
        self._remember()

    def _remember(self) -> None:
        copies: dict[int, _Inode] = {}

        def copy(inode: _Inode) -> _Inode:
            return copies.setdefault(id(inode), _Inode(inode.durable, list(inode.pending)))

        durable = {path: copy(inode) for path, inode in self._durable.items()}
        pending = [
            _Names(change.directory, change.gone, tuple((name, copy(inode)) for name, inode in change.come))
            for change in self._pending
        ]
        self.snapshots.append((durable, pending))


def _apply(files: dict[Path, _Inode], change: _Names) -> None:
    for name in change.gone:
        files.pop(change.directory / name, None)
    for name, inode in change.come:
        files[change.directory / name] = inode


def _survivor(inode: _Inode, random_source: random.Random) -> bytes:
    """What is left of a file: of each write that was not synced all, nothing, or a torn part."""
    survived = []
    for offset, data in inode.pending:
        share = random_source.choice([0.0, random_source.random(), 1.0])
        survived.append((offset, data[: int(len(data) * share)]))
    return _write(inode.durable, survived)


def _write(content: bytes, writes: list[tuple[int, bytes]]) -> bytes:
    result = bytearray(content)
    for offset, data in writes:
        result.extend(bytes(max(0, offset + len(data) - len(result))))
        result[offset : offset + len(data)] = data
    return bytes(result)
