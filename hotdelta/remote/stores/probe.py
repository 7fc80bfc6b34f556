"""Whether a store keeps what chains rest on: tried out, since servers exist that take a condition and ignore it.

Writes a few small objects under a name of its own and deletes them again. Never touches a chain.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from hotdelta.errors import NameTakenError, ObjectMissingError, StoreError, UnfitStoreError
from hotdelta.remote.stores.contract import Store, put_once

_PREFIX = "probe-"
_WRITERS = 8
# More than one part of an upload in parts, whichever engine makes them.
_LARGE_BYTES = 6 * 1024 * 1024
_SKEW_SECONDS = 5.0
# How exactly a store says when something was put.
_CLOCK_SECONDS = 1.0
_ADVICE = "use a store that keeps conditional puts; docs/remote.md names some"


class Fitness(StrEnum):
    """DOUBTFUL: chains are safe, but something is worse than it could be."""

    KEPT = "kept"
    DOUBTFUL = "doubtful"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise, what was found when it was tried, and what to do unless it is kept."""

    promise: str
    fitness: Fitness
    found: str
    advice: str = ""


@runtime_checkable
class SaysWhen(Protocol):
    """A store that has a clock of its own."""

    def when_put(self, name: str) -> float:
        """In seconds since 1970. Raises StoreError."""
        ...


def probe(store: Store) -> Iterator[Finding]:
    """All that can be tried, in seconds. Raises StoreError when it cannot be reached, or refuses to be written to."""
    with _place(store) as place:
        for step in _STEPS:
            yield _tried(step, store, place)


def require_fit(store: Store) -> None:
    """What a trainer asks of a store before it publishes: that a name is given once, and that what is put is there.

    Raises UnfitStoreError, which says what to do, and StoreError when it cannot be told now.
    """
    with _place(store) as place:
        for step in _NEEDED:
            finding = _tried(step, store, place)
            if finding.fitness is Fitness.BROKEN:
                raise UnfitStoreError(
                    f"{store.address} cannot keep a chain: {finding.promise}: {finding.found}",
                    hint=f"{finding.advice or _ADVICE}; `hotdelta doctor` on the address tells more",
                )


@contextmanager
def _place(store: Store) -> Iterator[str]:
    """A prefix that nobody else uses; the first put to it finds out whether anybody answers."""
    place = f"{_PREFIX}{uuid.uuid4().hex}/"
    try:
        store.put(f"{place}here", b"")
        yield place
    finally:
        # What a store that is away leaves behind does no harm.
        with suppress(StoreError):
            for entry in store.list_after(place):
                store.delete(entry.name)


def _tried(step: Callable[[Store, str], Finding], store: Store, place: str) -> Finding:
    try:
        return step(store, place)
    except StoreError as error:
        if error.retryable:
            raise
        return Finding(_PROMISES[step], Fitness.BROKEN, error.message, error.hint)


def _try_new_name(store: Store, place: str) -> Finding:
    name = f"{place}new"
    store.put_new(name, b"first")
    try:
        store.put_new(name, b"second")
    except NameTakenError:
        if store.get(name, max_bytes=100) == b"first":
            return _kept(_try_new_name, "the second put of a new name was refused")
        return _broken(_try_new_name, "the second put of a new name was refused, and replaced the first")
    return _broken(_try_new_name, "the second put of a new name replaced the first: conditions are ignored")


def _try_new_names_at_once(store: Store, place: str) -> Finding:
    name, barrier = f"{place}at-once", threading.Barrier(_WRITERS)

    def claim(writer: int) -> bool:
        barrier.wait()
        return put_once(store, name, b"writer %d" % writer)

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="probe") as pool:
        won = [writer for writer, mine in enumerate(pool.map(claim, range(_WRITERS))) if mine]
    content = store.get(name, max_bytes=100)
    if len(won) != 1:
        return _broken(
            _try_new_names_at_once, f"of {_WRITERS} who put a new name at once {len(won)} succeeded"
        )
    if content != b"writer %d" % won[0]:
        return _broken(_try_new_names_at_once, "the object is not that of the one who succeeded")
    return _kept(_try_new_names_at_once, f"of {_WRITERS} who put a new name at once one succeeded")


def _try_reading(store: Store, place: str) -> Finding:
    name = f"{place}read"
    for content in (b"one", b"two", b"three"):
        store.put(name, content)
        if store.get(name, max_bytes=100) != content:
            return _broken(
                _try_reading, "what was put is not what is read right after", "are there caches between?"
            )
    store.delete(name)
    try:
        store.get(name, max_bytes=100)
    except ObjectMissingError:
        return _kept(_try_reading, "what was put is read, replaced and deleted at once")
    return _broken(_try_reading, "what was deleted is still read", "are there caches between?")


