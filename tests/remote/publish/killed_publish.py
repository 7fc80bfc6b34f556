"""A program: for every request that a publish makes of a store, a child that kills itself right before it.

Usage: killed_publish.py RUN_DIR DIRECTORY FOLD_ABOVE makes DIRECTORY/1, DIRECTORY/2, ... each with the spool and the
store of a publish that was killed at that request, and ends with the first child that survived.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hotdelta.chain.history.scan import Scanner
from hotdelta.remote.publish.figures import PublishFigures
from hotdelta.remote.publish.publisher import Publisher
from hotdelta.remote.publish.spool import SpoolOptions
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from tests.remote.tried_stores import CountingStore

T = TypeVar("T")


class KillingStore(CountingStore):
    """Kills its own process, as kill -9 does, before the n-th request."""

    def __init__(self, store: Store, *, kill_at: int) -> None:
        super().__init__(store)
        self._kill_at = kill_at

    def _answer(self, count: int, do: Callable[[], T]) -> T:
        if count >= self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return do()


def publish(store: Store, run_dir: Path, *, least_run: int, fold_above: int | None = None) -> PublishFigures:
    """As a trainer does that is started, and has nothing more to save."""
    manifests = Scanner(run_dir).scan().manifests
    options = SpoolOptions(fold_deltas_above=fold_above)
    publisher = Publisher(store, run_dir, options=options, keep_fulls=5)
    publisher.claim_run(least_run, may_begin_alone=True)
    publisher.begin(manifests, manifests[-1].node)
    publisher.close()
    return publisher.figures


def store_in(directory: Path) -> Store:
    return open_store(f"file://{directory / 'store'}")


def spool_in(directory: Path) -> Path:
    return directory / "spool"


def main(run_dir: Path, directory: Path, fold_above: int) -> None:
    kill_at, status = 0, signal.SIGKILL.value
    while status == signal.SIGKILL:
        kill_at += 1
        place = directory / str(kill_at)
        shutil.copytree(run_dir, spool_in(place))
        child = os.fork()
        if child == 0:
            store = KillingStore(store_in(place), kill_at=kill_at)
            publish(store, spool_in(place), least_run=1, fold_above=fold_above)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
    sys.exit(0 if status == 0 else f"a child ended with status {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
