"""The public face: a model that answers, and keeps itself up to date."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from hotdelta.chain import Manifest, Node, Position, Scanner, SignatureSpec, SigningKey
from hotdelta.event_file import EventFile
from loader.checks.checks import Checks
from loader.checks.kept_statistics import KeptStatistics, read_statistics
from loader.checks.quality import QualityProbe
from loader.checks.sanity_gate import SanityGate
from loader.exports.swap import ExportSwap
from loader.files.commit_files import verify_files
from loader.files.private_copy import PrivateCopies
from loader.follow.applier import FollowLimits
from loader.follow.broken_links import BrokenLinks
from loader.follow.chain_view import ChainView
from loader.follow.follower import Follower
from loader.follow.hold_back import HoldBack
from loader.follow.lag_report import LagReport
from loader.follow.wake import Wake
from loader.follow.watch import make_watch
from loader.model.gate import Gate
from loader.model.live_model import LiveModel
from loader.model.served import Serving, Version
from loader.model.table_counts import describe_tables
from loader.orders.commands import CommandQueue
from loader.orders.operator_desk import OperatorDesk
from loader.orders.order_book import OrderBook
from loader.orders.state_directory import StateDirectory
from loader.settings import LoaderSettings
from loader.status import LoaderStatus
from loader.update_figures import UpdateFigures
from loader.updater import Updater

Array = npt.NDArray[Any]


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Clocks:
    """Both in seconds: one that never jumps, and one that other machines know."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class Companion(Protocol):
    """What a loader depends on and does not know, for example who brings its files, with threads of its own."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Returns when its threads have ended."""
        ...


