"""Several deltas as one update: of each row the newest value, and for each delta the rows that it replaces.

For a model that serves nobody yet, so that no state in between is ever seen. Pure: arrays in, arrays out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hotdelta import signatures as contract
from hotdelta.chain import Manifest, Schema, VariableSpec, encode_identity
from hotdelta.chain.format import names
from hotdelta.chain.format.key_index import KeyChanges
from hotdelta.signature_calls import array_dtype
from loader.checks.key_tables import InUse, Moves, changes_in_buckets, find_new, rows_in_use_before
from loader.checks.sanity_figures import StackedRows, without_new
from loader.files.fed_update import Array, FedUpdate

Ids = npt.NDArray[np.int64]


def is_plain(update: FedUpdate, manifest: Manifest, schema: Schema) -> bool:
    """Whether the graph would take it after its parent. What is not plain is for the graph to refuse, in its words."""
    identity = encode_identity(manifest.node, manifest.parent)
    return (
        update[contract.IDENTITY_VALUE].tolist() == identity
        and update[contract.STEP_VALUE].tolist() == manifest.step
        and all(
            _is_plain_table(update, replace(spec, shape=manifest.shape_of(spec))) for spec in schema.tables
        )
        and all(_is_plain_value(update, spec) for spec in schema.others)
    )


def _is_plain_table(update: FedUpdate, spec: VariableSpec) -> bool:
    ids, rows = update[spec.key + names.IDS_SUFFIX], update[spec.key + names.ROWS_SUFFIX]
    is_formed = ids.dtype == np.int64 and ids.ndim == 1 and rows.dtype == array_dtype(spec.dtype)
    if not is_formed or rows.shape != (len(ids), *spec.shape[1:]):
        return False
    return not len(ids) or bool(
        ids[0] >= 0 and ids[-1] < spec.shape[0] and np.all(np.greater(ids[1:], ids[:-1]))
    )


def _is_plain_value(update: FedUpdate, spec: VariableSpec) -> bool:
    value = update[spec.key + names.VALUE_SUFFIX]
    return (
        value.dtype == array_dtype(spec.dtype) and value.shape[1:] == spec.shape and value.shape[:1] <= (1,)
    )


class FoldedDeltas:
    """Deltas that are plain and follow each other, as the one update that leads from before the first to the last."""

    def __init__(self, manifests: Sequence[Manifest], updates: Sequence[FedUpdate], schema: Schema) -> None:
        self._schema = schema
        self._variables = {spec.key: _Variable(spec, updates) for spec in schema.variables}
        first, last = manifests[0], manifests[-1]
        self.update: dict[str, Array] = {
            contract.IDENTITY_VALUE: np.array(encode_identity(last.node, first.parent), np.int64),
            contract.STEP_VALUE: np.array(last.step, np.int64),
        }
        for variable in self._variables.values():
            self.update |= variable.newest()

    def moves(self, preimage: FedUpdate, in_use: Sequence[InUse]) -> Sequence[Moves]:
        """Which keys came and went with each delta. `preimage` is that of the one update, `in_use` before each."""
        found: list[dict[str, KeyChanges]] = [{} for _ in in_use]
        for table in self._schema.key_tables:
            variable = self._variables[table.index]
            rows = variable.stacked(preimage)
            for number, part in enumerate(variable.parts()):
                before = in_use[number].get(table.rows)
                found[number][table.rows] = changes_in_buckets(
                    variable.ids[part], rows.old[part], rows.new[part], before
                )
        return found

    def stacked(
        self, preimage: FedUpdate, in_use: Sequence[InUse], moves: Sequence[Moves]
    ) -> Mapping[str, StackedRows]:
        """The rows of each variable, delta after delta."""
        found = {key: variable.stacked(preimage) for key, variable in self._variables.items()}
        grown = [rows_in_use_before(self._schema, before) for before in in_use]
        for key in self._schema.growing:
            rows, variable = found[key], self._variables[key]
            is_new = [
                find_new(variable.ids[part], before.get(key), moved.get(key))
                for part, before, moved in zip(variable.parts(), grown, moves, strict=True)
            ]
            found[key] = replace(rows, old=without_new(rows.old, rows.new, np.concatenate(is_new)))
        return found


class _Variable:
    """The rows that several deltas have of one variable. A value that is no table is a row with the id 0."""

    def __init__(self, spec: VariableSpec, updates: Sequence[FedUpdate]) -> None:
        self._ids_name = spec.key + names.IDS_SUFFIX if spec.is_table else ""
        self._rows_name = spec.key + (names.ROWS_SUFFIX if spec.is_table else names.VALUE_SUFFIX)
        parts = [update[self._rows_name] for update in updates]
        self._counts = [len(part) for part in parts]
        self._rows = np.concatenate(parts)
        ids: Ids = (
            np.concatenate([update[self._ids_name] for update in updates])
            if spec.is_table
            else np.zeros(len(self._rows), np.int64)
        )
        self.ids = ids
        # Stable: of the rows with one id the last is the newest.
        self._order = np.argsort(ids, kind="stable")
        self._sorted_ids = ids[self._order]
        self._is_first = np.ones(len(ids), np.bool_)
        np.not_equal(self._sorted_ids[1:], self._sorted_ids[:-1], out=self._is_first[1:])

    def newest(self) -> dict[str, Array]:
        is_last = np.append(self._is_first[1:], len(self._order) > 0)[: len(self._order)]
        newest: dict[str, Array] = {self._rows_name: self._rows[self._order[is_last]]}
        if self._ids_name:
            newest[self._ids_name] = self._sorted_ids[is_last]
        return newest

    def parts(self) -> list[slice]:
        """Where the rows of each delta are."""
        ends = np.cumsum([0, *self._counts]).tolist()
        return [slice(first, end) for first, end in itertools.pairwise(ends)]

    def stacked(self, preimage: FedUpdate) -> StackedRows:
        """A row replaces the one of an earlier delta that has its id, or that of the model."""
        in_order = self._rows[self._order]
        replaced = np.empty_like(in_order)
        replaced[1:] = in_order[:-1]
        replaced[self._is_first] = preimage[self._rows_name]
        old = np.empty_like(in_order)
        old[self._order] = replaced
        return StackedRows(self._rows, old, self._counts)
