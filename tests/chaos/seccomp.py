"""The kernel asks before a system call happens (seccomp): the calls, and how a process lets itself be asked for."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """The numbers of a call on x86-64 and on ARM (0: there is none), and where its path or descriptor is."""

    x86: int
    arm: int
    path: int | None = None
    directory: int | None = None
    descriptor: int | None = None


FORMS = {
    "open": Form(2, 0, path=0),
    "openat": Form(257, 56, path=1, directory=0),
    "newfstatat": Form(262, 79, path=1, directory=0),
    "getdents64": Form(217, 61, descriptor=0),
    "read": Form(0, 63, descriptor=0),
    "pread64": Form(17, 67, descriptor=0),
    "preadv": Form(295, 69, descriptor=0),
    "preadv2": Form(327, 286, descriptor=0),
    "mmap": Form(9, 222, descriptor=4),
    "close": Form(3, 57, descriptor=0),
    "write": Form(1, 64, descriptor=0),
    "pwrite64": Form(18, 68, descriptor=0),
    "writev": Form(20, 66, descriptor=0),
    "ftruncate": Form(77, 46, descriptor=0),
    "fallocate": Form(285, 47, descriptor=0),
    "fsync": Form(74, 82, descriptor=0),
    "fdatasync": Form(75, 83, descriptor=0),
    "rename": Form(82, 0, path=1),
    "renameat": Form(264, 38, path=3, directory=2),
    "renameat2": Form(316, 276, path=3, directory=2),
    "link": Form(86, 0, path=1),
    "linkat": Form(265, 37, path=3, directory=2),
    "unlink": Form(87, 0, path=0),
    "unlinkat": Form(263, 35, path=1, directory=0),
    "mkdir": Form(83, 0, path=0),
    "mkdirat": Form(258, 34, path=1, directory=0),
    "rmdir": Form(84, 0, path=0),
    "inotify_add_watch": Form(254, 27, path=1),
}
OPENS, WATCHES = ("open", "openat"), ("inotify_add_watch",)
RENAMES = ("rename", "renameat", "renameat2")
READS = (*OPENS, "newfstatat", "getdents64", "read", "pread64", "preadv", "preadv2", "mmap", "close")
WRITES = (*OPENS, *(name for name in FORMS if name not in READS + WATCHES))

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_NO_NEW_PRIVILEGES, _SET_FILTER, _NEW_LISTENER = 38, 1, 8
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000


def is_supported() -> bool:
    return sys.platform == "linux" and platform.machine() in _SECCOMP


def ask_before(calls: Iterable[str]) -> int:
    """From now on every such call of this thread, and of the threads it will start, waits for an answer.

    Returns the descriptor at which somebody else has to answer. Raises OSError where the kernel does not do that.
    """
    numbers = [number for name in calls if (number := number_of(name)) is not None]
    program = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    program += [
        struct.pack("HBBI", _JUMP_IF_EQUAL, len(numbers) - index, 0, number)
        for index, number in enumerate(numbers)
    ]
    program += [struct.pack("HBBI", _RETURN, 0, 0, _ALLOW), struct.pack("HBBI", _RETURN, 0, 0, _ASK)]
    code = ctypes.create_string_buffer(b"".join(program))
    described = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener: int = libc.syscall(_SECCOMP[platform.machine()], _SET_FILTER, _NEW_LISTENER, described)
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


def number_of(name: str) -> int | None:
    if platform.machine() == "x86_64":
        return FORMS[name].x86
    return FORMS[name].arm or None
