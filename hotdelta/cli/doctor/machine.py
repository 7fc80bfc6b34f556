"""The system under a directory: events, file system, clock, limits. As Linux tells of them in /proc and /sys."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from hotdelta.cli.doctor.check import Check, failure, ok, warning
from hotdelta.cli.output import format_bytes

_ROOT = Path("/")
# Where events of other machines do not arrive, and where locks or hard links are often missing.
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "afs", "beegfs"})
_EVENTS = 0x100 | 0x80  # IN_CREATE, IN_MOVED_TO
_CLOSED_ON_EXEC = os.O_CLOEXEC | os.O_NONBLOCK
_UNSYNCHRONIZED = 0x40  # STA_UNSYNC, of <sys/timex.h>
_TIMEX_BYTES = 256
_MIN_FILES = 2048


def checks(directory: Path, *, root: Path = _ROOT) -> Iterator[Check]:
    """`root`: where /proc and /sys are."""
    yield check_events(directory, root)
    yield check_file_system(directory, root)
    yield check_space(directory)
    yield check_huge_pages(root)
    yield check_clock()
    yield check_open_files()


def check_events(directory: Path, root: Path) -> Check:
    """Whether one more server could watch this directory."""
    limits = {
        name: _read_number(root / "proc/sys/fs/inotify" / name)
        for name in ("max_user_instances", "max_user_watches")
    }
    if None in limits.values():
        return warning(
            "events", "this system has no inotify", "servers poll here: see --poll-seconds of server"
        )
    shown = ", ".join(f"{name} {limit:,}" for name, limit in limits.items())
    problem = _try_watch(directory)
    if problem == errno.EMFILE:
        return warning(
            "events",
            f"no more inotify instances are free ({shown})",
            "servers only poll: raise fs.inotify.max_user_instances with sysctl",
        )
    if problem == errno.ENOSPC:
        return warning(
            "events",
            f"no more inotify watches are free ({shown})",
            "servers only poll: raise fs.inotify.max_user_watches with sysctl",
        )
    if problem:
        return warning(
            "events", f"{directory} cannot be watched: {os.strerror(problem)}", "servers only poll it"
        )
    return ok("events", f"inotify: {shown}")


def _try_watch(directory: Path) -> int:
    """The number of the error; 0 when it can be watched."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = library.inotify_init1(_CLOSED_ON_EXEC)
    except AttributeError:
        return errno.ENOSYS
    if descriptor < 0:
        return ctypes.get_errno()
    try:
        watch = library.inotify_add_watch(descriptor, os.fsencode(directory), _EVENTS)
        return ctypes.get_errno() if watch < 0 else 0
    finally:
        os.close(descriptor)


def check_file_system(directory: Path, root: Path) -> Check:
    kind, mount = find_mount(directory, root)
    where = f"{kind} at {mount}"
    if kind in _REMOTE or kind.startswith("fuse"):
        return warning(
            "file system",
            f"{where}: events of other machines do not arrive, and locks and hard links may be missing",
            "start servers with --polling-only; `hotdelta doctor --write DIR` tries what a trainer needs",
        )
    if kind in ("tmpfs", "ramfs", "overlay"):
        return warning(
            "file system", f"{where}: what lies here goes with the machine or the container", "mount a volume"
        )
    return ok("file system", where)


def find_mount(directory: Path, root: Path) -> tuple[str, str]:
    """(kind, mount point) of the file system that a directory is on."""
    resolved = directory.resolve()
    best = ("unknown", "?")
    try:
        lines = (root / "proc/mounts").read_text().splitlines()
    except OSError:
        return best
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Blanks in a name are written as octal numbers.
        mount = fields[1].encode().decode("unicode_escape")
        is_longer = best[1] == "?" or len(mount) >= len(best[1])
        if is_longer and (resolved == Path(mount) or Path(mount) in resolved.parents):
            best = (fields[2], mount)
    return best


def check_space(directory: Path) -> Check:
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        return failure("space", f"{directory}: {error.strerror}", "give a directory that can be read")
    found = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free"
    if usage.free < usage.total // 50:
        return warning(
            "space", found, "a save that finds no space is tried again, and training goes on: make room"
        )
    return ok("space", found)


def check_huge_pages(root: Path) -> Check:
    try:
        setting = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text().strip()
    except OSError:
        return warning(
            "huge pages", "this system has none", "updates of large tables take up to a third longer"
        )
    if "[never]" in setting:
        return warning(
            "huge pages",
            setting,
            "updates of large tables take up to a third longer: write madvise into "
            "/sys/kernel/mm/transparent_hugepage/enabled",
        )
    return ok("huge pages", setting)


def check_clock() -> Check:
    """Clocks decide nothing here, but a lag between two machines is as true as they are."""
    is_synchronized = _is_clock_synchronized()
    if is_synchronized is None:
        return ok("clock", "the system does not say whether it is synchronized")
    if not is_synchronized:
        return warning(
            "clock",
            "the kernel says that it is not synchronized",
            "lags between machines are as wrong as it is: run chrony or systemd-timesyncd on the host",
        )
    return ok("clock", "synchronized")


def _is_clock_synchronized() -> bool | None:
    """What adjtimex says, asked without changing anything: its first member is what to change, and 0."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except AttributeError:
        return None
    if state < 0:
        return None
    # modes, offset, freq, maxerror, esterror, status; longs are aligned.
    (*_, status) = struct.unpack_from("@Illlli", buffer.raw)
    return not status & _UNSYNCHRONIZED


def check_open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} open files are allowed ({hard:,} at most)"
    if soft != resource.RLIM_INFINITY and soft < _MIN_FILES:
        return warning("open files", found, "a server with its 1,000 connections wants more: ulimit -n 65536")
    return ok("open files", found)


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
