"""From where a trainer goes on: from its spool, or, where that is not as far, from the store.

Whatever it is, it lies in the spool afterwards, whole, and is resumed from there like any chain.
"""

from __future__ import annotations

import logging
from pathlib import Path

from hotdelta.chain.disk import Disk
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.store.lock import TrainerLock
from hotdelta.errors import ChainError, DirectoryBusyError, StoreError
from hotdelta.logs import event
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.backlog import newest_position, positions_in, require_same_history
from hotdelta.remote.publish.spool import Spool, find_spool, mark
from hotdelta.remote.states import fetch_state
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store

logger = logging.getLogger(__name__)


def bring_in(run_dir: Path) -> None:
    """Before anybody looks into a spool for what to go on from: brings what the store has of a newer state.

    Of any other directory, and while its trainer is at work, nothing is done. Raises StoreError when the store refuses
    us, or is away and nothing lies in the spool; ChainError when no state in it can be had, or the two hold different
    histories; CommitError, ConfigurationError.
    """
    if (spool := find_spool(run_dir)) is None:
        return
    disk, lock = Disk(), TrainerLock(spool.directory)
    try:
        lock.acquire()
    except DirectoryBusyError:
        # Our own trainer goes on from what it has; past anybody else's the caller will not get.
        return
    try:
        mark(spool, disk)
        store = open_store(spool.address)
        try:
            _bring_in(spool, store, disk)
        finally:
            store.close()
    finally:
        lock.release()


def _bring_in(spool: Spool, store: Store, disk: Disk) -> None:
    log, listing = CommitLog(store), Scanner(spool.directory).scan()
    here = _state_here(spool)
    try:
        there = positions_in(log)
        require_same_history(log, listing.manifests, there)
        newest = newest_position(there)
        if newest is None or (here is not None and here.newest.position >= newest):
            return
        floor = here.newest.position if here is not None else None
        fetched = fetch_state(store, spool.directory, there=there, disk=disk, floor=floor)
        if fetched is not None:
            event(logger, logging.INFO, "going on from the store", position=fetched, store=store.address)
        else:
            phrase = "the store has a newer state that cannot be had; going on from the spool"
            event(logger, logging.WARNING, phrase, newest=newest, spool=floor, store=store.address)
    except StoreError as error:
        if here is None or not error.retryable:
            raise
        phrase = "the store is away; training goes on from its spool and publishes when it is back"
        event(
            logger, logging.WARNING, phrase, position=here.newest.position, store=spool.address, reason=error
        )


def _state_here(spool: Spool) -> ChainState | None:
    """Verified: what is damaged here may be whole in the store."""
    try:
        return find_state(spool.directory)
    except ChainError as error:
        phrase = "the spool cannot be gone on from"
        event(logger, logging.WARNING, phrase, directory=spool.directory, reason=error)
        return None
