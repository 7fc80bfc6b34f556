"""What may be deleted, and deleting it: first the manifest, so that no reader starts on what is going away."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node, Position
from hotdelta.chain.history.lineage import trace_lineage
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store import checkpoint_file
from hotdelta.chain.store.sweep import sweep
from hotdelta.chain.write_failure import translated

__all__ = ["delete", "expired", "sweep"]


def expired(
    manifests: Sequence[Manifest], *, keep_fulls: int, pinned: Node | None = None
) -> tuple[Manifest, ...]:
    """What is no longer needed, in the order in which to delete it. Pure.

    Kept are the newest `keep_fulls` fulls, the fulls that the newest state and the `pinned` one start from, and every
    delta from the oldest of these on. Abandoned branches go. Nothing goes while no full leads to the newest state.
    """
    if keep_fulls < 1:
        raise ValueError("keep_fulls is at least 1")
    if not manifests:
        return ()
    newest = max(manifests, key=lambda manifest: manifest.position)
    needed = _find_start(newest.node, manifests)
    if needed is None:
        return ()
    needed_by_pin = None if pinned is None else _find_start(pinned, manifests)
    lineage = trace_lineage(newest.position.run, manifests)
    alive = [manifest for manifest in manifests if not lineage.is_abandoned(manifest.position)]
    fulls = sorted(manifest.position for manifest in alive if manifest.kind is Kind.FULL)
    kept = {needed, *fulls[-keep_fulls:]}
    if needed_by_pin is not None and needed_by_pin in fulls:
        kept.add(needed_by_pin)
    oldest = min(kept)
    kept_prefixes = {
        manifest.prefix
        for manifest in alive
        if (manifest.position in kept if manifest.kind is Kind.FULL else manifest.position >= oldest)
    }
    going = [manifest for manifest in manifests if manifest.prefix not in kept_prefixes]
    return tuple(sorted(going, key=lambda manifest: (manifest.position, manifest.kind is Kind.DELTA)))


def delete(run_dir: Path, manifest: Manifest, disk: Disk) -> None:
    """Deletes one commit. What is gone already is no error. Raises CommitError."""
    directory = directory_of(run_dir, manifest.kind)
    with translated(f"deleting {manifest.position} ({manifest.prefix})", directory):
        _unlink(directory / names.manifest_name(manifest.prefix), disk)
        # Durable before the files go: after a power loss a manifest must not come back without them.
        disk.sync_directory(directory)
        # The index goes last: it is what sweep knows our files by.
        for file in sorted(manifest.files, key=lambda file: file.role == names.ROLE_INDEX):
            _unlink(directory / file.name, disk)
    if manifest.kind is Kind.FULL:
        checkpoint_file.refresh_fulls(directory, disk=disk)


def _find_start(node: Node, manifests: Iterable[Manifest]) -> Position | None:
    """The position of the newest full from which deltas lead to a state."""
    fulls, parents = set(), {}
    for manifest in manifests:
        if manifest.kind is Kind.FULL:
            fulls.add(manifest.node)
        elif manifest.parent is not None:
            parents[manifest.node] = manifest.parent
    while node not in fulls:
        if node not in parents:
            return None
        node = parents[node]
    return node.position


def _unlink(path: Path, disk: Disk) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)
