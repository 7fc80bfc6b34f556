"""Loads an export in a thread of its own, and looks at its values there, while updates of the served one go on."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hotdelta.export_metadata import ExportMetadata, read_metadata
from hotdelta.logs import about, event
from loader.checks.quality import QualityProbe
from loader.checks.sanity import Figures
from loader.checks.sanity_statistics import LargestNorms
from loader.exports.values import find_bad_values, measure_values
from loader.exports.versions import ExportVersion
from loader.model.live_model import LiveModel
from loader.settings import LoaderSettings
from loader.standing_orders import Orders

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedExport:
    """A model, the figures of the values that it was exported with, and what is wrong with them.

    `norms` are those of the values that it holds by now.
    """

    model: LiveModel
    figures: Mapping[str, Figures]
    complaint: str
    norms: LargestNorms


class ExportLoading:
    """One version at a time; nobody else touches a model before it is loaded. For one thread.

    A loaded model is kept until it is taken or dropped.
    """

    def __init__(
        self,
        settings: LoaderSettings,
        orders: Orders,
        *,
        when_loaded: Callable[[], None],
        load_model: Callable[..., LiveModel] = LiveModel.load,
    ) -> None:
        self._settings = settings
        self._orders = orders
        self._when_loaded = when_loaded
        self._load_model = load_model
        self._quality = QualityProbe(settings.probe) if settings.probe is not None else None
        self._loader = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="hotdelta-export-loader",
            initializer=functools.partial(about, **settings.told),
        )
        self._loading: tuple[ExportVersion, Future[LoadedExport]] | None = None

    @property
    def version(self) -> ExportVersion | None:
        """The version that is being loaded, or that is loaded and was neither taken nor dropped."""
        return self._loading[0] if self._loading is not None else None

    def load(self, version: ExportVersion, *, is_known: bool) -> LoadedExport | None:
        """Begin to load a version; returns its model once it is loaded, and None until then. Never waits.

        `is_known`: its values were checked before and are not checked again. Raises ApplyError, DamagedError.
        """
        if self._loading is None or self._loading[0] != version:
            self.drop()
            event(logger, logging.INFO, "loading export", version=version.number, path=version.path)
            self._loading = (version, self._loader.submit(self._load, version, is_known))
            self._loading[1].add_done_callback(lambda _: self._when_loaded())
        future = self._loading[1]
        if not future.done():
            return None
        try:
            return future.result()
        except BaseException:
            self._loading = None
            raise

    def take(self) -> None:
        """The loaded model serves from now on: it is not ours any more."""
        self._loading = None

    def drop(self) -> None:
        loading, self._loading = self._loading, None
        if loading is not None and not loading[1].cancel():
            loading[1].add_done_callback(_close_loaded)

    def close(self) -> None:
        self.drop()
        self._loader.shutdown(wait=True)

    def _load(self, version: ExportVersion, is_known: bool) -> LoadedExport:
        metadata = read_metadata(version.path)
        if self._quality is not None:
            self._quality.require_fit(metadata.signatures)
        figures: Mapping[str, Figures] = {}
        complaint = ""
        if metadata.node is not None and not is_known:
            figures = measure_values(version.path, metadata)
            if self._is_judged(metadata, is_known):
                complaint = find_bad_values(figures, metadata, self._settings.sanity)
        model = self._load_model(version.path, predict_threads=self._settings.predict_threads)
        try:
            # Here, where updates of the served model do not wait for it.
            model.warm_up_for(self._settings.warm_up_rows)
            if self._quality is not None and not complaint:
                self._quality.require_answers(model)
            # One that deltas can be applied to is asked when it was caught up: what it holds need not be served.
            if self._quality and not metadata.is_incremental and self._is_judged(metadata, is_known):
                complaint = complaint or self._quality.complaint_of(model)
        except BaseException:
            model.close()
            raise
        return LoadedExport(model, figures, complaint, LargestNorms(figures))

    def _is_judged(self, metadata: ExportMetadata, is_known: bool) -> bool:
        """Whether what it holds may be found wanting."""
        return metadata.node is not None and not is_known and metadata.node not in self._orders.released


def _close_loaded(future: Future[LoadedExport]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().model.close()
