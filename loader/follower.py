"""Takes the serving model from state to state: verify, stage, keep the pre-image, apply behind the gate, publish."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hotdelta import signatures as contract
from hotdelta.chain import (
    ApplyDelta,
    Kind,
    Manifest,
    Node,
    RestoreFull,
    Schema,
    Step,
    UndoTo,
    decode_identity,
)
from hotdelta.errors import ApplyError, ChainError, DamagedError
from hotdelta.logs import event
from loader.bundle_rows import BundleRows
from loader.chain_view import ChainView
from loader.checks import Checks
from loader.commit_files import VerifiedFiles
from loader.delta_staging import DeltaStaging
from loader.fed_update import FedUpdate
from loader.full_diff import FullReader, compare_full, staged_difference, write_in_slices
from loader.lag import Stopwatch, lag_of
from loader.served import Origin, Served, Serving, Version
from loader.undo_history import UndoEntry, UndoHistory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowLimits:
    """Memory that an update may take: for pre-images, for the rows of a full that differ, for one slice of a full."""

    undo_bytes: int
    full_diff_bytes: int
    slice_bytes: int


class Follower:
    """The only one that changes a serving model. Belongs to the updater thread.

    Each step is one atomic change: a prediction sees the state before it or the one after it. A step that fails
    leaves the state before it, bit for bit.
    """

    def __init__(
        self,
        serving: Serving,
        chain: ChainView,
        limits: FollowLimits,
        *,
        checks: Checks | None = None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._serving = serving
        self._chain = chain
        self._limits = limits
        self._checks = checks or Checks()
        self._clock = clock
        self._wall_clock = wall_clock
        self._staging = DeltaStaging(self._checks)
        self.history = UndoHistory(limits.undo_bytes)

    def follow(self, steps: Iterable[Step], on_update: Callable[[Served], bool]) -> bool:
        """Take the steps of a plan; `on_update` gets each new state, and says whether to go on.

        False when not all were taken; what could not be used has been reported to the chain view.
        """
        with contextlib.ExitStack() as opened:
            return self._follow(list(steps), opened, on_update)

    def close(self) -> None:
        """End the thread that compares digests."""
        self._staging.close()

    def _follow(
        self, steps: list[Step], opened: contextlib.ExitStack, on_update: Callable[[Served], bool]
    ) -> bool:
        fulls: dict[Node, VerifiedFiles] = {}
        if steps and not isinstance(steps[0], ApplyDelta):
            # This way leads back before it leads on, so look at all of it before the first step.
            for manifest in _manifests(steps):
                if not self._look_ahead(manifest, fulls, opened):
                    return False
        for step in steps:
            served = self._take(step, fulls)
            if served is None:
                return False
            if not isinstance(step, UndoTo) and not on_update(served):
                return False
        return True

    def _look_ahead(
        self, manifest: Manifest, fulls: dict[Node, VerifiedFiles], opened: contextlib.ExitStack
    ) -> bool:
        """Whether a step can be taken as far as its files go. A verified full is kept, deltas are read again."""
        try:
            if manifest.kind is Kind.DELTA:
                self._checks.digests(self._checks.open_delta(self._chain.run_dir, manifest, self._schema))
            else:
                files = fulls[manifest.node] = self._open_full(manifest)
                opened.callback(files.close)
        except DamagedError as error:
            self._chain.report_broken(manifest, error)
            return False
        return True

    def _take(self, step: Step, fulls: Mapping[Node, VerifiedFiles]) -> Served | None:
        watch = Stopwatch(self._clock)
        if isinstance(step, UndoTo):
            return self._try_undo(step.node, watch)
        manifest = step.manifest
        try:
            served = (
                self._apply_delta(manifest, watch)
                if isinstance(step, ApplyDelta)
                else self._apply_full(manifest, fulls, watch)
            )
        except (ChainError, ApplyError) as error:
            self._chain.report_broken(manifest, error)
            self._discard_staged()
            return None
        self._chain.report_used(manifest)
        return served

    def _try_undo(self, node: Node, watch: Stopwatch) -> Served | None:
        try:
            return self.undo_to(node, watch)
        except ApplyError as error:
            # Without a history the next plan leads through a full.
            event(logger, logging.ERROR, "updates cannot be undone", position=node, reason=error)
            self.history.clear()
            return None

    def _open_full(self, manifest: Manifest) -> VerifiedFiles:
        return self._checks.open_full(self._chain.run_dir, manifest, self._schema)

    def _apply_delta(self, manifest: Manifest, watch: Stopwatch) -> Served:
        staged = self._staging.stage(self._live.model, self._chain.run_dir, manifest, watch)
        served = self._apply_staged(manifest, staged.preimage, watch)
        self._checks.values.accept(staged.accepted)
        return served

    def _apply_full(
        self, manifest: Manifest, fulls: Mapping[Node, VerifiedFiles], watch: Stopwatch
    ) -> Served:
        known = fulls.get(manifest.node)
        if known is not None:
            return self._apply_verified_full(known, watch)
        with watch.measure("verify"):
            files = self._open_full(manifest)
        with contextlib.closing(files):
            return self._apply_verified_full(files, watch)

    def _apply_verified_full(self, files: VerifiedFiles, watch: Stopwatch) -> Served:
        manifest, model = files.manifest, self._live.model
        with watch.measure("sanity"):
            accepted = self._checks.values.check_full(files, model.metadata.schema)
        with BundleRows(files.prefix) as bundle:
            full = FullReader(files, bundle)
            slice_bytes = self._limits.slice_bytes
            with watch.measure("stage"):
                difference = compare_full(
                    model, full, max_bytes=self._limits.full_diff_bytes, slice_bytes=slice_bytes
                )
                files.require_unchanged()
                if difference.rows is not None:
                    model.stage_rows(staged_difference(model, full, difference))
            self._checks.values.accept(accepted)
            if difference.rows is not None:
                with watch.measure("preimage"):
                    preimage = model.preimage()
                return self._apply_staged(manifest, preimage, watch, rows=difference.num_rows)
            served = self._served(manifest)
            with self._serving.exclusive(watch):
                served.applied_at = self._wall_clock()
                try:
                    write_in_slices(model, full, difference, slice_bytes=slice_bytes)
                    files.require_unchanged()
                except BaseException:
                    # Neither the old state nor the new one: nobody may see it. The updater loads the export again.
                    self._serving.publish(None)
                    raise
                self._serving.publish(served)
        self.history.clear()
        return self._finish(served, manifest, watch, rows=difference.num_rows)

    def _apply_staged(
        self, manifest: Manifest, preimage: FedUpdate, watch: Stopwatch, *, rows: int | None = None
    ) -> Served:
        before = self._live
        model = before.model
        _require_staged(preimage, manifest.node)
        served = self._served(manifest)
        with self._serving.exclusive(watch):
            # Nothing that may fail comes between the change and its name.
            served.applied_at = self._wall_clock()
            try:
                model.apply()
            except BaseException:
                # Refused before the first write, or else nobody can say what the model holds now.
                if not model.holds(before.node):
                    self._serving.publish(None)
                raise
            self._serving.publish(served)
        self.history.push(UndoEntry(before.node, before.version.step, before.origin, preimage))
        return self._finish(served, manifest, watch, rows=rows)

    def _discard_staged(self) -> None:
        """What failed must not stay in memory; that it cannot be discarded changes nothing."""
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
        with self._serving.exclusive(watch):
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

    @property
    def _live(self) -> Served:
        served = self._serving.current
        if served is None:
            raise ApplyError("no model is served")
        return served

    @property
    def _schema(self) -> Schema:
        return self._live.model.metadata.schema

    def _served(self, manifest: Manifest) -> Served:
        """The state after an apply that is about to happen."""
        before = self._live
        version = Version(manifest.position, manifest.step, before.version.export_version)
        origin: Origin = self._chain.origin_after(manifest, before.origin)
        return Served(before.model, manifest.node, version, origin, applied_at=0.0)

    def _finish(self, served: Served, manifest: Manifest, watch: Stopwatch, *, rows: int | None) -> Served:
        self._serving.announce()
        served.applied_at += watch.stages["apply"] / 1000
        served.lag = lag_of(
            self._chain.run_dir,
            manifest,
            watch,
            seen_at=self._chain.seen_at(manifest.node),
            applied_at=served.applied_at,
            rows=rows,
        )
        return served


def _manifests(steps: Iterable[Step]) -> list[Manifest]:
    return [step.manifest for step in steps if isinstance(step, ApplyDelta | RestoreFull)]


def _require_staged(preimage: FedUpdate, node: Node) -> None:
    """The bundle itself says which state it is; it must be the one that its manifest says."""
    staged = decode_identity([int(value) for value in preimage[contract.IDENTITY_VALUE]])[1]
    if staged != node:
        raise ApplyError(f"the files of {node} say that they are {staged}", hint="wait for the next full")
