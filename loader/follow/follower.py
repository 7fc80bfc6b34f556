"""Takes the serving model along a plan: look ahead, take step after step, report what cannot be used."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hotdelta.chain import ApplyDelta, Kind, Manifest, Node, RestoreFull, Step, UndoTo
from hotdelta.errors import ApplyError, ChainError, DamagedError, HotdeltaError
from hotdelta.logs import event
from loader.checks.checks import Checks
from loader.files.commit_files import VerifiedFiles
from loader.follow.applier import Applier, FollowLimits
from loader.follow.chain_view import ChainView
from loader.lag import Stopwatch
from loader.model.delta_staging import DeltaStaging
from loader.model.served import Served, Serving
from loader.model.undo_history import UndoHistory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _OpenedFull:
    """Verified files, and how long that took."""

    files: VerifiedFiles
    watch: Stopwatch


class Follower:
    """Takes one step after the other, each of them atomic. Belongs to the updater thread.

    A step that fails leaves the state before it, and is reported to the chain view.
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
        after_swap: Callable[[], None] = lambda: None,
    ) -> None:
        """`after_swap` is called whenever another model has begun to serve."""
        self._chain = chain
        self._checks = checks or Checks()
        self._clock = clock
        self._staging = DeltaStaging(self._checks)
        self.failure = ""
        """Why the last way that was followed was not followed to its end, if a step failed."""
        self._applier = Applier(
            serving, chain, limits, staging=self._staging, wall_clock=wall_clock, after_swap=after_swap
        )

    @property
    def history(self) -> UndoHistory:
        """What can be undone from memory."""
        return self._applier.history

    def follow(self, steps: Iterable[Step], on_update: Callable[[Served], bool]) -> bool:
        """Take the steps of a plan; `on_update` gets each new state, and says whether to go on.

        False when not all were taken; what could not be used has been reported to the chain view.
        """
        self.failure = ""
        with contextlib.ExitStack() as opened:
            return self._follow(list(steps), opened, on_update)

    def follow_order(self, steps: Iterable[Step], on_update: Callable[[Served], bool]) -> None:
        """The same, by order of an operator: the probe refuses nothing, but the log has what it says of the end."""
        with self._applier.unprobed():
            is_done = self.follow(steps, on_update)
        if is_done and (complaint := self._applier.complaint_of_served()):
            event(logger, logging.WARNING, "what was ordered does not pass", reason=complaint)

    def close(self) -> None:
        """End the thread that compares digests."""
        self._staging.close()

    def _follow(
        self, steps: list[Step], opened: contextlib.ExitStack, on_update: Callable[[Served], bool]
    ) -> bool:
        fulls: dict[Node, _OpenedFull] = {}
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
        self, manifest: Manifest, fulls: dict[Node, _OpenedFull], opened: contextlib.ExitStack
    ) -> bool:
        """Whether a step can be taken as far as its files go. A verified full is kept, deltas are read again."""
        try:
            if manifest.kind is Kind.DELTA:
                schema = self._applier.schema
                self._checks.digests(self._checks.open_delta(self._chain.run_dir, manifest, schema))
            else:
                full = fulls[manifest.node] = self._open_full(manifest)
                opened.callback(full.files.close)
        except DamagedError as error:
            self._report_broken(manifest, error)
            return False
        return True

    def _take(self, step: Step, fulls: Mapping[Node, _OpenedFull]) -> Served | None:
        if isinstance(step, UndoTo):
            return self._try_undo(step.node)
        manifest = step.manifest
        try:
            served = (
                self._applier.apply_delta(manifest, Stopwatch(self._clock))
                if isinstance(step, ApplyDelta)
                else self._apply_full(manifest, fulls.get(manifest.node))
            )
        except (ChainError, ApplyError) as error:
            self._report_broken(manifest, error)
            self._applier.discard_staged()
            return None
        self._chain.report_used(manifest, served.model.metadata)
        return served

    def _report_broken(self, manifest: Manifest, error: HotdeltaError) -> None:
        self.failure = str(error)
        self._chain.report_broken(manifest, error)

    def _try_undo(self, node: Node) -> Served | None:
        try:
            return self._applier.undo_to(node, Stopwatch(self._clock))
        except ApplyError as error:
            # Without a history the next plan leads through a full.
            event(logger, logging.ERROR, "updates cannot be undone", position=node, reason=error)
            self.history.clear()
            self.failure = str(error)
            return None

    def _apply_full(self, manifest: Manifest, known: _OpenedFull | None) -> Served:
        """`known` when it was verified before the first step."""
        if known is not None:
            return self._applier.apply_full(known.files, known.watch)
        full = self._open_full(manifest)
        with contextlib.closing(full.files):
            return self._applier.apply_full(full.files, full.watch)

    def _open_full(self, manifest: Manifest) -> _OpenedFull:
        self._applier.require_room(manifest)
        watch = Stopwatch(self._clock)
        with watch.measure("verify"):
            files = self._checks.open_full(self._chain.run_dir, manifest, self._applier.schema)
        return _OpenedFull(files, watch)


def _manifests(steps: Iterable[Step]) -> list[Manifest]:
    return [step.manifest for step in steps if isinstance(step, ApplyDelta | RestoreFull)]
