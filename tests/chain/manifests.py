"""Manifests for tests of what is pure: no files stand behind them."""

from __future__ import annotations

from hotdelta.chain import FileRecord, HighestStep, Kind, Manifest, Node, Position
from hotdelta.chain.format import names

SCHEMA = "a" * 64
OTHER_SCHEMA = "b" * 64


def node(text: str, branch: str = "") -> Node:
    """The state that was saved at a position; another `branch` is another state at the same position."""
    position = Position.parse(text)
    return Node(position, f"{position.run:08x}{position.seq:08x}{branch:x<16}".replace("x", "0"))


def delta(at: Node | str, parent: Node | str, *, schema: str = SCHEMA) -> Manifest:
    return _manifest(Kind.DELTA, at, parent, schema)


def full(at: Node | str, parent: Node | str | None = None, *, schema: str = SCHEMA) -> Manifest:
    return _manifest(Kind.FULL, at, parent, schema)


def _manifest(kind: Kind, at: Node | str, parent: Node | str | None, schema: str) -> Manifest:
    own = node(at) if isinstance(at, str) else at
    stem = names.FULL_STEM if kind is Kind.FULL else names.DELTA_STEM
    prefix = f"{stem}{own.position.seq}-{own.position}"
    return Manifest(
        kind=kind,
        position=own.position,
        state_id=own.state_id,
        parent=node(parent) if isinstance(parent, str) else parent,
        base=None,
        prefix=prefix,
        step=own.position.seq,
        created_at=0.0,
        schema=schema,
        tables={},
        files=(FileRecord(names.index_name(prefix), 1, "0" * 64, names.ROLE_INDEX),),
        highest_step=HighestStep(),
    )
