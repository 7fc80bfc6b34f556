"""Where saves lie: a directory of this machine, or a store, of which a temporary directory holds what is needed.

In a store each save is a run of its own, claimed there as a trainer claims one: two who save at once never meet.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Listing, Scanner
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.store.lock import TrainerLock, claim_run
from hotdelta.chain.store.retention import sweep
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import to_directory
from hotdelta.io.saved_position import as_position, find_named, find_saved
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.departures import Departures
from hotdelta.remote.listing import list_commits
from hotdelta.remote.publish.backlog import positions_in
from hotdelta.remote.publish.claims import Claim
from hotdelta.remote.publish.spool import given_address
from hotdelta.remote.states import fetch_state
from hotdelta.remote.stores.address import Address
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.stores.probe import require_fit
from hotdelta.remote.trees import fetch_tree, find_tree, list_trees

_AT_ONCE = 8
# Trying a store takes seconds: once in a process is enough.
_found_fit: set[str] = set()


@dataclass(frozen=True, slots=True)
class SavePlace:
    """Where a save is written: its run number, which nobody else has, and what was saved there before."""

    directory: Path
    listing: Listing
    run: int


@contextmanager
def opened_to_save(given: Any) -> Iterator[SavePlace]:
    """What is committed in the directory, in the block, is saved when the block is left without an exception.

    Raises ConfigurationError, CommitError, StoreError, and DirectoryBusyError while somebody else writes there.
    """
    address = given_address(given)
    if address is not None:
        with closing(open_store(address)) as store:
            yield from _to_save_in(store)
        return
    directory, disk = to_directory(given, "dirname"), Disk()
    with TrainerLock(directory):
        listing = Scanner(directory).scan()
        _refuse_chain(directory, listing)
        sweep(directory, listing, disk)
        yield SavePlace(directory, listing, claim_run(directory, listing.manifests, disk))


@contextmanager
def opened_to_load(
    given: Any, *, position: Position | str | None, filename: str | None
) -> Iterator[ChainState]:
    """The state that is meant, verified; what it lies in may be gone when the block is left.

    Raises as `find_saved`, and StoreError.
    """
    address = given_address(given)
    if address is None:
        yield find_saved(to_directory(given, "dirname"), position=position, filename=filename)
        return
    with closing(open_store(address)) as store, _temporary_directory() as directory:
        wanted = _fetch(store, directory, position, filename)
        yield find_saved(directory, position=wanted)


@contextmanager
def opened_version(given: Any) -> Iterator[Path]:
    """The directory of the newest version of an export, or of the version that was given; it may be gone afterwards."""
    address = given_address(given)
    if address is None:
        yield _newest_version(to_directory(given, "dirname"))
        return
    place = Address.parse(address)
    above, _, last = place.path.rpartition("/")
    # An address may name the version, as that of an export does.
    for part, version in ((place, None), (replace(place, path=above), last if last.isdecimal() else "")):
        with closing(open_store(str(part))) as store, _temporary_directory() as directory:
            if version != "" and _fetch_version(store, version, directory / "model"):
                yield directory / "model"
                return
    raise ConfigurationError(
        f"{place} holds no inference model", hint="write one with save_inference_model, or exporter"
    )


def versions_in(directory: Path) -> list[int]:
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _to_save_in(store: Store) -> Iterator[SavePlace]:
    listing = list_commits(store)
    _refuse_chain(store.address, listing)
    run = Claim(store, require_fit=lambda: _require_fit(store)).take(1)
    with _temporary_directory() as directory:
        yield SavePlace(directory, listing, run)
        with ThreadPoolExecutor(_AT_ONCE, "hotdelta-put") as pool:
            departures = Departures(store, directory, pool=pool)
            for manifest in Scanner(directory).scan().manifests:
                departures.send(manifest)
            departures.tell_head()


def _require_fit(store: Store) -> None:
    if store.address not in _found_fit:
        require_fit(store)
        _found_fit.add(store.address)


def _refuse_chain(place: Path | str, listing: Listing) -> None:
    if any(manifest.kind is Kind.DELTA for manifest in listing.manifests):
        raise ConfigurationError(
            f"{place} holds the chain of a trainer: servers that follow it would take this save for its newest",
            hint="save into another place; a trainer saves into its own with save_full()",
        )


def _fetch(store: Store, directory: Path, position: Position | str | None, filename: str | None) -> Position:
    """Brings it, and returns where it is."""
    there = positions_in(CommitLog(store))
    wanted = as_position(position) if position is not None else None
    if filename is not None:
        wanted = find_named(filename, store.address, list_commits(store))
    elif wanted is not None and not any(wanted in positions for positions in there.values()):
        raise ConfigurationError(
            f"{store.address} holds no position {wanted}",
            hint="see: hotdelta log; leave `position` out for the newest",
        )
    fetched = fetch_state(store, directory, there=there, disk=Disk(), until=wanted)
    if fetched is None:
        raise ConfigurationError(
            f"nothing is saved in {store.address}",
            hint="give the address that save_persistables, or a trainer, was given",
        )
    return wanted or fetched


def _fetch_version(store: Store, version: str | None, target: Path) -> bool:
    numbers = [int(name) for name in list_trees(store) if name.isascii() and name.isdecimal()]
    chosen = version or str(max(numbers, default=""))
    tree = find_tree(store, chosen) if chosen else None
    if tree is None:
        return False
    with ThreadPoolExecutor(_AT_ONCE, "hotdelta-fetch") as pool:
        fetch_tree(store, tree, target, pool=pool, disk=Disk())
    return True


def _newest_version(directory: Path) -> Path:
    if (directory / "saved_model.pb").exists():
        return directory
    versions = versions_in(directory)
    if not versions:
        raise ConfigurationError(
            f"{directory} holds no inference model", hint="write one with save_inference_model, or exporter"
        )
    return directory / str(max(versions))


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hotdelta-io-") as directory:
        yield Path(directory)
