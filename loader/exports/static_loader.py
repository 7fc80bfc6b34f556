"""Serves exports that nothing updates: there is no chain to follow, only newer versions of the export."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy.typing as npt

from hotdelta.chain import Manifest, Node, Position, SignatureSpec
from hotdelta.errors import ApplyError, HotdeltaError, NotReadyError, RequestError, SanityError
from hotdelta.export_metadata import read_metadata
from hotdelta.logs import about, event
from hotdelta.quality_probe import Probe
from hotdelta.sanity_limits import SanitySettings
from loader.checks.quality import QualityProbe
from loader.exports.values import find_bad_values, measure_values, require_limits_fit
from loader.exports.versions import ExportVersion, ExportWatch
from loader.model.gate import Gate
from loader.model.live_model import LiveModel
from loader.model.table_counts import SeenCounts, describe_tables
from loader.status import LoaderStatus, State
from loader.update_figures import UpdateFigures

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
STOP_SECONDS = 60.0
_NO_CHAIN = "there is no --checkpoint-dir, so nothing but a newer export changes what is served"


@dataclass(frozen=True, slots=True)
class StaticVersion:
    """What an answer was made with. An export of a model in memory has no position."""

    position: Position | None
    step: int
    export_version: int


@dataclass(frozen=True, slots=True)
class _Served:
    model: LiveModel
    version: StaticVersion
    since: float


class StaticLoader:
    """Serves the highest version in the export directory that can be served. Every method is for any thread.

    A thread of its own looks for versions, loads them beside the served one, and frees that one. `figures` stay at
    nothing: what replaces a model is no update.
    """

    def __init__(
        self,
        export_dir: Path,
        *,
        poll_seconds: float,
        sanity: SanitySettings,
        after_swap: Callable[[], None] = lambda: None,
        name: str | None = None,
        warm_up_rows: int = 1,
        probe: Probe | None = None,
    ) -> None:
        """`after_swap` is called when another model has begun to serve (gc.freeze); `name`: what the log calls it;
        `warm_up_rows`: the largest batch that requests are put together to; `probe`: what an export has to pass.
        """
        self._warm_up_rows = warm_up_rows
        self._quality = QualityProbe(probe) if probe is not None else None
        self._told = {"model": name} if name is not None else {}
        self._exports = ExportWatch(export_dir)
        self._export_dir = export_dir
        self.figures = UpdateFigures()
        self._poll_seconds = poll_seconds
        self._sanity = sanity
        self._after_swap = after_swap
        self._gate = Gate()
        self._counts = SeenCounts(self._gate)
        self._served: _Served | None = None
        self._is_stopping = threading.Event()
        self._has_news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotdelta-exports", daemon=True)

    def start(self) -> None:
        event(logger, logging.WARNING, "nothing is followed", **self._told, reason=_NO_CHAIN)
        self._thread.start()

    def stop(self) -> None:
        """Raises ApplyError when an export is being loaded and does not come to an end."""
        self._is_stopping.set()
        self._has_news.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                raise ApplyError(f"an export is still being loaded after {STOP_SECONDS:.0f} seconds")
        self._swap(None)

    def look_again(self) -> None:
        """Do not wait for the next poll."""
        self._has_news.set()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        served = self._served
        return served.model.metadata.signatures if served is not None else {}

    def predict(self, signature: str, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], StaticVersion]:
        """Raises NotReadyError, RequestError when the request is at fault, PredictionError when the model is."""
        with self._gate:
            return self._ask(signature, feeds)

    def predict_at_once(
        self, signature: str, feeds: Mapping[str, Any]
    ) -> tuple[dict[str, Array], StaticVersion] | None:
        """The same for who must not wait: None, and nothing was asked, while another export takes the place."""
        if not self._gate.try_enter():
            return None
        try:
            return self._ask(signature, feeds)
        finally:
            self._gate.leave()

    def _ask(self, signature: str, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], StaticVersion]:
        served = self._served
        if served is None:
            raise NotReadyError(f"no model is served yet: {self._why_none()}")
        return served.model.predict(signature, feeds), served.version

    @property
    def export(self) -> tuple[str, int] | None:
        served = self._served
        return None if served is None else (served.model.metadata.model_name, served.version.export_version)

    def status(self) -> LoaderStatus:
        served = self._served
        if served is None:
            return LoaderStatus(State.WAITING, self._why_none(), is_ready=False)
        metadata = served.model.metadata
        return LoaderStatus(
            State.STATIC,
            _NO_CHAIN,
            is_ready=True,
            model_name=metadata.model_name,
            export_version=served.version.export_version,
            is_incremental=metadata.is_incremental,
            signatures=metadata.signatures,
            node=metadata.node,
            step=served.version.step,
            applied_at=served.since,
            tables=describe_tables(metadata.schema, self._counts.read(self._find_model)),
        )

    def _find_model(self) -> LiveModel | None:
        served = self._served
        return served.model if served is not None else None

    def commits(self, _newest: int) -> tuple[Manifest, ...]:
        return ()

    def rollback(self, _position: Position) -> NoReturn:
        _refuse()

    def rollback_deltas(self, _deltas: int) -> NoReturn:
        _refuse()

    def pin(self, _position: Position | None = None) -> NoReturn:
        _refuse()

    def resume(self) -> Node | None:
        _refuse()

    def release(self, _position: Position) -> Node | None:
        _refuse()

    def _run(self) -> None:
        about(**self._told)
        while not self._is_stopping.is_set():
            try:
                self._look()
            except Exception:
                # The edge of the loop: whatever it is, what is served goes on serving.
                logger.exception("unexpected failure while looking for exports")
            self._has_news.wait(self._poll_seconds)
            self._has_news.clear()

    def _look(self) -> None:
        served = self._served
        for version in self._exports.candidates(served.version.export_version if served else -1):
            try:
                model = self._load(version)
            except HotdeltaError as error:
                self._exports.refuse(version, error)
                continue
            node = model.node
            now = StaticVersion(node.position if node else None, model.step, version.number)
            self._swap(_Served(model, now, time.time()))
            self._after_swap()
            position = node.position if node else "none"
            event(logger, logging.INFO, "serving export", version=version.number, position=position)
            return

    def _load(self, version: ExportVersion) -> LiveModel:
        """Raises ApplyError, DamagedError."""
        metadata = read_metadata(version.path)
        require_limits_fit(self._sanity, metadata)
        if self._quality is not None:
            self._quality.require_fit(metadata.signatures)
        complaint = find_bad_values(measure_values(version.path, metadata), metadata, self._sanity)
        if complaint:
            raise SanityError(
                f"its values must not be served: {complaint}", hint="export it again, or set --sanity"
            )
        model = LiveModel.load(version.path)
        try:
            model.warm_up_for(self._warm_up_rows)
            model.warm_up()
            if self._quality is not None:
                self._quality.require_answers(model)
            if self._quality is not None and (complaint := self._quality.complaint_of(model)):
                raise SanityError(f"it must not be served: {complaint}", hint="export a better one")
        except BaseException:
            model.close()
            raise
        return model

    def _swap(self, served: _Served | None) -> None:
        with self._gate.exclusive():
            before, self._served = self._served, served
        if before is not None:
            before.model.close()

    def _why_none(self) -> str:
        problems = self._exports.problems
        return (
            f"no export can be served: {problems[0]}" if problems else f"no export in {self._export_dir} yet"
        )


def _refuse() -> NoReturn:
    raise RequestError("this server follows no chain, so there is nothing to order", hint=_NO_CHAIN)
