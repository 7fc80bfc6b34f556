"""A digest of all that a model holds, so that replicas at one position can be compared without sending their tables.

It is a sum over rows, so an update costs its rows: what it overwrote is taken out, what it wrote is put in. After
anything else that changes rows (a start, a full, an undo) the model is gone through once more, a slice at a time, when
there is nothing else to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain import Node, Schema
from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.bundle.row_memory import Hashes, flat_bytes, hash_rows, rows_within
from hotdelta.chain.format import names
from hotdelta.signature_calls import array_dtype
from loader.files.fed_update import FedUpdate, count_bytes, empty_update

if TYPE_CHECKING:
    from loader.model.live_model import LiveModel

Array = npt.NDArray[Any]

# Little, because an update may come meanwhile: some milliseconds.
SLICE_BYTES = 1024 * 1024
# What updates that follow each other closely may leave for later.
MAX_PENDING_BYTES = 32 * 1024 * 1024
_DIGITS = 16
_MASK = 2**64 - 1
# The finalizer of splitmix64: a sum of sums would not see that two rows have changed places.
_ID_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)


@dataclass(frozen=True, slots=True)
class SeenDigest:
    """The digest of a state; `schema` is that of what the model holds, and only equal ones can be compared."""

    node: Node
    schema: str
    value: str

    def __str__(self) -> str:
        return f"{self.schema}-{self.value}"


class StateDigest:
    """Of one model that takes deltas. Belongs to the thread that owns the model; `seen` may be read by any."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._name = schema.digest[:12]
        self._pending: list[tuple[FedUpdate, FedUpdate]] = []
        self._pending_bytes = 0
        self._staged: FedUpdate | None = None
        self._overwritten: FedUpdate | None = None
        self.seen: SeenDigest | None = None
        self.forget()

    def forget(self) -> None:
        """What the model holds has changed in a way that nobody followed."""
        self._sums = {spec.key: 0 for spec in self._schema.tables}
        self._covered = dict.fromkeys(self._sums, 0)
        self._others: dict[str, str] | None = None
        self._pending.clear()
        self._pending_bytes = 0

    def staged(self, update: FedUpdate | None) -> None:
        """An update was staged, or (None) what was staged is gone."""
        if self._pending_bytes > MAX_PENDING_BYTES:
            self._settle()
        self._staged, self._overwritten = update, None

    def found(self, preimage: FedUpdate) -> None:
        """What the staged update will overwrite."""
        self._overwritten = preimage

    def applied(self) -> None:
        """What was staged is live. It is counted later, since this may be called at the gate.

        Where nobody has asked what it would overwrite it cannot be counted; only what puts back what the last one
        overwrote can.
        """
        written, overwritten = self._staged, self._overwritten
        self._staged = self._overwritten = None
        if written is not None and self._pending and written is self._pending[-1][1]:
            last, _ = self._pending.pop()
            self._pending_bytes -= count_bytes(last) + count_bytes(written)
        elif written is None or overwritten is None:
            self.forget()
        elif self._others is not None or any(self._covered.values()):
            self._pending.append((written, overwritten))
            self._pending_bytes += count_bytes(written) + count_bytes(overwritten)

    def advance(self, model: LiveModel) -> bool:
        """A little of what is left to do, with something staged and discarded. Whether there is more."""
        node = model.node
        if node is None:
            self.forget()
            return False
        if self.seen is not None and self.seen.node == node and not self._pending:
            return False
        in_use = self._rows_in_use(model)
        if any(in_use[key] < covered for key, covered in self._covered.items()):
            # A full of an earlier state: what is no longer in use is in the sum.
            self.forget()
        self._settle()
        for key, end in in_use.items():
            if self._covered[key] < end:
                self._cover(model, node, key, end)
                return True
        if self._others is None:
            self._others = self._read_others(model, node)
        self.seen = SeenDigest(node, self._name, self._value())
        return False

    def _settle(self) -> None:
        try:
            for written, overwritten in self._pending:
                self._count(written, overwritten)
        except BaseException:
            # Some of it is in the sums.
            self.forget()
            raise
        self._pending.clear()
        self._pending_bytes = 0

    def _count(self, written: FedUpdate, overwritten: FedUpdate) -> None:
        for key, covered in self._covered.items():
            ids = written[key + names.IDS_SUFFIX]
            # The other rows are not in the sum yet: what lies in them may be nobody's.
            is_covered = ids < covered
            chosen: Any = slice(None) if is_covered.all() else is_covered
            new, old = (update[key + names.ROWS_SUFFIX][chosen] for update in (written, overwritten))
            self._sums[key] = (self._sums[key] + _sum(ids[chosen], new) - _sum(ids[chosen], old)) & _MASK
        if self._others is not None:
            for spec in self._schema.others:
                value = written[spec.key + names.VALUE_SUFFIX]
                if len(value):
                    self._others[spec.key] = _digest_of(value)

    def _rows_in_use(self, model: LiveModel) -> Mapping[str, int]:
        found = {spec.key: spec.shape[0] for spec in self._schema.tables}
        counts = model.key_counts()
        for table in self._schema.key_tables:
            found[table.rows], found[table.index] = counts[table.rows].rows, counts[table.rows].buckets
        return found

    def _cover(self, model: LiveModel, node: Node, key: str, end: int) -> None:
        update = empty_update(self._schema, node=node, parent=node, step=model.step)
        row = update[key + names.ROWS_SUFFIX]
        row_bytes = row.dtype.itemsize * int(np.prod(row.shape[1:]))
        first = self._covered[key]
        ids = np.arange(first, min(end, first + rows_within(SLICE_BYTES, row_bytes)))
        update[key + names.IDS_SUFFIX] = ids
        update[key + names.ROWS_SUFFIX] = np.zeros((len(ids), *row.shape[1:]), row.dtype)
        rows = _read_what_would_go(model, update)[key + names.ROWS_SUFFIX]
        self._sums[key] = (self._sums[key] + _sum(ids, rows)) & _MASK
        self._covered[key] = first + len(ids)

    def _read_others(self, model: LiveModel, node: Node) -> dict[str, str]:
        update = empty_update(self._schema, node=node, parent=node, step=model.step)
        for spec in self._schema.others:
            update[spec.key + names.VALUE_SUFFIX] = np.zeros((1, *spec.shape), array_dtype(spec.dtype))
        live = _read_what_would_go(model, update)
        return {spec.key: _digest_of(live[spec.key + names.VALUE_SUFFIX]) for spec in self._schema.others}

    def _value(self) -> str:
        tables = [f"{key} {self._covered[key]} {total}" for key, total in sorted(self._sums.items())]
        others = [f"{key} {value}" for key, value in sorted((self._others or {}).items())]
        return digest_bytes("\n".join([*tables, "", *others]).encode())[:_DIGITS]


def _read_what_would_go(model: LiveModel, update: FedUpdate) -> FedUpdate:
    """The live values in the places that an update would write to."""
    model.stage_rows(update)
    try:
        return model.preimage()
    finally:
        model.discard()


def _sum(ids: Array, rows: Array) -> int:
    """Of the hashes of rows and their places, modulo 2**64."""
    hashes: Hashes = hash_rows(rows) + ids.astype(np.uint64) * _ID_FACTOR
    for shift, factor in _MIX:
        hashes ^= hashes >> np.uint64(shift)
        hashes *= factor
    hashes ^= hashes >> _LAST_SHIFT
    return int(np.add.reduce(hashes, dtype=np.uint64))


def _digest_of(value: Array) -> str:
    return digest_bytes(flat_bytes(value).tobytes())[:_DIGITS]
