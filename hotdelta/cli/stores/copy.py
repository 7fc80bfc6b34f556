"""`hotdelta copy A B`: a chain from one directory or store to another."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotdelta.chain import Listing, Manifest
from hotdelta.cli.history.opened_chain import require_directory
from hotdelta.cli.output import byte_progress, format_bytes, print_json, warn
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import to_directory
from hotdelta.logs import counted
from hotdelta.remote.copying import Copied, copy_chain, look_at
from hotdelta.remote.stores.address import is_address
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store


def run(options: argparse.Namespace) -> int:
    """1 when something in A cannot be used, and was not copied."""
    with _opened(options.source) as source, _opened(options.target) as target:
        if isinstance(source, Path):
            require_directory(options.source)
        found = look_at(source)
        if not found.manifests:
            raise ConfigurationError(
                f"nothing in {options.source} can be copied", hint="see: hotdelta verify"
            )
        done = _copy(source, found, target, options)
        newest = max(manifest.position for manifest in found.manifests)
    if options.is_json:
        print_json(_document(done, found, str(newest)))
    else:
        _print(done, str(newest))
    for refused in found.refused:
        warn(f"not copied, cannot be used: {refused.path}: {refused.reason}")
    return 1 if found.refused else 0


def _copy(source: Path | Store, found: Listing, target: Path | Store, options: argparse.Namespace) -> Copied:
    total = sum(manifest.total_bytes for manifest in found.manifests)
    progress_lock = threading.Lock()
    with byte_progress("copied", total) as progress:

        def add(count: int) -> None:
            with progress_lock:
                progress.add(count)

        return copy_chain(source, found, target, is_deleting=options.is_deleting, on_bytes=add)


@contextmanager
def _opened(given: str) -> Iterator[Path | Store]:
    if not is_address(given):
        yield to_directory(given, "DIR")
        return
    store = open_store(given)
    try:
        yield store
    finally:
        store.close()


def _print(done: Copied, newest: str) -> None:
    there = f"; {counted(len(done.there), 'commit')} there already" if done.there else ""
    print(f"{counted(len(done.copied), 'commit')} copied, {format_bytes(done.bytes)}{there}; newest {newest}")
    if done.gone:
        print(f"{counted(len(done.gone), 'commit')} vanished from the source meanwhile")
    if done.deleted:
        print(f"{counted(len(done.deleted), 'commit')} deleted at the target")


def _document(done: Copied, found: Listing, newest: str) -> dict[str, Any]:
    return {
        "newest": newest,
        "bytes": done.bytes,
        "copied": _positions(done.copied),
        "there": _positions(done.there),
        "gone": _positions(done.gone),
        "deleted": _positions(done.deleted),
        "refused": [{"file": str(item.path), "reason": item.reason} for item in found.refused],
    }


def _positions(manifests: list[Manifest]) -> list[dict[str, str]]:
    return [{"kind": str(manifest.kind), "position": str(manifest.position)} for manifest in manifests]
