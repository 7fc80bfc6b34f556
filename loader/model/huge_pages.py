"""Large tables in huge pages: an update takes rows from all over a table, and each costs a walk through page tables.

Only a matter of speed, for one pass over the memory after a model is loaded: what the system refuses stays as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

# With less the page tables stay in the cache of the processor.
_MIN_BYTES = 16 * 2**20
_PAGE_BYTES = 2 * 2**20
_PIECE_BYTES = 8 * 2**20
# A system that takes longer for a piece is short of memory in one piece, and has to move that of others for ours.
PATIENCE_SECONDS = 1.0
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# From <linux/mman.h>; the mmap module has no address of its own to give them to, and no name for the second.
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25

# Gives the system an advice for (address, size); returns 0, or the number of the error.
Advise = Callable[[int, int, int], int]


def madvise(start: int, size: int, advice: int) -> int:
    """Releases the GIL."""
    call = ctypes.CDLL(None, use_errno=True).madvise
    done: int = call(ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_int(advice))
    return ctypes.get_errno() if done else 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a variable lies in memory."""

    address: int
    size: int


class HugePages:
    """Moves the large variables of a Session, in a thread of its own: whoever loads a model does not wait for it."""

    def __init__(
        self,
        session: tf.compat.v1.Session,
        *,
        setting: Path = SETTING,
        advise: Advise = madvise,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Make it before anything else reads or writes the variables."""
        self._advise = advise
        self._patience_seconds = patience_seconds
        self._places = find_variables(session, _MIN_BYTES) if _is_allowed(setting) else []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._move, name="hotdelta-huge-pages", daemon=True)
        if self._places:
            self._thread.start()

    def wait(self) -> None:
        """Wait until everything that can be moved is moved."""
        if self._places:
            self._thread.join()

    def stop(self) -> None:
        """Move no further. Call it before the variables are freed."""
        self._stop.set()
        self.wait()

    def _move(self) -> None:
        for place in self._places:
            # What cannot be collapsed now is looked at again by the system in its own time.
            self._advise(*_inner_pages(place), _MADV_HUGEPAGE)
        for place in self._places:
            if not collapse(place, self._stop, advise=self._advise, patience_seconds=self._patience_seconds):
                return


def find_variables(session: tf.compat.v1.Session, min_bytes: int) -> list[Place]:
    """Those of at least so many bytes.

    A trace of reading them tells where they lie, and until rows are gathered or scattered reading copies nothing.
    """
    with session.graph.as_default():
        reads = [
            tf.raw_ops.ReadVariableOp(resource=operation.outputs[0], dtype=operation.get_attr("dtype")).op
            for operation in session.graph.get_operations()
            if operation.type == "VarHandleOp" and _count_bytes(operation) >= min_bytes
        ]
    return _trace_reads(session, reads) if reads else []


def _trace_reads(session: tf.compat.v1.Session, reads: list[tf.Operation]) -> list[Place]:
    run_options = tf.compat.v1.RunOptions
    options = run_options(trace_level=run_options.SOFTWARE_TRACE)
    trace = tf.compat.v1.RunMetadata()
    # Operations and not their outputs: those would be copied.
    with contextlib.suppress(tf.errors.OpError):
        session.run(reads, options=options, run_metadata=trace)
    return list(_places(trace, {read.name for read in reads}))


def collapse(
    place: Place,
    stop: threading.Event,
    *,
    advise: Advise = madvise,
    patience_seconds: float = PATIENCE_SECONDS,
) -> bool:
    """Replaces small pages with huge ones, without a change of what they hold. False when it gave up before the end.

    It rests as long as it works: what is being moved serves, and a page is locked while it is moved.
    """
    start, size = _inner_pages(place)
    end = start + size
    for piece in range(start, end, _PIECE_BYTES):
        began = time.monotonic()
        refusal = advise(piece, min(_PIECE_BYTES, end - piece), _MADV_COLLAPSE)
        # Of a growing table only the rows in use take memory: from here on there is nothing to move.
        if refusal == errno.EINVAL:
            return True
        # A page that was busy for a moment is no reason to leave out the others.
        if refusal not in (0, errno.EAGAIN):
            return False
        seconds = time.monotonic() - began
        if seconds > patience_seconds or stop.wait(seconds):
            return False
    return True


def _is_allowed(setting: Path) -> bool:
    """Whether this is a system that knows huge pages, and its owner has not switched them off."""
    try:
        return "[never]" not in setting.read_text()
    except OSError:
        return False


def _inner_pages(place: Place) -> tuple[int, int]:
    """(Address, size) of the huge pages that lie in it as a whole."""
    start = -(-place.address // _PAGE_BYTES) * _PAGE_BYTES
    end = (place.address + place.size) // _PAGE_BYTES * _PAGE_BYTES
    return start, max(0, end - start)


def _count_bytes(handle: tf.Operation) -> int:
    shape = tf.TensorShape(handle.get_attr("shape"))
    return int(shape.num_elements() or 0) * int(handle.get_attr("dtype").size)


def _places(trace: Any, names: set[str]) -> Iterator[Place]:
    for device in trace.step_stats.dev_stats:
        for node in device.node_stats:
            if node.node_name in names:
                for output in node.output:
                    memory = output.tensor_description.allocation_description
                    yield Place(int(memory.ptr), int(memory.requested_bytes))
