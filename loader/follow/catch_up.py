"""Brings a model that serves nobody yet to the newest state that can be reached, in one go and without a gate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from hotdelta.chain import ApplyDelta, Kind, Manifest, Node, RestoreFull, Step, UndoTo
from hotdelta.errors import ApplyError, ChainError, SanityError
from hotdelta.logs import ProgressLog
from loader.checks.quality import QualityProbe
from loader.checks.sanity_statistics import Accepted, LargestNorms
from loader.files.commit_files import VerifiedFiles
from loader.files.opened_files import opened_prefix
from loader.follow.chain_view import ChainView
from loader.lag import Stopwatch
from loader.model.delta_staging import DeltaStaging
from loader.model.full_filling import fill_model
from loader.model.live_model import LiveModel
from loader.model.probed_change import require_quality
from loader.model.served import Origin


def catch_up(
    model: LiveModel,
    chain: ChainView,
    staging: DeltaStaging,
    watch: Stopwatch,
    *,
    norms: LargestNorms,
    slice_bytes: int,
) -> Origin:
    """Afterwards `model.node` says how far it came: not at all when there is nothing that it could use.

    `norms` are those of the model, before and after. A full is read in slices of `slice_bytes`.

    What cannot be used is reported to `chain`, and gone around as far as possible.
    """
    origin = chain.origin_of(model.node) if model.node else Origin(None, 0)
    while True:
        chain.look()
        steps = chain.plan_from(model.node, model.metadata).steps
        if not steps:
            return origin
        progress = ProgressLog("catching up", of=len(steps))
        # What has to pass a probe passes it by itself, or nobody could say which one did not.
        done, may_fold = 0, staging.checks.quality is None
        while done < len(steps):
            progress.tell(done)
            manifest = manifest_of(steps[done])
            taken = _take_together(model, steps, done, chain.run_dir, staging) if may_fold else []
            # One that could not be applied is no reason to read the next ones twice.
            may_fold = may_fold and taken is not None
            try:
                taken = taken or [
                    (manifest, _take(model, manifest, chain.run_dir, staging, watch, slice_bytes))
                ]
            except (ChainError, ApplyError) as error:
                if chain.report_broken(manifest, error) is not None:
                    return origin
                break
            for manifest, accepted in taken:
                staging.checks.values.accept(accepted)
                chain.report_used(manifest, model.metadata)
                if manifest.kind is Kind.FULL:
                    norms.replace(accepted.figures)
                else:
                    norms.add_delta(accepted.figures)
                origin = chain.origin_after(manifest, origin)
            done += len(taken)


def manifest_of(step: Step) -> Manifest:
    match step:
        case ApplyDelta(manifest) | RestoreFull(manifest):
            return manifest
        case UndoTo(node):
            raise ValueError(f"there is nothing to undo to {node} with")


def _take(
    model: LiveModel,
    manifest: Manifest,
    run_dir: Path,
    staging: DeltaStaging,
    watch: Stopwatch,
    slice_bytes: int,
) -> Accepted:
    checks, schema = staging.checks, model.metadata.schema
    quality = None if checks.values.is_released(manifest.node) else checks.quality
    if manifest.kind is Kind.DELTA:
        before = model.node
        if quality is not None and before is not None:
            quality.prepare(model, before)
        staged = staging.stage(model, run_dir, manifest, watch)
        accepted = staged.accepted
        model.apply()
        if quality is not None:
            require_quality(quality, model, manifest, before, staged.preimage, watch)
    else:
        with contextlib.closing(checks.open_full(run_dir, manifest, schema)) as files:
            accepted = checks.values.check_full(files, schema)
            restore_verified(model, files, slice_bytes=slice_bytes)
        if quality is not None:
            _require_full_quality(quality, model, manifest)
    require_node(model, manifest.node)
    return accepted


def _require_full_quality(quality: QualityProbe, model: LiveModel, manifest: Manifest) -> None:
    """Raises SanityError. What was there before is overwritten: then another full has to be found."""
    try:
        quality.require(model, manifest, None)
    except SanityError:
        model.node = None
        raise


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