class Loader:
    """Serves the newest state of the newest export, and follows both directories.

    Every method is for any thread. `start` returns at once; `status().is_ready` and `wait_for` tell when it answers.
    `figures`: what its updates have come to.
    """

    def __init__(
        self,
        settings: LoaderSettings,
        *,
        gate: Gate | None = None,
        clocks: Clocks | None = None,
        checks: Checks | None = None,
        after_swap: Callable[[], None] = _nothing,
        load_model: Callable[..., LiveModel] = LiveModel.load,
        hold_back: HoldBack | None = None,
        companions: Sequence[Companion] = (),
        found_at: Callable[[Manifest], float | None] = lambda _: None,
    ) -> None:
        """`after_swap` is called by the updater thread when a model is about to serve as the first one, or has taken
        the place of another (gc.freeze). `load_model` loads an export, in a thread of its own. `hold_back`: what is
        not to be taken yet. `companions` start before it and stop after it. `found_at`: when a commit
        was found where it was fetched from, if it was not made in the directory.
        """
        clocks = clocks or Clocks()
        self._clocks = clocks
        self._wake = Wake()
        self._undo_budget_bytes = settings.undo_bytes
        self.figures = UpdateFigures()
        self._serving = Serving(gate or Gate(), wall_clock=clocks.wall, on_first_served=self._wake.report)
        broken = BrokenLinks(
            settings.checkpoint_dir, late_seconds=settings.late_data_seconds, clock=clocks.monotonic
        )
        self._state_directory = StateDirectory(settings)
        self._book = OrderBook(settings)
        key = SigningKey.read(settings.signing_key_file) if settings.signing_key_file else None
        chain = ChainView(
            settings.checkpoint_dir,
            broken=broken,
            wall_clock=clocks.wall,
            orders=self._book.orders,
            scanner=Scanner(settings.checkpoint_dir, distrust=key.distrust if key else None),
            figures=self.figures,
            found_at=found_at,
            hold_back=hold_back,
        )
        self._chain = chain
        self._hold_back = hold_back
        self._companions = tuple(companions)
        self._copies = PrivateCopies() if key else None
        checks = checks or Checks(
            files=self._copies.verify_files if self._copies else verify_files,
            values=SanityGate(settings.sanity, read_statistics(settings.state_dir)),
            quality=QualityProbe(settings.probe, clock=clocks.monotonic) if settings.probe else None,
        )
        self._statistics = (
            KeptStatistics(settings.state_dir, checks.values.statistics, clock=clocks.monotonic)
            if settings.state_dir
            else None
        )
        limits = FollowLimits(settings.undo_bytes, settings.full_diff_bytes, settings.slice_bytes)
        follower = Follower(
            self._serving,
            chain,
            limits,
            checks=checks,
            clock=clocks.monotonic,
            wall_clock=clocks.wall,
            after_swap=after_swap,
        )
        for node in self._book.orders.released:
            checks.values.release(node)
        exports = ExportSwap(
            settings,
            serving=self._serving,
            chain=chain,
            checks=checks,
            clock=clocks.monotonic,
            wall_clock=clocks.wall,
            look_again=self._wake.look,
            after_swap=after_swap,
            load_model=load_model,
        )
        self._export_quarantine = exports.quarantine
        events = EventFile(settings.tensorboard_dir) if settings.tensorboard_dir is not None else None
        report = LagReport(clocks.wall, figures=self.figures, events=events)
        self._desk = OperatorDesk(
            serving=self._serving,
            chain=chain,
            follower=follower,
            sanity=checks.values,
            exports=exports.quarantine,
            book=self._book,
            report=report,
        )
        self._updater = Updater(
            serving=self._serving,
            chain=chain,
            follower=follower,
            exports=exports,
            watch=make_watch(settings, self._wake.look),
            wake=self._wake,
            commands=CommandQueue(self._wake.look),
            report=report,
            clock=clocks.monotonic,
            poll_seconds=settings.poll_seconds,
            between_looks=self._statistics.keep if self._statistics else _nothing,
            told=settings.told,
        )

    def start(self) -> None:
        for companion in self._companions:
            companion.start()
        self._updater.start()

    def stop(self) -> None:
        """Stop following, then answering; returns when the threads have ended and the model is freed."""
        self._updater.stop()
        for companion in self._companions:
            companion.stop()
        if self._statistics is not None:
            self._statistics.close()
        self._state_directory.close()
        # Nobody reads the copies any more; the predictions in flight, which are waited for next, may take long.
        if self._copies is not None:
            self._copies.close()
        self._serving.close()

    @property
    def is_alive(self) -> bool:
        """Whether the thread that follows is running."""
        return self._updater.is_alive

    def predict(self, signature: str, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], Version]:
        """The outputs, and the one version that all of them come from.

        Raises NotReadyError before there is a model, RequestError when the request is at fault, PredictionError when
        the model is.
        """
        return self._serving.predict(signature, feeds)

    def predict_at_once(
        self, signature: str, feeds: Mapping[str, Any]
    ) -> tuple[dict[str, Array], Version] | None:
        """The same for who must not wait: None, and nothing was asked, while an update is at the gate."""
        return self._serving.predict_at_once(signature, feeds)

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        """What can be called now. Every request asks for it, so it is cheaper than `status`."""
        served = self._serving.current
        return served.model.metadata.signatures if served is not None else {}

    @property
    def export(self) -> tuple[str, int] | None:
        """The name and the version of the export that is served now; asked for by every request, too."""
        served = self._serving.current
        return None if served is None else (served.model.metadata.model_name, served.version.export_version)

    def commits(self, newest: int) -> Sequence[Manifest]:
        """So many of the newest that the last look found, in the order of their positions. Reads nothing."""
        return self._chain.manifests[-newest:]

    def look_again(self, manifest: Path | None = None) -> None:
        """Do not wait for the next event or poll: look at this manifest, or at everything."""
        self._wake.look(manifest)

    def wait_for(self, position: Position, timeout_seconds: float) -> bool:
        """Whether `position` or a later one is served within so many seconds."""
        return self._serving.wait_for(position, timeout_seconds)

    def rollback(self, position: Position) -> Node:
        """Go back to a position and stay there; what was undone is bad until `resume`. Returns what is served.

        This and the other orders wait for the updater. They raise RequestError, and change nothing, when they cannot
        be carried out, NotReadyError when nothing is served, and ApplyError when it failed on the way.
        """
        return self._updater.order(lambda: self._desk.rollback(position))

    def rollback_deltas(self, deltas: int) -> Node:
        """The same, by a number of updates."""
        return self._updater.order(lambda: self._desk.rollback_deltas(deltas))

    def pin(self, position: Position | None = None) -> Node:
        """Serve exactly this position, or the one that is served now, until `resume`."""
        return self._updater.order(lambda: self._desk.pin(position))

    def resume(self) -> Node | None:
        """Follow the chain again, also when the pin was the reason that nothing is served (None)."""
        return self._updater.order(self._desk.resume)

    def release(self, position: Position) -> Node | None:
        """Take a quarantined update or export whatever its values are."""
        return self._updater.order(lambda: self._desk.release(position))

    def status(self) -> LoaderStatus:
        observed, served = self._updater.observed, self._serving.current
        condition = observed.condition_now(is_served=served is not None)
        if served is None:
            return LoaderStatus(
                condition.state,
                condition.reason,
                is_ready=False,
                newest_on_disk=observed.newest,
                pinned=observed.pinned,
                are_orders_kept=self._book.is_kept,
                quarantined=(*observed.quarantined, *self._export_quarantine.listed),
                refused=observed.refused,
                updates=observed.updates,
            )
        metadata = served.model.metadata
        since = observed.pending_since
        return LoaderStatus(
            state=condition.state,
            reason=condition.reason,
            is_ready=True,
            model_name=metadata.model_name,
            export_version=served.version.export_version,
            is_incremental=metadata.is_incremental,
            signatures=metadata.signatures,
            node=served.node,
            digest=served.digest,
            step=served.version.step,
            base_full=served.origin.base,
            deltas_since_full=served.origin.deltas,
            applied_at=served.applied_at,
            last_lag=served.lag_now(),
            newest_on_disk=observed.newest,
            seconds_behind=max(0.0, self._clocks.wall() - since) if since is not None else 0.0,
            tables=describe_tables(metadata.schema, self._serving.key_counts()),
            pinned=observed.pinned,
            are_orders_kept=self._book.is_kept,
            commits_behind=observed.commits_behind,
            held_back=observed.held_back,
            silent_leader=self._hold_back.silent_reason if self._hold_back else "",
            quarantined=(*observed.quarantined, *self._export_quarantine.listed),
            refused=observed.refused,
            undo_depth=observed.undo_depth,
            undo_bytes=observed.undo_bytes,
            undo_budget_bytes=self._undo_budget_bytes,
            updates=observed.updates,
        )
