"""The mirror of exports: each version in a store appears here whole, the newest first, and old ones go."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.store.small_file import replace_file
from hotdelta.directory_lock import LockedDirectory
from hotdelta.errors import ManifestError, ObjectDamagedError, ObjectMissingError, StoreError
from hotdelta.logs import FailureLog, about, event
from hotdelta.remote.mirror.place import WORDING
from hotdelta.remote.mirror.reach import Reach
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.mirror.status import MirrorStatus
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.trees import Tree, fetch_tree, find_tree, list_trees

logger = logging.getLogger(__name__)

STOP_SECONDS = 60.0
_PIECES_AT_ONCE = 8
_MAX_DIGITS = 18
# Beside each version: of which list it was made, so that another one under its number is seen.
_RECORD_PREFIX = ".tree-"
# One that is not served after so long may be one that cannot be: then the one before it is brought.
_PATIENCE_SECONDS = 30.0


def wanted_versions(stored: Iterable[int], served: int | None, *, is_newest_refused: bool) -> tuple[int, ...]:
    """The versions to bring, the first first: the newest, and the one before it when that is of no use. Pure."""
    newest = sorted((number for number in stored if served is None or number > served), reverse=True)
    return tuple(newest[: 2 if is_newest_refused else 1])


def versions_to_remove(
    local: Mapping[int, int], served: int | None, wanted: Collection[int], *, max_bytes: int
) -> tuple[int, ...]:
    """The oldest of those here (numbers and sizes), never what is served, wanted or newer, as far as needed. Pure."""
    excess = sum(local.values()) - max_bytes
    going = []
    for number in sorted(local):
        if excess > 0 and served is not None and number < served and number not in wanted:
            going.append(number)
            excess -= local[number]
    return tuple(going)


class ExportMirror:
    """Keeps `directory` in step with the exports of a store. `start`, `stop` belong to the owner; the rest is for any.

    `served` tells which version is served, `on_arrival` hears when one has come.
    """

    def __init__(
        self,
        store: Store,
        directory: Path,
        settings: MirrorSettings,
        *,
        served: Callable[[], int | None] = lambda: None,
        on_arrival: Callable[[], None] = lambda: None,
        told: dict[str, str] | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigurationError when the directory cannot be used, or is another mirror's."""
        self._store = store
        self._directory = directory
        self._settings = settings
        self._served = served
        self._on_arrival = on_arrival
        self._told = told or {}
        self._disk = disk or Disk()
        self._clock = clock
        self._place = LockedDirectory(directory, WORDING)
        self._pool = ThreadPoolExecutor(_PIECES_AT_ONCE, thread_name_prefix="hotdelta-mirror-export")
        self._reach = Reach(
            settings, store.address, poll_seconds=settings.exports_seconds, wall_clock=wall_clock
        )
        self._failures = FailureLog(logger, clock)
        self._problem = ""
        self._sizes: dict[int, int] = {}
        self._arrived_at: dict[int, float] = {}
        self._fetched_bytes = self._fetched_exports = 0
        self._counting = threading.Lock()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotdelta-mirror-exports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when its threads have ended; requests to the store are waited for."""
        self._is_stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._place.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def status(self) -> MirrorStatus:
        return MirrorStatus(
            address=self._store.address,
            directory=self._directory,
            is_reached=self._reach.is_reached,
            answered_at=self._reach.answered_at,
            problem=self._reach.problem or self._problem,
            fetched_bytes=self._fetched_bytes,
            fetched_exports=self._fetched_exports,
            local_bytes=sum(self._sizes.values()),
            failures=self._reach.failures,
        )

    def _run(self) -> None:
        about(**self._told)
        while not self._is_stopping.is_set():
            try:
                self._look()
                self._reach.answered()
            except StoreError as error:
                if not self._is_stopping.is_set():
                    self._reach.failed(error)
            except Exception:
                # The edge of the loop: whatever it is, what is here goes on being served.
                if not self._is_stopping.is_set():
                    logger.exception("unexpected failure while mirroring exports")
            self._is_stopping.wait(self._reach.pause_seconds())

    def _look(self) -> None:
        """Raises StoreError."""
        self._sizes = {number: _count_bytes(self._path(number)) for number in self._list_local()}
        stored = [number for name in list_trees(self._store) if (number := _number(name)) is not None]
        served = self._served()
        newest = max(stored, default=None)
        is_refused = newest is not None and self._is_refused(newest, served)
        wanted = wanted_versions(stored, served, is_newest_refused=is_refused)
        for number in wanted:
            if self._is_stopping.is_set():
                return
            self._bring(number)
        for number in versions_to_remove(self._sizes, served, wanted, max_bytes=self._settings.max_bytes):
            self._remove(number)

    def _is_refused(self, newest: int, served: int | None) -> bool:
        arrived_at = self._arrived_at.get(newest)
        is_old = arrived_at is not None and self._clock() - arrived_at > _PATIENCE_SECONDS
        return is_old and (served is None or served < newest)

    def _bring(self, number: int) -> None:
        """Raises StoreError when the store is away."""
        try:
            tree = find_tree(self._store, str(number))
            if tree is None or self._is_here(number, tree):
                self._arrived_at.setdefault(number, self._clock())
                return
            event(logger, logging.INFO, "fetching export", version=number, bytes=tree.total_bytes)
            self._remove(number)
            fetch_tree(
                self._store,
                tree,
                self._path(number),
                pool=self._pool,
                disk=self._disk,
                on_bytes=self._add_bytes,
            )
            self._write_record(number, tree)
        except (ObjectDamagedError, ObjectMissingError, ManifestError) as error:
            self._fail(number, error.message)
        except OSError as error:
            self._fail(number, f"{self._directory} cannot be written: {error.strerror}")
        else:
            self._problem = ""
            self._failures.worked("exports can be fetched again")
            self._sizes[number] = tree.total_bytes
            self._arrived_at[number] = self._clock()
            self._fetched_exports += 1
            self._on_arrival()

    def _fail(self, number: int, reason: str) -> None:
        self._problem = f"export {number}: {reason}"
        self._failures.failed("export cannot be fetched", version=number, reason=reason)

    def _add_bytes(self, count: int) -> None:
        with self._counting:
            self._fetched_bytes += count

    def _is_here(self, number: int, tree: Tree) -> bool:
        try:
            return self._path(number).is_dir() and self._record(number).read_text() == tree.digest
        except OSError:
            return False

    def _write_record(self, number: int, tree: Tree) -> None:
        """Last: without it the version is fetched again. Raises OSError."""
        replace_file(self._disk, self._record(number), tree.digest.encode())

    def _remove(self, number: int) -> None:
        """Under another name first: nobody finds half of it."""
        path = self._path(number)
        going = path.with_name(f"{names.TEMPORARY_PREFIX}old-{number}")
        self._sizes.pop(number, None)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._record(number))
        shutil.rmtree(going, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._disk.rename(path, going)
        shutil.rmtree(going, ignore_errors=True)

    def _list_local(self) -> list[int]:
        return [number for path in self._directory.iterdir() if (number := _number(path.name)) is not None]

    def _path(self, number: int) -> Path:
        return self._directory / str(number)

    def _record(self, number: int) -> Path:
        return self._directory / f"{_RECORD_PREFIX}{number}"


def _number(name: str) -> int | None:
    is_plain = name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS and str(int(name)) == name
    return int(name) if is_plain else None


def _count_bytes(directory: Path) -> int:
    """As far as it can be looked at."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
