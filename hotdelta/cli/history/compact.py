"""`hotdelta compact DIR|URL [POSITION]`: a full of a position, so that nobody who starts reads all deltas up to it."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hotdelta.chain import Disk, Manifest, Scanner, TrainerLock, delete, expired
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import trusted_listing
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.store.compaction import compact
from hotdelta.cli.history.opened_chain import OpenedChain, open_chain, opened_chain
from hotdelta.cli.output import byte_progress, format_bytes, print_json
from hotdelta.errors import ChainError, ConfigurationError, DirectoryBusyError
from hotdelta.logs import counted
from hotdelta.remote.departures import Departures
from hotdelta.remote.publish.spool import marked_address
from hotdelta.remote.stores.address import is_address

# A trainer may publish a full of the same state meanwhile: its files have other names.
_MARK = "-compacted"
_PUTS_AT_ONCE = 4

# The state, the full that was made of it (None: it was one already), and what was deleted.
Done = tuple[ChainState, Manifest | None, tuple[Manifest, ...]]


def run(options: argparse.Namespace) -> int:
    done = (_in_store if is_address(options.directory) else _in_directory)(options)
    if options.is_json:
        print_json(_document(*done))
    else:
        _print(*done)
    return 0


def _in_directory(options: argparse.Namespace) -> Done:
    chain = open_chain(options.directory)
    _refuse_spool(chain)
    position = chain.position(options.position)
    chain.commits_at(position)
    with _locked(chain):
        # Once more: a trainer may have gone on until the lock was free.
        chain = open_chain(options.directory)
        state = find_state(chain.directory, listing=chain.listing, position=position)
        if state is None:
            raise ChainError(f"{chain.directory} holds nothing that can be read")
        made = _compact(chain, state) if state.deltas else None
        gone = _delete_old(chain, options.keep_fulls) if options.keep_fulls is not None else ()
    return state, made, gone


def _refuse_spool(chain: OpenedChain) -> None:
    """Its store may lack the deltas of some positions, and a full of one of them would lead nowhere there."""
    address = marked_address(chain.directory)
    if address is not None:
        raise ConfigurationError(
            f"{chain.directory} is the spool of {address}",
            hint=f"compact what is there: hotdelta compact {address}; the spool keeps two fulls by itself",
        )


def _in_store(options: argparse.Namespace) -> Done:
    """Whoever trains may go on: names in a store are given once, and one state may have two fulls made of it."""
    if options.keep_fulls is not None:
        raise ConfigurationError(
            "--keep-fulls is for directories: files in a store stay minutes longer than their names, for replicas",
            hint="the next trainer that is started with keep_fulls deletes there after each full",
        )
    with opened_chain(options.directory) as chain:
        way = chain.way_to(chain.position(options.position))
        with chain.files_of(way, roles=names.ROLES) as directory:
            state = find_state(directory, position=way[-1].position)
            if state is None or chain.store is None:
                raise ChainError(f"{chain.place} holds nothing that can be read")
            made = _compact(chain, state, mark=_MARK) if state.deltas else None
            if made is not None:
                with ThreadPoolExecutor(_PUTS_AT_ONCE, "hotdelta-put") as pool:
                    departures = Departures(chain.store, directory, pool=pool)
                    departures.send_rest(made)
                    departures.tell_head()
    return state, made, ()


def _locked(chain: OpenedChain) -> TrainerLock:
    """Raises DirectoryBusyError when a trainer runs."""
    lock = TrainerLock(chain.directory)
    try:
        lock.acquire()
    except DirectoryBusyError as error:
        raise DirectoryBusyError(
            error.message,
            directory=error.directory,
            hint="it makes fulls by itself, by its save_secs or save_steps, and deletes what is old: nothing to do",
        ) from error
    return lock


def _compact(chain: OpenedChain, state: ChainState, *, mark: str = "") -> Manifest:
    reader = StateReader(state)
    total = sum(found.size for key in reader.newest_keys() if (found := reader.type_of(key)) is not None)
    with byte_progress("written", total) as progress:
        return compact(state, chain.listing, disk=Disk(), on_write=progress.add, mark=mark)


def _delete_old(chain: OpenedChain, keep_fulls: int) -> tuple[Manifest, ...]:
    """As a trainer deletes after a full. Nothing goes while something is refused: it may be what is needed."""
    listing = trusted_listing(chain.directory, Scanner(chain.directory).scan())
    if listing.refused:
        raise ChainError(
            f"{listing.refused[0].path} cannot be used: {listing.refused[0].reason}",
            hint="nothing was deleted; see: hotdelta verify DIR",
        )
    gone = expired(listing.manifests, keep_fulls=keep_fulls)
    for manifest in gone:
        delete(chain.directory, manifest, Disk())
    return gone


def _print(state: ChainState, made: Manifest | None, gone: tuple[Manifest, ...]) -> None:
    if made is None:
        print(f"{state.node} is a full already")
    else:
        deltas = counted(len(state.deltas), "delta")
        print(f"{made.prefix}: {state.full.position} and {deltas} in one, {format_bytes(made.total_bytes)}")
    if gone:
        freed = format_bytes(sum(manifest.total_bytes for manifest in gone))
        print(f"{counted(len(gone), 'commit')} deleted, {freed}")


def _document(state: ChainState, made: Manifest | None, gone: tuple[Manifest, ...]) -> dict[str, Any]:
    return {
        "position": str(state.node),
        "full": str(state.full.position),
        "deltas": len(state.deltas),
        "prefix": made.prefix if made is not None else state.full.prefix,
        "bytes": made.total_bytes if made is not None else 0,
        "deleted": [f"{manifest.kind} {manifest.position}" for manifest in gone],
        "deleted_bytes": sum(manifest.total_bytes for manifest in gone),
    }
