"""The last look at an update before it is applied: are these values that training could have written?"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hotdelta.chain import Manifest, Node, Position, Schema, TableRecord, VariableSpec
from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.bundle.reader import Array, BundleRows
from hotdelta.chain.bundle.row_memory import row_ranges
from hotdelta.chain.format import names
from hotdelta.errors import SanityError
from hotdelta.logs import event
from hotdelta.sanity_limits import SanityLimits, SanitySettings
from hotdelta.signature_calls import array_dtype
from loader.checks.key_tables import changes_of_keys, find_new, in_use_before, rows_in_use_before
from loader.checks.sanity import Figures, Usual, judge_shares, judge_values, share_of_rows
from loader.checks.sanity_figures import (
    StackedRows,
    chunked,
    has_figures,
    measure,
    measure_each,
    rows_per_chunk,
    without_new,
)
from loader.checks.sanity_statistics import Accepted, KnownUpdates, SanityStatistics
from loader.files.commit_files import VerifiedFiles
from loader.files.fed_update import FedUpdate

logger = logging.getLogger(__name__)


class SanityGate:
    """Measures updates, judges them against limits and earlier updates, and remembers those that were applied.

    What an operator released passes unseen. One thread at a time.
    """

    def __init__(self, settings: SanitySettings | None = None, known: KnownUpdates | None = None) -> None:
        """`known` are the statistics of an earlier process."""
        self._settings = settings or SanitySettings()
        self.statistics = SanityStatistics(known, min_updates=self._settings.min_updates)
        self._released: set[Node] = set()

    def release(self, node: Node) -> None:
        self._released.add(node)

    def is_released(self, node: Node) -> bool:
        return node in self._released

    def check_delta(
        self, manifest: Manifest, schema: Schema, update: FedUpdate, before: FedUpdate
    ) -> Accepted:
        """`before` is the pre-image of the update. Raises SanityError."""
        measured: dict[str, Figures] = {}
        (in_use,) = in_use_before(schema, [update], before)
        grown = rows_in_use_before(schema, in_use)
        moves = changes_of_keys(schema, update, before, in_use)
        for spec in schema.variables:
            name = spec.key + (names.ROWS_SUFFIX if spec.is_table else names.VALUE_SUFFIX)
            rows = update[name]
            if len(rows):
                old = before[name]
                if spec.key in schema.growing:
                    ids, first = update[spec.key + names.IDS_SUFFIX], grown.get(spec.key)
                    old = without_new(old, rows, find_new(ids, first, moves.get(spec.key)))
                figures = measure(chunked(rows, old)) if has_figures(rows.dtype) else Figures()
                measured[spec.key] = _with_share(figures, manifest, spec, len(rows))
        return self._judge_delta(manifest, schema, measured, self.statistics)

    def check_deltas(
        self, manifests: Sequence[Manifest], schema: Schema, rows: Mapping[str, StackedRows]
    ) -> list[Accepted]:
        """Judges deltas that follow each other, each as if those before it were applied already.

        `rows` by the key of the variable. Of the first one that may not be applied, and of those after it, nothing is
        returned, and nothing is remembered: `check_delta` says what is wrong with it.
        """
        measured: list[dict[str, Figures]] = [{} for _ in manifests]
        for spec in schema.variables:
            stacked = rows[spec.key]
            figures = measure_each(stacked)
            for update, count in enumerate(stacked.counts):
                if count:
                    manifest = manifests[update]
                    measured[update][spec.key] = _with_share(figures[update], manifest, spec, count)
        trial, accepted = self.statistics.copy(), list[Accepted]()
        for manifest, found in zip(manifests, measured, strict=True):
            try:
                accepted.append(self._judge_delta(manifest, schema, found, trial))
            except SanityError:
                break
            trial.add(accepted[-1])
        return accepted

    def check_full(self, files: VerifiedFiles, schema: Schema) -> Accepted:
        """A full may differ from the live state by any number of updates, so its changes are not looked at.

        Raises SanityError, or DamagedError when these are not the values of the files that were verified.
        """
        manifest, variables = files.manifest, measured_variables(schema)
        with BundleRows(files.prefix, dtype_of=array_dtype) as bundle:
            measured = [
                measure(whole_chunks(bundle, spec.key, replace(spec, shape=manifest.shape_of(spec))))
                for spec in variables
            ]
        # Before anything is said of the values: a quarantine would outlast files that are put right again.
        files.require_unchanged()
        judged = zip(variables, measured, strict=True)
        return Accepted(
            manifest.node,
            {spec.key: self._judge(manifest, spec, figures, self.statistics) for spec, figures in judged},
        )

    def forget_another_history(self, newest: Position | None) -> None:
        """Positions only grow: when the newest is older than what was accepted, that was something else."""
        until = self.statistics.until
        if until is not None and newest is not None and newest < until:
            event(logger, logging.WARNING, "statistics are of another history", until=until, newest=newest)
            self.statistics.forget()

    def accept(self, accepted: Accepted) -> None:
        """The update was applied: later ones are compared with it."""
        self.statistics.add(accepted)

    def _judge_delta(
        self,
        manifest: Manifest,
        schema: Schema,
        measured: Mapping[str, Figures],
        statistics: SanityStatistics,
    ) -> Accepted:
        if manifest.node not in self._released:
            self._check_shares(manifest, schema, statistics)
        for spec in schema.variables:
            if spec.key in measured:
                self._judge(manifest, spec, measured[spec.key], statistics)
        return Accepted(manifest.node, measured, manifest.positions)

    def _check_shares(self, manifest: Manifest, schema: Schema, statistics: SanityStatistics) -> None:
        for spec in schema.tables:
            record = manifest.tables.get(spec.key)
            limits = self._settings.limits_of(spec.key, is_table=True)
            complaint = _judge_shares(manifest, record, limits, _usual(manifest, spec, statistics))
            if complaint:
                raise _insane(manifest, spec, complaint, statistics)

    def _judge(
        self, manifest: Manifest, spec: VariableSpec, figures: Figures, statistics: SanityStatistics
    ) -> Figures:
        limits = self._settings.limits_of(spec.key, is_table=spec.is_table)
        complaint = judge_values(
            figures, limits, _usual(manifest, spec, statistics), positions=manifest.positions
        )
        if complaint and manifest.node not in self._released:
            raise _insane(manifest, spec, complaint, statistics)
        return figures


def _judge_shares(
    manifest: Manifest, record: TableRecord | None, limits: SanityLimits, usual: Usual | None
) -> str:
    return "" if record is None else judge_shares(record, limits, usual, positions=manifest.positions)


def _with_share(figures: Figures, manifest: Manifest, spec: VariableSpec, rows: int) -> Figures:
    record = manifest.tables.get(spec.key)
    return replace(figures, touched_share=share_of_rows(record, rows)) if record is not None else figures


def _usual(manifest: Manifest, spec: VariableSpec, statistics: SanityStatistics) -> Usual | None:
    return statistics.usual(spec.key) if statistics.is_new(manifest.node) else None


def _insane(
    manifest: Manifest, spec: VariableSpec, complaint: str, statistics: SanityStatistics
) -> SanityError:
    statistics.refuse(manifest.node)
    return SanityError(
        f"{manifest.kind} {manifest.position} is quarantined: {spec.key!r}: {complaint}",
        hint=f"a later full steps over it; if it is meant to be so: hotdelta release URL {manifest.position}",
    )


def measured_variables(schema: Schema) -> list[VariableSpec]:
    """Those whose values can be bad."""
    return [spec for spec in schema.variables if has_figures(array_dtype(spec.dtype))]


def whole_chunks(bundle: BundleRows, name: str, spec: VariableSpec) -> Iterator[tuple[Array, Array | None]]:
    """All of a variable, stored as the tensor `name`, as `measure` takes it. `spec` has the shape that is stored."""
    if not spec.is_table:
        yield from chunked(bundle.read(name)[None], None)
        return
    length = rows_per_chunk(spec.shape[1:])
    row_bytes = tensor_bytes(spec.dtype, spec.shape[1:])
    buffer = np.empty(length * row_bytes, np.uint8)
    for start, stop in row_ranges(spec.shape[0], length):
        yield bundle.read_rows(name, start, stop, buffer=buffer), None
