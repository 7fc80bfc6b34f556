"""Brings a version of the export into service: load it beside, catch it up, warm it up, swap, free the old one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hotdelta.chain import Node
from hotdelta.errors import ApplyError, HotdeltaError
from hotdelta.export_metadata import read_metadata
from hotdelta.logs import event
from loader.checks.checks import Checks
from loader.exports.loading import ExportLoading, LoadedExport
from loader.exports.values import ExportQuarantine, require_limits_fit
from loader.exports.versions import ExportVersion, ExportWatch
from loader.follow.catch_up import catch_up
from loader.follow.chain_view import ChainView
from loader.lag import Stopwatch
from loader.model.delta_staging import DeltaStaging
from loader.model.live_model import LiveModel
from loader.model.served import Origin, Served, Serving, Version
from loader.settings import LoaderSettings

logger = logging.getLogger(__name__)

_IS_LOADING = "it is being loaded"
# An export that no state passes the probe with is not loaded beside the served one with every commit.
_TRY_AGAIN_SECONDS = 60.0


class ExportSwap:
    """Serves the highest version that can be served. Belongs to the updater thread.

    Only the loading itself, which takes seconds, happens in a thread of its own while updates go on.
    """

    def __init__(
        self,
        settings: LoaderSettings,
        *,
        serving: Serving,
        chain: ChainView,
        checks: Checks,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        look_again: Callable[[], None],
        after_swap: Callable[[], None],
        load_model: Callable[..., LiveModel] = LiveModel.load,
    ) -> None:
        self._settings = settings
        self._serving = serving
        self._chain = chain
        self._sanity = checks.values
        self._staging = DeltaStaging(checks)
        self._clock = clock
        self._wall_clock = wall_clock
        self._look_again = look_again
        self._after_swap = after_swap
        self._exports = ExportWatch(settings.export_dir)
        self.quarantine = ExportQuarantine(chain.orders)
        self._loading = ExportLoading(settings, chain.orders, when_loaded=look_again, load_model=load_model)
        self._version: ExportVersion | None = None
        self._waiting: str = ""
        self._failed: dict[ExportVersion, dict[Node, str]] = {}
        self._next_try: dict[ExportVersion, float] = {}

    def consider(self) -> str:
        """Swap in the highest version that is newer and can be served; returns why there is none to serve."""
        served = self._serving.current
        reason = f"no export in {self._settings.export_dir} yet"
        candidates = self._exports.candidates(self._version.number if self._version else -1)
        self.quarantine.forget_vanished(candidates)
        if served is None:
            # Nobody is answered: what is half loaded goes first, or newer ones could put it off for ever. They are
            # loaded beside it afterwards.
            candidates = sorted(candidates, key=lambda each: each != self._loading.version)
        for version in candidates:
            try:
                problem = self._why_not_yet(version, served) or self._swap_in(version)
            except HotdeltaError as error:
                if self._loading.version == version:
                    self._loading.drop()
                self._exports.refuse(version, error)
                continue
            if not problem:
                return ""
            reason = f"export {version.number}: {problem}"
            self._say_waiting(version, problem)
            if problem == _IS_LOADING:
                return reason
        self._drop_unwanted()
        problems = self._exports.problems
        return f"no export can be served: {problems[0]}" if problems and served is None else reason

    @property
    def is_loading(self) -> bool:
        """Whether a second model, which is to replace the served one, is loaded or being loaded."""
        return self._loading.version not in (None, self._version)

    def _drop_unwanted(self) -> None:
        """Drop a version that vanished, or may not be served any more, while it was being loaded."""
        if self.is_loading and self._serving.current is not None:
            self._loading.drop()

    def _is_barred(self, node: Node) -> bool:
        return self._chain.orders.is_barred(node) or node in self._chain.quarantine.nodes

    def _why_barred(self, problem: HotdeltaError | None) -> str:
        pin = self._chain.orders.pin
        if pin is not None:
            return f"the server is pinned at {pin}{f', and {problem}' if problem else ''}"
        return "it is quarantined"

    def reload(self) -> str:
        """Load the served version once more, for an export that takes fulls only. Returns why it has to wait."""
        if self.is_loading:
            # It takes the full too. Loading one would drop the other, in turns for ever.
            return "a newer export is being loaded"
        return self._swap_in(self._version) if self._version is not None else ""

    def forget_served(self) -> None:
        """The served model is gone: the next look loads the export again."""
        self._version = None

    def close(self) -> None:
        self._loading.close()
        self._staging.close()

    def _why_not_yet(self, version: ExportVersion, served: Served | None) -> str:
        """Why a version cannot be served yet: it would take the model back, or has no state to serve. Loads nothing."""
        metadata = read_metadata(version.path)
        require_limits_fit(self._settings.sanity, metadata)
        bad_values = self.quarantine.reason(version)
        node = None if bad_values else metadata.node
        reachable = self._chain.plan_from(node, metadata)
        target = reachable.target or node
        if reachable.target is None and node is not None and self._is_barred(node):
            return f"it holds {node}, which must not be served: {self._why_barred(reachable.problem)}"
        if target is None:
            reason = f": {reachable.problem}" if reachable.problem else ""
            holds = (
                bad_values or "it holds no state of a chain (without --checkpoint-dir it is served as it is)"
            )
            return f"{holds}, and there is no full checkpoint to load{reason}"
        if served is not None and target.position < served.version.position:
            return f"it leads only to {target}, and {served.version.position} is served"
        if self._chain.orders.pin is not None:
            return ""
        is_soon = served is not None and self._clock() < self._next_try.get(version, 0.0)
        return self.quarantine.why_held(version, None if is_soon else target)

    def _swap_in(self, version: ExportVersion) -> str:
        """Returns why it has to wait, if so. Raises ApplyError when the export cannot be loaded.

        Unless it is swapped in, what is served does not change.
        """
        old = self._serving.current
        self._sanity.forget_another_history(self._chain.newest)
        loaded = self._load_beside(version)
        if loaded is None:
            return _IS_LOADING
        model, norms = loaded.model, loaded.norms
        if self.quarantine.reason(version):
            # What it holds is no state to go on from: only a full makes it one.
            model.node = None
        failed = self._failed.setdefault(version, {})
        origin = catch_up(
            model,
            self._chain,
            self._staging,
            Stopwatch(self._clock),
            norms=norms,
            slice_bytes=self._settings.slice_bytes,
            undo_bytes=self._settings.undo_bytes,
            failed=failed,
        )
        problem = self._why_not(model, version, old)
        if problem and failed:
            problem = self._hold(version, model)
        if problem:
            has_lost_its_state = model.node is None and model.metadata.node is not None
            if old is not None or has_lost_its_state:
                # Twice the memory is for a moment only; without one that serves there is nothing to double.
                self._loading.drop()
            return problem
        model.warm_up()
        served = _serve(model, version.number, origin, applied_at=self._wall_clock(), before=old)
        if old is None:
            # Nobody waits for an answer yet; later the first ones would wait for this.
            self._after_swap()
        with self._serving.exclusive(Stopwatch(self._clock)):
            self._serving.publish(served)
        self._serving.announce()
        self._sanity.statistics.hold(norms)
        self._loading.take()
        self._failed.clear()
        self._next_try.clear()
        self.quarantine.let_go(version)
        self._version, self._waiting = version, ""
        if old is not None:
            old.model.close()
            self._after_swap()
        now = served.version
        event(
            logger,
            logging.INFO,
            "serving export",
            version=version.number,
            position=now.position,
            step=now.step,
        )
        return ""

    def _hold(self, version: ExportVersion, model: LiveModel) -> str:
        """No state that could serve passes. Returns why it waits: for a later one, or to be loaded again."""
        exported = None if self.quarantine.reason(version) else model.metadata.node
        failed = self._failed[version]
        if model.node is None and exported is not None and exported not in failed:
            # A full took the place of what it was exported with, from which there may be another way.
            self._look_again()
            return "the newest full does not pass the probe; it is loaded again"
        del self._failed[version]
        self._next_try[version] = self._clock() + _TRY_AGAIN_SECONDS
        complaint = next(iter(failed.values()))
        target = self._chain.plan_from(exported, model.metadata).target or exported
        return self.quarantine.hold(version, target, failed.get(target, complaint)) if target else complaint

    def _why_not(self, model: LiveModel, version: ExportVersion, served: Served | None) -> str:
        """Why a model that was caught up cannot be served, or cannot replace the one that is served."""
        if model.node is None:
            because = self.quarantine.reason(version)
            return f"nothing that is on disk could be loaded into it{f': {because}' if because else ''}"
        if served is not None and model.node.position < served.version.position:
            return f"it came only to {model.node}, and {served.version.position} is served"
        if self._is_barred(model.node):
            return f"it came only to {model.node}: {self._why_barred(None)}"
        return ""

    def _load_beside(self, version: ExportVersion) -> LoadedExport | None:
        """The model, when it is loaded. Raises ApplyError, DamagedError."""
        loaded = self._loading.load(version, is_known=version == self._version)
        if loaded is None:
            return None
        node = loaded.model.metadata.node
        if loaded.complaint and node is not None:
            self.quarantine.add(version, node, loaded.complaint)
        else:
            self._sanity.statistics.note(loaded.figures)
        return loaded

    def _say_waiting(self, version: ExportVersion, problem: str) -> None:
        if problem not in (_IS_LOADING, self._waiting):
            self._waiting = problem
            event(logger, logging.WARNING, "export has to wait", version=version.number, reason=problem)


def _serve(
    model: LiveModel, number: int, origin: Origin, *, applied_at: float, before: Served | None
) -> Served:
    if model.node is None:
        raise ApplyError("the model holds no state of a chain")
    version = Version(model.node.position, model.step, number)
    lag = before.lag_now() if before is not None else None
    return Served(model, model.node, version, origin, applied_at, lag=lag)