def _try_listing(store: Store, place: str) -> Finding:
    folder = f"{place}list/"
    names = [f"{folder}{number:04}" for number in range(4)]
    for name in (*names[2:0:-1], f"{folder}0001-a", names[0]):
        store.put(name, b"x")
    expected = [names[0], names[1], f"{folder}0001-a", names[2]]
    if (problem := _wrong_listing(store, folder, "", expected)) is None:
        store.put(names[3], b"x")
        problem = _wrong_listing(store, folder, names[1], [f"{folder}0001-a", names[2], names[3]])
    if problem is None:
        store.delete(names[2])
        problem = _wrong_listing(store, folder, names[1], [f"{folder}0001-a", names[3]])
    if problem is None:
        return _kept(
            _try_listing, "a listing begins behind a name, in order, and has what was put just before"
        )
    return _broken(_try_listing, problem, "are there caches between?")


def _wrong_listing(store: Store, folder: str, after: str, expected: Sequence[str]) -> str | None:
    found = [entry.name for entry in store.list_after(folder, after)]
    if found == list(expected):
        return None
    if set(found) == set(expected):
        return "a listing is not in the order of names"
    missing = len(set(expected) - set(found))
    return (
        f"a listing lacks {missing} of {len(expected)} names"
        if missing
        else "a listing has names it must not"
    )


def _try_ranges(store: Store, place: str) -> Finding:
    name, content = f"{place}range", bytes(range(256)) * 4
    store.put(name, content)
    for start, length in ((0, 10), (700, 100), (1000, 100), (1024, 10)):
        if bytes(store.get_range(name, start, length)) != content[start : start + length]:
            return _broken(
                _try_ranges, f"{length} bytes from {start} on are not those bytes", "serve from another store"
            )
    return _kept(_try_ranges, "parts of an object are read as they are")


def _try_large(store: Store, place: str) -> Finding:
    name, content = f"{place}large", bytes(range(256)) * (_LARGE_BYTES // 256)
    with tempfile.TemporaryDirectory(prefix="hotdelta-probe-") as directory:
        path = Path(directory, "large")
        path.write_bytes(content)
        begin = time.monotonic()
        store.put_file(name, path)
        put_seconds = time.monotonic() - begin
    begin = time.monotonic()
    is_right = bytes(store.get_range(name, 0, _LARGE_BYTES)) == content
    get_seconds = time.monotonic() - begin
    if not is_right:
        return _broken(
            _try_large, "a file put in parts is not read as it was", "does it take uploads in parts?"
        )
    rates = (f"{_LARGE_BYTES / 1e6 / max(seconds, 1e-6):,.0f} MB/s" for seconds in (put_seconds, get_seconds))
    return _kept(_try_large, "put at {}, read at {}".format(*rates))


def _try_clock(store: Store, place: str) -> Finding:
    if not isinstance(store, SaysWhen):
        return _kept(_try_clock, "it has none of its own")
    name, before = f"{place}clock", time.time()
    store.put(name, b"")
    after, there = time.time(), store.when_put(name)
    skew = max(before - _CLOCK_SECONDS - there, there - after - _CLOCK_SECONDS, 0.0)
    if skew <= _SKEW_SECONDS:
        return _kept(_try_clock, f"as here, within {skew + _CLOCK_SECONDS:.0f} s")
    return Finding(
        _PROMISES[_try_clock],
        Fitness.DOUBTFUL,
        f"{skew:,.0f} s {'behind' if there < before else 'ahead of'} this machine's",
        "synchronize this machine's clock: lags will be wrong, and beyond minutes requests are refused",
    )


_PROMISES: dict[Callable[[Store, str], Finding], str] = {
    _try_new_name: "new names",
    _try_new_names_at_once: "many writers",
    _try_reading: "read after write",
    _try_listing: "list after",
    _try_ranges: "ranges",
    _try_large: "large files",
    _try_clock: "its clock",
}
_STEPS = tuple(_PROMISES)
_NEEDED = (_try_new_name, _try_new_names_at_once, _try_reading, _try_listing)


def _kept(step: Callable[[Store, str], Finding], found: str) -> Finding:
    return Finding(_PROMISES[step], Fitness.KEPT, found)


def _broken(step: Callable[[Store, str], Finding], found: str, advice: str = _ADVICE) -> Finding:
    return Finding(_PROMISES[step], Fitness.BROKEN, found, advice)
