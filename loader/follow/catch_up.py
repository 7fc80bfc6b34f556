"""Brings a model that serves nobody yet to the newest state that can be reached, in one go and without a gate."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from hotdelta.chain import ApplyDelta, Kind, Manifest, Node, RestoreFull, Step, UndoTo
from hotdelta.errors import ApplyError, ChainError, SanityError
from hotdelta.logs import ProgressLog, event
from loader.checks.sanity_statistics import Accepted, LargestNorms
from loader.files.commit_files import VerifiedFiles
from loader.files.opened_files import opened_prefix
from loader.follow.chain_view import ChainView
from loader.lag import Stopwatch
from loader.model.delta_staging import DeltaStaging
from loader.model.full_filling import fill_model
from loader.model.live_model import LiveModel
from loader.model.served import Origin
from loader.model.undo_history import UndoEntry, UndoHistory

logger = logging.getLogger(__name__)


def catch_up(
    model: LiveModel,
    chain: ChainView,
    staging: DeltaStaging,
    watch: Stopwatch,
    *,
    norms: LargestNorms,
    slice_bytes: int,
    undo_bytes: int,
    failed: dict[Node, str],
) -> Origin:
    """Afterwards `model.node` says how far it came: not at all when there is nothing that it could use.

    `norms` are those of the model, before and after. A full is read in slices of `slice_bytes`.

    What cannot be used is reported to `chain`, and gone around as far as possible. A probe is asked at the end alone.
    When that does not pass, the newest state before it that passes is looked for, by undoing within `undo_bytes`, then
    through another full; none of those in `failed`, to which it adds what the probe says against them. They are not
    reported: nobody has asked for them.
    """
    way = _Way(model, chain, staging, watch, norms, slice_bytes, UndoHistory(undo_bytes), failed)
    while True:
        way.go_on()
        complaint = way.complaint()
        if complaint and chain.orders.pin is not None:
            reason = complaint
            event(
                logger, logging.WARNING, "what was ordered does not pass", position=model.node, reason=reason
            )
            complaint = ""
        if not complaint:
            return way.origin
        way.go_back(complaint)


class _Way:
    """Of one model that serves nobody: on to the newest state, and back from one that does not pass."""

    def __init__(
        self,
        model: LiveModel,
        chain: ChainView,
        staging: DeltaStaging,
        watch: Stopwatch,
        norms: LargestNorms,
        slice_bytes: int,
        history: UndoHistory,
        failed: dict[Node, str],
    ) -> None:
        self._model = model
        self._chain = chain
        self._staging = staging
        self._watch = watch
        self._norms = norms
        self._slice_bytes = slice_bytes
        self._history = history
        self._failed = failed
        self.origin = chain.origin_of(model.node) if model.node else Origin(None, 0)

    def complaint(self) -> str:
        """What the probe says against the state; nothing when an operator released it."""
        checks, node = self._staging.checks, self._model.node
        if checks.quality is None or node is None or checks.values.is_released(node):
            return ""
        return checks.quality.complaint_of(self._model)

    def go_back(self, complaint: str) -> None:
        """To the newest state before this one that passes; or to none, so that the next way leads through a full."""
        model = self._model
        while complaint and model.node is not None:
            self._failed[model.node] = complaint
            entry = self._history.pop()
            if entry is None:
                model.node = None
                return
            model.stage_rows(entry.preimage)
            model.apply()
            self.origin = entry.origin
            complaint = self.complaint()

    def go_on(self) -> None:
        """As far as there is a way."""
        model, chain = self._model, self._chain
        while True:
            chain.look()
            steps = chain.plan_from(model.node, model.metadata, failed=self._failed.keys()).steps
            if not steps or not self._take_steps(steps):
                return

    def _take_steps(self, steps: Sequence[Step]) -> bool:
        """Whether to look for a way again. False: it is too early to go around what cannot be used."""
        progress = ProgressLog("catching up", of=len(steps))
        # What may have to be undone is not taken together: which state passes could not be found.
        done, may_fold = 0, self._staging.checks.quality is None
        while done < len(steps):
            progress.tell(done)
            manifest = manifest_of(steps[done])
            taken = (
                _take_together(self._model, steps, done, self._chain.run_dir, self._staging)
                if may_fold
                else []
            )
            # One that could not be applied is no reason to read the next ones twice.
            may_fold = may_fold and taken is not None
            try:
                taken = taken or [(manifest, self._take(manifest))]
            except (ChainError, ApplyError) as error:
                return self._chain.report_broken(manifest, error) is None
            for manifest, accepted in taken:
                self._report_used(manifest, accepted)
            done += len(taken)
        return True

    def _report_used(self, manifest: Manifest, accepted: Accepted) -> None:
        self._staging.checks.values.accept(accepted)
        self._chain.report_used(manifest, self._model.metadata)
        if manifest.kind is Kind.FULL:
            self._norms.replace(accepted.figures)
        else:
            self._norms.add_delta(accepted.figures)
        self.origin = self._chain.origin_after(manifest, self.origin)

    def _take(self, manifest: Manifest) -> Accepted:
        model, checks = self._model, self._staging.checks
        if manifest.kind is Kind.DELTA:
            before, step = model.node, model.step
            staged = self._staging.stage(model, self._chain.run_dir, manifest, self._watch)
            accepted = staged.accepted
            model.apply()
            if checks.quality is not None and before is not None:
                self._history.push(UndoEntry(before, step, self.origin, staged.preimage))
        else:
            schema = model.metadata.schema
            self._history.clear()
            with contextlib.closing(checks.open_full(self._chain.run_dir, manifest, schema)) as files:
                accepted = checks.values.check_full(files, schema)
                restore_verified(model, files, slice_bytes=self._slice_bytes)
            if not model.metadata.is_incremental:
                self._require_full_quality(manifest)
        require_node(model, manifest.node)
        return accepted

    def _require_full_quality(self, manifest: Manifest) -> None:
        """Of an export that takes nothing but fulls, each is an end. Raises SanityError."""
        quality = self._staging.checks.quality
        is_ordered = self._chain.orders.pin is not None
        if quality is None or is_ordered or self._staging.checks.values.is_released(manifest.node):
            return
        try:
            quality.require(self._model, manifest, None)
        except SanityError:
            # What was there before is overwritten: then another full has to be found.
            self._model.node = None
            raise


def manifest_of(step: Step) -> Manifest:
    match step:
        case ApplyDelta(manifest) | RestoreFull(manifest):
            return manifest
        case UndoTo(node):
            raise ValueError(f"there is nothing to undo to {node} with")


def _take_together(
    model: LiveModel, steps: Sequence[Step], first: int, run_dir: Path, staging: DeltaStaging
) -> list[tuple[Manifest, Accepted]] | None:
    """The next deltas that can be taken as one, if any; None when the model did not take them: then one by one."""
    try:
        taken = staging.stage_together(model, run_dir, _deltas_from(steps, first))
        if taken:
            model.apply()
            require_node(model, taken[-1][0].node)
    except ApplyError:
        with contextlib.suppress(ApplyError):
            model.discard()
        return None
    return taken


def _deltas_from(steps: Sequence[Step], first: int) -> Iterator[Manifest]:
    for at in range(first, len(steps)):
        step = steps[at]
        if not isinstance(step, ApplyDelta):
            return
        yield step.manifest


def restore_verified(model: LiveModel, files: VerifiedFiles, *, slice_bytes: int) -> None:
    """Restore exactly the verified files. Raises ApplyError, or DamagedError when they are not what was read."""
    if model.metadata.is_incremental:
        fill_model(model, files, slice_bytes=slice_bytes)
        return
    try:
        with opened_prefix(files) as prefix:
            model.restore_full(prefix)
    except ApplyError:
        files.require_unchanged()
        raise
    try:
        files.require_unchanged()
    except ChainError:
        # It holds what nobody has verified: no state that could be served, and none to go on from.
        model.node = None
        raise


def require_node(model: LiveModel, node: Node) -> None:
    """The bundle itself says which state it is; it must be the one that the manifest says."""
    if model.node != node:
        raise ApplyError(f"the files of {node} say that they are {model.node}", hint="wait for the next full")
