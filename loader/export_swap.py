"""Brings a version of the export into service: load it beside, catch it up, warm it up, swap, free the old one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hotdelta.chain import Node
from hotdelta.errors import ApplyError, HotdeltaError
from hotdelta.logs import event
from loader.catch_up import catch_up
from loader.chain_view import ChainView
from loader.checks import Checks
from loader.export_metadata import ExportMetadata, read_metadata
from loader.export_watch import ExportVersion, ExportWatch
from loader.lag import Stopwatch
from loader.live_model import LiveModel
from loader.served import Origin, Served, Serving, Version
from loader.settings import LoaderSettings

logger = logging.getLogger(__name__)

_IS_LOADING = "it is being loaded"


class ExportSwap:
    """Serves the highest version that can be served. Belongs to the updater thread.

    Only the loading itself, which takes seconds, happens in a thread of its own while updates go on; nobody else
    touches a model before it is loaded.
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
    ) -> None:
        self._settings = settings
        self._serving = serving
        self._chain = chain
        self._checks = checks
        self._clock = clock
        self._wall_clock = wall_clock
        self._look_again = look_again
        self._after_swap = after_swap
        self._exports = ExportWatch(settings.export_dir)
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hotdelta-export-loader")
        self._loading: tuple[ExportVersion, Future[LiveModel]] | None = None
        self._version: ExportVersion | None = None
        self._waiting: str = ""

    def consider(self) -> str:
        """Swap in the highest version that is newer and can be served; returns why there is none to serve."""
        served = self._serving.current
        reason = f"no export in {self._settings.export_dir} yet"
        for version in self._exports.candidates(self._version.number if self._version else -1):
            try:
                problem = self._why_not_yet(read_metadata(version.path), served) or self._swap_in(version)
            except HotdeltaError as error:
                self._exports.refuse(version, error)
                continue
            if not problem:
                return ""
            reason = f"export {version.number}: {problem}"
            self._say_waiting(version, problem)
            if problem == _IS_LOADING:
                break
        problems = self._exports.problems
        return f"no export can be served: {problems[0]}" if problems and served is None else reason

    def _is_barred(self, node: Node) -> bool:
        return self._chain.orders.is_barred(node) or node in self._chain.quarantine.nodes

    def _why_barred(self, problem: HotdeltaError | None) -> str:
        pin = self._chain.orders.pin
        if pin is not None:
            return f"the server is pinned at {pin}{f', and {problem}' if problem else ''}"
        return "it is quarantined"

    def reload(self) -> str:
        """Load the served version once more, for an export that takes fulls only. Returns why it has to wait."""
        return self._swap_in(self._version) if self._version is not None else ""

    def forget_served(self) -> None:
        """The served model is gone: the next look loads the export again."""
        self._version = None

    def close(self) -> None:
        self._drop_loading()
        self._loader.shutdown(wait=True)

    def _why_not_yet(self, metadata: ExportMetadata, served: Served | None) -> str:
        """A version may not take the model back, and needs a state to serve. Decided before anything is loaded."""
        reachable = self._chain.plan_from(metadata.node, metadata)
        target = reachable.target or metadata.node
        if reachable.target is None and metadata.node is not None and self._is_barred(metadata.node):
            return (
                f"it holds {metadata.node}, which must not be served: {self._why_barred(reachable.problem)}"
            )
        if target is None:
            reason = f": {reachable.problem}" if reachable.problem else ""
            return f"it holds no state of a chain, and there is no full checkpoint to load{reason}"
        if served is not None and target.position < served.version.position:
            return f"it leads only to {target}, and {served.version.position} is served"
        return ""

    def _swap_in(self, version: ExportVersion) -> str:
        """Returns why it has to wait, if so. Raises ApplyError when the export cannot be loaded.

        Unless it is swapped in, what is served does not change.
        """
        old = self._serving.current
        model = self._load_beside(version, is_urgent=old is None)
        if model is None:
            return _IS_LOADING
        origin = catch_up(model, self._chain, self._checks)
        problem = _why_not(model, old)
        if not problem and model.node is not None and self._is_barred(model.node):
            problem = f"it came only to {model.node}: {self._why_barred(None)}"
        if problem:
            if old is not None:
                # Twice the memory is for a moment only; without one that serves there is nothing to double.
                self._drop_loading()
            return problem
        model.warm_up()
        served = _serve(model, version.number, origin, applied_at=self._wall_clock(), before=old)
        with self._serving.exclusive(Stopwatch(self._clock)):
            self._serving.publish(served)
        self._serving.announce()
        self._loading, self._version, self._waiting = None, version, ""
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

    def _load_beside(self, version: ExportVersion, *, is_urgent: bool) -> LiveModel | None:
        """The model, when it is loaded; waits for it only when it is urgent. It is kept until it is swapped in."""
        if self._loading is None or self._loading[0] != version:
            self._drop_loading()
            event(logger, logging.INFO, "loading export", version=version.number, path=version.path)
            self._loading = (version, self._loader.submit(self._load, version))
            self._loading[1].add_done_callback(lambda _: self._look_again())
        future = self._loading[1]
        if not is_urgent and not future.done():
            return None
        try:
            return future.result()
        except BaseException:
            self._loading = None
            raise

    def _load(self, version: ExportVersion) -> LiveModel:
        predict_threads, update_threads = self._settings.predict_threads, self._settings.update_threads
        return LiveModel.load(version.path, predict_threads=predict_threads, update_threads=update_threads)

    def _drop_loading(self) -> None:
        loading, self._loading = self._loading, None
        if loading is not None and not loading[1].cancel():
            loading[1].add_done_callback(_close_loaded)

    def _say_waiting(self, version: ExportVersion, problem: str) -> None:
        if problem not in (_IS_LOADING, self._waiting):
            self._waiting = problem
            event(logger, logging.WARNING, "export has to wait", version=version.number, reason=problem)


def _close_loaded(future: Future[LiveModel]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()


def _why_not(model: LiveModel, served: Served | None) -> str:
    """Why a model that was caught up cannot take the place of what is served."""
    if model.node is None:
        return "nothing that is on disk could be loaded into it"
    if served is not None and model.node.position < served.version.position:
        return f"it came only to {model.node}, and {served.version.position} is served"
    return ""


def _serve(
    model: LiveModel, number: int, origin: Origin, *, applied_at: float, before: Served | None
) -> Served:
    if model.node is None:
        raise ApplyError("the model holds no state of a chain")
    version = Version(model.node.position, model.step, number)
    lag = before.lag_now() if before is not None else None
    return Served(model, model.node, version, origin, applied_at, lag=lag)
