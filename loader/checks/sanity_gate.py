"""The last look at an update before it is applied: are these values that training could have written?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hotdelta.chain import Manifest, Node, Position, Schema, VariableSpec
from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.bundle.reader import Array, BundleRows
from hotdelta.chain.bundle.row_memory import row_ranges
from hotdelta.chain.format import names
from hotdelta.errors import SanityError
from hotdelta.logs import event
from hotdelta.sanity_limits import SanitySettings
from hotdelta.signature_calls import array_dtype
from loader.checks.sanity import Figures, Usual, judge_shares, judge_values
from loader.checks.sanity_figures import chunked, has_figures, measure, rows_per_chunk
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

    def check_delta(
        self, manifest: Manifest, schema: Schema, update: FedUpdate, before: FedUpdate
    ) -> Accepted:
        """`before` is the pre-image of the update. Raises SanityError."""
        if manifest.node not in self._released:
            self._check_shares(manifest, schema)
        accepted: dict[str, Figures] = {}
        for spec in schema.variables:
            name = spec.key + (names.ROWS_SUFFIX if spec.is_table else names.VALUE_SUFFIX)
            rows = update[name]
            if len(rows):
                figures = measure(chunked(rows, before[name])) if has_figures(rows.dtype) else Figures()
                share = len(rows) / max(1, spec.shape[0]) if spec.is_table else 0.0
                accepted[spec.key] = self._judge(manifest, spec, replace(figures, touched_share=share))
        return Accepted(manifest.node, accepted)

    def check_full(self, files: VerifiedFiles, schema: Schema) -> Accepted:
        """A full may differ from the live state by any number of updates, so its changes are not looked at.

        Raises SanityError, or DamagedError when these are not the values of the files that were verified.
        """
        manifest, variables = files.manifest, measured_variables(schema)
        with BundleRows(files.prefix, dtype_of=array_dtype) as bundle:
            measured = [measure(whole_chunks(bundle, spec.key, spec)) for spec in variables]
        # Before anything is said of the values: a quarantine would outlast files that are put right again.
        files.require_unchanged()
        judged = zip(variables, measured, strict=True)
        return Accepted(
            manifest.node, {spec.key: self._judge(manifest, spec, figures) for spec, figures in judged}
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

    def _check_shares(self, manifest: Manifest, schema: Schema) -> None:
        for spec in schema.tables:
            record = manifest.tables.get(spec.key)
            limits = self._settings.limits_of(spec.key, is_table=True)
            complaint = judge_shares(record, limits, self._usual(manifest, spec)) if record else ""
            if complaint:
                raise self._insane(manifest, spec, complaint)

    def _judge(self, manifest: Manifest, spec: VariableSpec, figures: Figures) -> Figures:
        limits = self._settings.limits_of(spec.key, is_table=spec.is_table)
        complaint = judge_values(figures, limits, self._usual(manifest, spec))
        if complaint and manifest.node not in self._released:
            raise self._insane(manifest, spec, complaint)
        return figures

    def _usual(self, manifest: Manifest, spec: VariableSpec) -> Usual | None:
        is_new = self.statistics.is_new(manifest.node)
        return self.statistics.usual(spec.key) if is_new else None

    def _insane(self, manifest: Manifest, spec: VariableSpec, complaint: str) -> SanityError:
        self.statistics.refuse(manifest.node)
        return SanityError(
            f"{manifest.kind} {manifest.position} is quarantined: {spec.key!r}: {complaint}",
            hint=f"a later full steps over it; if it is meant to be so: hotdelta release URL {manifest.position}",
        )


def measured_variables(schema: Schema) -> list[VariableSpec]:
    """Those whose values can be bad."""
    return [spec for spec in schema.variables if has_figures(array_dtype(spec.dtype))]


def whole_chunks(bundle: BundleRows, name: str, spec: VariableSpec) -> Iterator[tuple[Array, Array | None]]:
    """All of a variable, stored as the tensor `name`, as `measure` takes it."""
    if not spec.is_table:
        yield from chunked(bundle.read(name)[None], None)
        return
    length = rows_per_chunk(spec.shape[1:])
    row_bytes = tensor_bytes(spec.dtype, spec.shape[1:])
    buffer = np.empty(length * row_bytes, np.uint8)
    for start, stop in row_ranges(spec.shape[0], length):
        yield bundle.read_rows(name, start, stop, buffer=buffer), None
