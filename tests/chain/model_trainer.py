"""A trainer and a server as small as they can be: the state is a dict of rows, the files and the chain are real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hotdelta.chain import (
    ApplyDelta,
    BundleReader,
    BundleWriter,
    Disk,
    HighestStep,
    Kind,
    Listing,
    Manifest,
    Node,
    Plan,
    Position,
    PreparedBundle,
    RestoreFull,
    Scanner,
    TensorLayout,
    TrainerLock,
    UndoTo,
    claim_run,
    commit,
    delete,
    directory_of,
    encode_identity,
    expired,
    new_state_id,
    plan,
    sweep,
    verify,
)
from hotdelta.chain.format import names

Rows = dict[int, int]
SCHEMA = "5" * 64


def read_rows(run_dir: Path, manifest: Manifest) -> Rows:
    """The rows that a commit holds, after every check there is."""
    verify(run_dir, manifest)
    with BundleReader(directory_of(run_dir, manifest.kind), manifest.prefix) as reader:
        for name in reader.entries:
            reader.check(name)
        return dict(zip(reader.read("ids").tolist(), reader.read("rows").tolist(), strict=True))


@dataclass
class ModelServer:
    """Follows a directory; `history` is what it can undo to, with the rows of each state."""

    run_dir: Path
    live: Node | None = None
    rows: Rows = field(default_factory=dict)
    history: dict[Node, Rows] = field(default_factory=dict)

    def follow(self) -> Plan:
        listing = Scanner(self.run_dir).scan()
        found = plan(self.live, listing.manifests, undoable=list(self.history), refused=listing.refused)
        for step in found.steps:
            match step:
                case ApplyDelta(manifest):
                    assert manifest.parent == self.live
                    if self.live is not None:
                        self.history[self.live] = dict(self.rows)
                    self.rows.update(read_rows(self.run_dir, manifest))
                    self.live = manifest.node
                case RestoreFull(manifest):
                    self.rows = read_rows(self.run_dir, manifest)
                    self.live = manifest.node
                    self.history = {}
                case UndoTo(node):
                    self.rows = dict(self.history[node])
                    self.live = node
        return found


def write_bundle(
    directory: Path, prefix: str, rows: Mapping[int, int], *, identity: list[int], disk: Disk
) -> PreparedBundle:
    tensors = {
        names.IDENTITY_TENSOR: np.array(identity, np.int64),
        "ids": np.array(sorted(rows), np.int64),
        "rows": np.array([rows[key] for key in sorted(rows)], np.int64),
    }
    layout = [TensorLayout(name, "int64", values.shape, 0) for name, values in tensors.items()]
    writer = BundleWriter(directory, prefix, layout, shard_roles=[names.ROLE_SERVING], disk=disk)
    try:
        for name, values in tensors.items():
            writer.write(name, values)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def describe(kind: Kind, node: Node, parent: Node | None, prepared: PreparedBundle, *, step: int) -> Manifest:
    return Manifest(
        kind=kind,
        position=node.position,
        state_id=node.state_id,
        parent=parent,
        base=None,
        prefix=prepared.prefix,
        step=step,
        created_at=0.0,
        schema=SCHEMA,
        tables={},
        files=prepared.files,
        highest_step=HighestStep(step, step),
    )


class ModelTrainer:
    """One run of a trainer. `open` is its start: lock, scan, sweep, resume, claim."""

    def __init__(self, run_dir: Path, disk: Disk) -> None:
        self.run_dir = run_dir
        self.disk = disk
        self.rows: Rows = {}
        self.tip: Node | None = None
        self._lock = TrainerLock(run_dir)
        self._position: Position | None = None
        self._run = 0
        self.step = 0

    def open(self, resume_at: Node | None = None) -> None:
        self._lock.acquire()
        listing = Scanner(self.run_dir).scan()
        sweep(self.run_dir, listing, self.disk)
        self._resume(listing, resume_at)
        self._run = claim_run(self.run_dir, listing.manifests, self.disk)

    def _resume(self, listing: Listing, resume_at: Node | None) -> None:
        manifests = listing.manifests
        if resume_at is not None:
            manifests = tuple(m for m in manifests if m.position <= resume_at.position)
        found = plan(None, manifests)
        for step in found.steps:
            assert not isinstance(step, UndoTo)
            self.rows.update(read_rows(self.run_dir, step.manifest))
        self.tip = found.target
        self.step = max((manifest.highest_step.full for manifest in listing.manifests), default=0)

    def close(self) -> None:
        self._lock.release()

    def save(self, changes: Mapping[int, int], *kinds: Kind) -> Node:
        """Changes rows and commits them as one position. Raises CommitError."""
        rows, parent = {**self.rows, **changes}, self.tip
        self._position = self._position.next() if self._position else Position(self._run, 1)
        node = Node(self._position, new_state_id())
        self.step += 1
        for kind in kinds:
            self._commit(kind, node, parent, rows if kind is Kind.FULL else changes)
            self.rows, self.tip = rows, node
        return node

    def _commit(self, kind: Kind, node: Node, parent: Node | None, rows: Mapping[int, int]) -> None:
        directory = directory_of(self.run_dir, kind)
        prefix = f"{names.FULL_STEM if kind is Kind.FULL else names.DELTA_STEM}{self.step}"
        prepared = write_bundle(
            directory, prefix, rows, identity=encode_identity(node, parent), disk=self.disk
        )
        commit(prepared, describe(kind, node, parent, prepared, step=self.step), disk=self.disk)

    def retain(self, keep_fulls: int) -> None:
        for manifest in expired(Scanner(self.run_dir).scan().manifests, keep_fulls=keep_fulls):
            delete(self.run_dir, manifest, self.disk)
