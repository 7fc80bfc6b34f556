"""Puts what a run directory holds into a store, in the order in which a publisher does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hotdelta.chain import Manifest, directory_of
from hotdelta.chain.format import names
from hotdelta.chain.history.scan import Scanner
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.stores.contract import Store


def manifest_path(run_dir: Path, manifest: Manifest) -> Path:
    return directory_of(run_dir, manifest.kind) / names.manifest_name(manifest.prefix)


def put_commit(store: Store, run_dir: Path, manifest: Manifest) -> None:
    for file in manifest.files:
        store.put_file(
            layout.data_name(manifest, file.name), directory_of(run_dir, manifest.kind) / file.name
        )
    CommitLog(store).add(manifest, manifest_path(run_dir, manifest).read_bytes())


def put_commits(store: Store, run_dir: Path, manifests: Iterable[Manifest] | None = None) -> None:
    for manifest in Scanner(run_dir).scan().manifests if manifests is None else manifests:
        put_commit(store, run_dir, manifest)
