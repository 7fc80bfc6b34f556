"""`hotdelta compact DIR [POSITION]`: a full of a position, so that whoever starts need not read all deltas up to it."""

from __future__ import annotations

import argparse
from typing import Any

from hotdelta.chain import Disk, Manifest, Scanner, TrainerLock, delete, expired
from hotdelta.chain.history.signing import trusted_listing
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.store.compaction import compact
from hotdelta.cli.history.opened_chain import OpenedChain, open_chain
from hotdelta.cli.output import byte_progress, format_bytes, print_json
from hotdelta.errors import ChainError, DirectoryBusyError
from hotdelta.logs import counted


def run(options: argparse.Namespace) -> int:
    chain = open_chain(options.directory)
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
    if options.is_json:
        print_json(_document(state, made, gone))
    else:
        _print(state, made, gone)
    return 0


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


def _compact(chain: OpenedChain, state: ChainState) -> Manifest:
    reader = StateReader(state)
    total = sum(found.size for key in reader.newest_keys() if (found := reader.type_of(key)) is not None)
    with byte_progress("written", total) as progress:
        return compact(state, chain.listing, disk=Disk(), on_write=progress.add)


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
