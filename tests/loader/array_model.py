"""A live model of arrays: what the update signatures of an export do, without TensorFlow and without an export.

Its tables are as large as the schema says. What was never written to them is garbage, as it is in reserved memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from hotdelta import signatures as contract
from hotdelta.chain import Node, Schema, decode_identity, encode_identity
from hotdelta.chain.format import names
from hotdelta.signature_calls import array_dtype
from loader.files.fed_update import Array, FedUpdate
from loader.model.live_model import KeyCounts, LiveModel
from loader.model.state_digest import StateDigest

_GARBAGE = 77


@dataclass(frozen=True)
class _Metadata:
    schema: Schema


class ArrayModel:
    """`held` is the state that it holds. One thread at a time."""

    def __init__(self, schema: Schema, held: Node | None = None) -> None:
        self.metadata = _Metadata(schema)
        self.held = self.node = held
        self.values = {
            spec.key: np.full(spec.shape, _GARBAGE, array_dtype(spec.dtype)) for spec in schema.variables
        }
        self._staged: FedUpdate | None = None
        self.digest = StateDigest(schema)
        self.step = 0

    @property
    def live(self) -> LiveModel:
        return cast(LiveModel, self)

    def stage_rows(self, update: FedUpdate) -> None:
        for spec in self.metadata.schema.tables:
            ids = update[spec.key + names.IDS_SUFFIX]
            assert not len(ids) or 0 <= ids.min() <= ids.max() < spec.shape[0]
        assert _decoded(update)[1] == self.held
        self._staged = update
        self.digest.staged(update)

    def preimage(self) -> FedUpdate:
        staged = self._require_staged()
        node = _decoded(staged)[0]
        found: dict[str, Array] = {
            contract.IDENTITY_VALUE: np.array(encode_identity(self.held or node, node), np.int64),
            contract.STEP_VALUE: np.array(0),
        }
        for spec in self.metadata.schema.tables:
            ids = staged[spec.key + names.IDS_SUFFIX]
            found[spec.key + names.IDS_SUFFIX] = ids
            found[spec.key + names.ROWS_SUFFIX] = self.values[spec.key][ids]
        for spec in self.metadata.schema.others:
            name = spec.key + names.VALUE_SUFFIX
            found[name] = self.values[spec.key][None][: len(staged[name])]
        self.digest.found(found)
        return found

    def apply(self) -> None:
        staged = self._require_staged()
        for spec in self.metadata.schema.tables:
            ids = staged[spec.key + names.IDS_SUFFIX]
            self.values[spec.key][ids] = staged[spec.key + names.ROWS_SUFFIX]
        for spec in self.metadata.schema.others:
            for value in staged[spec.key + names.VALUE_SUFFIX]:
                self.values[spec.key] = np.array(value)
        self.held = self.node = _decoded(staged)[0]
        self._staged = None
        self.digest.applied()

    def discard(self) -> None:
        self._staged = None
        self.digest.staged(None)

    def key_counts(self) -> dict[str, KeyCounts]:
        return {
            table.rows: KeyCounts(int(self.values[table.counts][0]), int(self.values[table.counts][1]), 0)
            for table in self.metadata.schema.key_tables
        }

    def _require_staged(self) -> FedUpdate:
        assert self._staged is not None
        return self._staged


def _decoded(update: FedUpdate) -> tuple[Node, Node | None]:
    return decode_identity(update[contract.IDENTITY_VALUE].tolist())
