"""Changes the serving model by one step: what was verified and staged is applied behind the gate, and can be undone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hotdelta import signatures as contract
from hotdelta.chain import Manifest, Node, Schema, decode_identity
from hotdelta.errors import ApplyError
from hotdelta.logs import event
from loader.checks.quality import QualityProbe
from loader.checks.sanity_statistics import LargestNorms
from loader.files.commit_files import VerifiedFiles
from loader.files.fed_update import FedUpdate
from loader.follow.chain_view import ChainView
from loader.lag import Stopwatch, TableChange, lag_of
from loader.model.delta_staging import DeltaStaging
from loader.model.full_diff import Difference, compare_full, staged_difference
from loader.model.live_model import LiveModel
from loader.model.probed_change import require_quality
from loader.model.second_model import load_beside, waiting_for_export
from loader.model.served import Origin, Served, Serving, Version
from loader.model.undo_history import UndoEntry, UndoHistory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowLimits:
    """Memory that an update may take: for pre-images, for the rows of a full that differ, for one slice of a full.

    A full that differs in more is loaded into a second model.
    """

    undo_bytes: int
    full_diff_bytes: int
    slice_bytes: int


class Applier:
    """The only one that changes a serving model. Belongs to the updater thread.

    Each change is atomic: a prediction sees the state before it or the one after it. One that fails leaves the state
    before it, bit for bit; or, when nobody can say what the model holds, nothing that is served. Raises ChainError
    and ApplyError.
    """

    def __init__(
        self,
        serving: Serving,
        chain: ChainView,
        limits: FollowLimits,
        *,
        staging: DeltaStaging,
        wall_clock: Callable[[], float],
        after_swap: Callable[[], None],
    ) -> None:
        self._serving = serving
        self._chain = chain
        self._limits = limits
        self._staging = staging
        self._wall_clock = wall_clock
        self._after_swap = after_swap
        self.history = UndoHistory(limits.undo_bytes)
        self._in_need: tuple[Node, Manifest] | None = None
        self._is_ordered = False

    @property
    def schema(self) -> Schema:
        """Of the model that is served."""
        return self._live.model.metadata.schema

    def apply_delta(self, manifest: Manifest, watch: Stopwatch) -> Served:
        staged = self._staging.stage(self._live.model, self._chain.run_dir, manifest, watch)
        # An export may hold only some of the tables of the chain.
        changes = [_change_of(manifest, table.key) for table in self.schema.tables]
        served = self._apply_staged(manifest, staged.preimage, watch, changes)
        self._staging.checks.values.accept(staged.accepted)
        return served

    def require_room(self, manifest: Manifest) -> None:
        """Call before a full is read: one that was found to need a second model is not read in vain, again and again.

        Raises DamagedError (retryable) while the export is not there that it would be loaded from.
        """
        if self._in_need == (self._live.node, manifest):
            with waiting_for_export(self._chain.run_dir, manifest):
                self._live.model.require_export()

    def apply_full(self, files: VerifiedFiles, watch: Stopwatch) -> Served:
        model, values = self._live.model, self._staging.checks.values
        with watch.measure("sanity"):
            accepted = values.check_full(files, model.metadata.schema)
        with watch.measure("stage"):
            difference = compare_full(
                model, files, max_bytes=self._limits.full_diff_bytes, slice_bytes=self._limits.slice_bytes
            )
        if difference is not None:
            served = self._apply_difference(files.manifest, difference, watch)
        else:
            served = self._swap_in(files, watch)
        if self._chain.orders.pin is None:
            # Nobody ordered it back, so an older position is that of another history.
            values.forget_another_history(files.manifest.position)
        values.accept(accepted)
        values.statistics.hold(LargestNorms(accepted.figures))
        return served

    def _apply_difference(self, manifest: Manifest, difference: Difference, watch: Stopwatch) -> Served:
        """Within the budget: staged like a delta."""
        model = self._live.model
        with watch.measure("stage"):
            model.stage_rows(staged_difference(model, manifest, difference))
        with watch.measure("preimage"):
            preimage = model.preimage()
        changes = [TableChange(table, len(ids)) for table, ids in difference.ids.items()]
        return self._apply_staged(manifest, preimage, watch, changes)

    def _swap_in(self, files: VerifiedFiles, watch: Stopwatch) -> Served:
        """Beyond the budget: into a second model, which takes the place of the served one. Nobody waits for a file."""
        before = self._live
        event(logger, logging.INFO, "loading full beside", position=files.manifest.position)
        self._in_need = (before.node, files.manifest)
        with watch.measure("stage"):
            model = load_beside(before.model, files, slice_bytes=self._limits.slice_bytes)
        try:
            quality = self._quality_of(files.manifest)
            if quality is not None:
                with watch.measure("probe"):
                    quality.require(model, files.manifest, None)
        except BaseException:
            model.close()
            raise
        served = self._served(files.manifest, model)
        with self._serving.exclusive(watch):
            served.applied_at = self._wall_clock()
            self._serving.publish(served)
        before.model.close()
        self.history.clear()
        tables = model.metadata.schema.tables
        changes = [TableChange(table.key, files.manifest.shape_of(table)[0]) for table in tables]
        finished = self._finish(served, files.manifest, watch, changes)
        self._after_swap()
        return finished

    def _apply_staged(
        self, manifest: Manifest, preimage: FedUpdate, watch: Stopwatch, changes: Sequence[TableChange]
    ) -> Served:
        before = self._live
        model = before.model
        _require_staged(preimage, manifest.node)
        quality = self._quality_of(manifest)
        if quality is not None:
            quality.prepare(model, before.node)
        served = self._served(manifest, model)
        with self._freeing_torn(model), self._serving.exclusive(watch):
            served.applied_at = self._wall_clock()
            try:
                # Nothing else that may fail comes between the change and its name.
                model.apply()
                if quality is not None:
                    require_quality(quality, model, manifest, before.node, preimage, watch)
                    # It is measured with what holds the gate, and told by itself.
                    watch.add("apply", -watch.stages["probe"] / 1000)
            except BaseException:
                # Refused before the first write, or else nobody can say what the model holds now.
                if not model.holds(before.node):
                    self._serving.publish(None)
                raise
            self._serving.publish(served)
        served.applied_at += watch.stages.get("probe", 0.0) / 1000
        self.history.push(UndoEntry(before.node, before.version.step, before.origin, preimage))
        return self._finish(served, manifest, watch, changes)

    def _quality_of(self, manifest: Manifest) -> QualityProbe | None:
        """What it has to pass; an operator may have released it."""
        checks = self._staging.checks
        return None if self._is_ordered or checks.values.is_released(manifest.node) else checks.quality

    @contextlib.contextmanager
    def unprobed(self) -> Iterator[None]:
        """On a way that an operator ordered nothing is asked the probe."""
        self._is_ordered = True
        try:
            yield
        finally:
            self._is_ordered = False

    def complaint_of_served(self) -> str:
        """What the probe says against what is served now; nothing of changes. Nobody waits for it."""
        quality = self._staging.checks.quality
        return quality.complaint_of(self._live.model) if quality is not None else ""

    def discard_staged(self) -> None:
        """Free what a failed update staged. When that fails too, nothing else depends on it."""
        served = self._serving.current
        if served is not None:
            with contextlib.suppress(ApplyError):
                served.model.discard()

    def undo_to(self, node: Node, watch: Stopwatch) -> Served:
        """Go back to a state of the undo history, in one change. Raises LookupError (not there), ApplyError."""
        entries = self.history.back_to(node)
        before, model = self._live, self._live.model
        with watch.measure("stage"):
            model.stage_rows(entries[0].preimage)
        version = Version(node.position, entries[-1].step, before.version.export_version)
        served = Served(model, node, version, entries[-1].origin, self._wall_clock(), before.lag_now())
        with self._freeing_torn(model), self._serving.exclusive(watch):
            try:
                model.apply()
                for entry in entries[1:]:
                    model.stage_rows(entry.preimage)
                    model.apply()
            except BaseException:
                self._serving.publish(None)
                raise
            self._serving.publish(served)
        self.history.drop(entries)
        self._serving.announce()
        event(logger, logging.INFO, "updates undone", position=node, updates=len(entries), **watch.stages)
        return served

    @contextlib.contextmanager
    def _freeing_torn(self, model: LiveModel) -> Iterator[None]:
        """A model that is not served any more, because a change failed half-way, is freed when the gate is open."""
        try:
            yield
        finally:
            if self._serving.current is None:
                model.close()

    @property
    def _live(self) -> Served:
        served = self._serving.current
        if served is None:
            raise ApplyError("no model is served")
        return served

    def _served(self, manifest: Manifest, model: LiveModel) -> Served:
        """The state after a change that is about to happen."""
        before = self._live
        version = Version(manifest.position, manifest.step, before.version.export_version)
        origin: Origin = self._chain.origin_after(manifest, before.origin)
        return Served(model, manifest.node, version, origin, applied_at=0.0)

    def _finish(
        self, served: Served, manifest: Manifest, watch: Stopwatch, changes: Sequence[TableChange]
    ) -> Served:
        self._serving.announce()
        served.applied_at += watch.stages["apply"] / 1000
        served.lag = lag_of(
            self._chain.run_dir,
            manifest,
            watch,
            seen_at=self._chain.seen_at(manifest),
            found_at=self._chain.found_at(manifest),
            applied_at=served.applied_at,
            changes=changes,
        )
        return served


def _change_of(delta: Manifest, table: str) -> TableChange:
    record = delta.tables[table]
    has_keys = record.keys_new is not None
    return TableChange(table, record.rows_changed, has_keys, record.keys_new or 0, record.rows_deleted)


def _require_staged(preimage: FedUpdate, node: Node) -> None:
    """The bundle itself says which state it is; it must be the one that its manifest says."""
    staged = decode_identity([int(value) for value in preimage[contract.IDENTITY_VALUE]])[1]
    if staged != node:
        raise ApplyError(f"the files of {node} say that they are {staged}", hint="wait for the next full")
